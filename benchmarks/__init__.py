"""Speed, as ratios within one run: `make bench`, `make bench-quick`. Start reading in `__main__`."""
