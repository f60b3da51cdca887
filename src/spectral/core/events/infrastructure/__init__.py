"""The adapters: rooms that know a driver or a tool each, and never each other."""
