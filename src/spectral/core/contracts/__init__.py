"""Contracts of events: what a producer promises, what a consumer counts on, and what a release may change.

    discover            the contract modules of some packages, as `Contracts`
    snapshot            what they promise, as one JSON document to keep, or to read from a revision
    compare             two snapshots: additive only, or what breaks and what to do instead
    check_consumers     handlers' models against contracts and their examples
    check_succession    types that are to go, and those that follow them
    review              two snapshots and the consumers: what broke whom
    tell_*              all of it in words

Nothing here needs a database. Read in this order: `contract`, `discover`, `wording`, `schema`, `nodes`, `bounds`,
`fitting`, `compatibility`, `consumers`, `succession`, `review`, `revision`, `telling`.
"""

from spectral.core.contracts.compatibility import Change, ChangeKind, compare, is_breaking
from spectral.core.contracts.consumers import Problem, check_consumer, check_consumers, check_schema
from spectral.core.contracts.contract import (
    ContractError,
    Contracts,
    Deprecation,
    EventContract,
    family_of,
    owner_of,
    successor_of,
)
from spectral.core.contracts.discover import discover
from spectral.core.contracts.review import Review, ReviewedChange, review
from spectral.core.contracts.revision import is_revision, snapshot_at
from spectral.core.contracts.schema import (
    ContractSnapshot,
    DeprecationSnapshot,
    Schema,
    Snapshot,
    consumer_schema,
    contract_snapshot,
    parse_snapshot,
    payload_schema,
    render_snapshot,
    snapshot,
)
from spectral.core.contracts.succession import Finding, check_succession
from spectral.core.contracts.telling import tell_change, tell_finding, tell_problem

__all__ = [
    "Change",
    "ChangeKind",
    "ContractError",
    "ContractSnapshot",
    "Contracts",
    "Deprecation",
    "DeprecationSnapshot",
    "EventContract",
    "Finding",
    "Problem",
    "Review",
    "ReviewedChange",
    "Schema",
    "Snapshot",
    "check_consumer",
    "check_consumers",
    "check_schema",
    "check_succession",
    "compare",
    "consumer_schema",
    "contract_snapshot",
    "discover",
    "family_of",
    "is_breaking",
    "is_revision",
    "owner_of",
    "parse_snapshot",
    "payload_schema",
    "render_snapshot",
    "review",
    "snapshot",
    "snapshot_at",
    "successor_of",
    "tell_change",
    "tell_finding",
    "tell_problem",
]
