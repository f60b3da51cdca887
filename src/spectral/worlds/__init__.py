"""The context worlds: world models, their cards, scans of them, and the rules that were learnt from their failures.

    contracts       what others may rely on: the events it publishes
    domain          its values, without a database
    infrastructure  its tables, its producers and, in `events`, its consumers

It knows no other context. What it wants from one comes as an event or through a port that an app fills.
"""
