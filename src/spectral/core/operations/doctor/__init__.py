"""The doctor: reads what can be known of a database, and says what is wrong, why it matters and what to run.

Read in this order: `facts` (what is known), `reading` and `wires` (how it is read), `checks_*` (what is judged, pure
functions), `examine` (all of it).
"""

from spectral.core.operations.doctor.examine import CHECKS, Examination, diagnose, examine
from spectral.core.operations.doctor.facts import Facts, Unseen
from spectral.core.operations.verdict_values import Finding, Level, Limits

__all__ = ["CHECKS", "Examination", "Facts", "Finding", "Level", "Limits", "Unseen", "diagnose", "examine"]
