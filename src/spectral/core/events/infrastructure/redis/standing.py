"""What a Redis server says of itself: whether it can be used at all, and what its operator should change.

The outbox stays the truth whatever Redis forgets, so nothing here is a reason to refuse but what cannot work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.broker_settings import BROKER_URL_VARIABLE
from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST_VERSION: Final = (6, 2)
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Standing:
    """The answer to `INFO`, as far as it matters; empty if the server keeps it to itself."""

    told: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, info: str) -> Standing:
        """From its lines of `name:value`."""
        pairs = (line.partition(":") for line in info.splitlines())
        return cls({name: value.strip() for name, colon, value in pairs if colon})

    def insist(self) -> None:
        """Refuse what cannot work.

        Raises:
            BrokerLostError: it is a replica; the one that takes writes may be back under this name later.
            ConfigurationError: it is too old, or one of a cluster.
        """
        version = _VERSION.match(self.told.get("redis_version", ""))
        if version is not None and (int(version[1]), int(version[2])) < OLDEST_VERSION:
            raise ConfigurationError(f"Redis {version[0]} is too old: 6.2 is the first that can hand messages over")
        if self.told.get("cluster_enabled") == "1":
            raise ConfigurationError(
                f"this Redis is one of a cluster, whose streams cannot be read together; let {BROKER_URL_VARIABLE} "
                "name a server that stands alone, or one that replicas stand behind"
            )
        if self.told.get("role") in {"slave", "replica"}:
            raise BrokerLostError(f"this Redis is a replica; let {BROKER_URL_VARIABLE} name the one that takes writes")

    def advice(self) -> tuple[str, ...]:
        """What makes it lose messages, which are then late: each with the setting that helps."""
        advice: list[str] = []
        if self.told.get("aof_enabled") == "0":
            advice.append(
                "Redis keeps no log of its writes: what waits is sent again after each restart; set: appendonly yes"
            )
        policy = self.told.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):  # the others never touch a key without a time to live, such as these
            advice.append(
                f"Redis evicts whole streams when its memory is full ({policy}); set: maxmemory-policy noeviction"
            )
        return tuple(advice)
