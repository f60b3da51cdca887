"""The tables of worlds. Producers open the business transaction and publish in it; consumers are in `events`."""
