"""The partitioned layout: the way there and back, and what has to be done on it."""
