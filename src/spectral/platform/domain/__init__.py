"""The values of platform and what can be decided about them without a database."""
