"""A lint over SQL migrations: contexts never get SQL privileges on each other's objects, by any spelling.

The SQL is parsed by Postgres' own grammar (pglast, the extra `lint`), never searched as text. Read in this order:
`findings` (what is said), `settings` (who belongs where), `parser`, `tree` and `source` (text to statements),
`privileges` and the `*_rules` (what statements mean), `routines` (SECURITY DEFINER), `plpgsql`, `dynamic` and `reading`
(SQL inside code), `waivers`, `files`, `check`.
"""

from spectral.core.migrations.lint.check import lint_files, lint_sql
from spectral.core.migrations.lint.findings import Finding, Rule
from spectral.core.migrations.lint.settings import LintSettings

__all__ = ["Finding", "LintSettings", "Rule", "lint_files", "lint_sql"]
