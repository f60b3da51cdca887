"""The way over a broker: a relay sends references to rows that are due, workers receive them and claim those rows."""
