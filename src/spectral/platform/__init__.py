"""The context platform: System Cards, clusters of failures, decisions about them, and curations.

    contracts       what others may rely on: the events it publishes, the protocols it answers to
    domain          its values, without a database
    infrastructure  its tables, its producers and, in `events`, its consumers

It knows no other context. What it wants from one comes as an event or through a port that an app fills.
"""
