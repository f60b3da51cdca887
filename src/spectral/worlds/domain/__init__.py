"""The values of worlds and what can be decided about them without a database."""
