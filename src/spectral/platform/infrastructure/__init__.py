"""The tables of platform. Producers open the business transaction and publish in it; consumers are in `events`."""
