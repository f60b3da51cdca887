"""What the failures of a cluster said."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID


class FailureSamples(Protocol):
    """Answers from what is committed when it is asked, on a connection of its own."""

    async def samples_of(self, cluster_id: UUID, *, limit: int) -> Sequence[str]:
        """The first samples of the cluster in the order in which they were recorded; none if it is not known."""
        ...
