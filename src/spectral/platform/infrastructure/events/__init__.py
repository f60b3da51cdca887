"""The consumers of platform, a module for each event: its own view of the payload, the handler, and `register`.

No module here imports the event's contract: what a consumer needs of a payload is its own to say, and what the producer
adds to it is ignored. That the two fit is tested in `tests/contracts`.
"""
