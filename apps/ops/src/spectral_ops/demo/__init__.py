"""The demo: a small business on an embedded Postgres, told by counts that must come out even.

It is a user of the library like any other, with tables and SQL of its own.
"""

from spectral_ops.demo.tour import Counts, tour

__all__ = ["Counts", "tour"]
