"""Spectral: the event substrate for Python teams on Postgres."""
