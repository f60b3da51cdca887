"""Settings of brokers and relays: read from the environment, refused by name, and never shown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spectral.core.events.bootstrap import relay
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings, RelaySettings
from spectral.core.events.failure import ConfigurationError

URL = "nats://relay:s3cret@broker:4222"


def test_without_a_broker_there_are_no_settings() -> None:
    assert BrokerSettings.from_environ({}) is None
    assert BrokerSettings.from_environ({"SPECTRAL_RELAY": " Postgres "}) is None


def test_all_of_it_is_read_from_the_environment() -> None:
    read = BrokerSettings.from_environ(
        {
            "SPECTRAL_RELAY": "NATS",
            "SPECTRAL_BROKER_URL": URL,
            "SPECTRAL_RELAY_LATE": "45",
            "SPECTRAL_BROKER_REPLICAS": "3",
        }
    )
    assert read == BrokerSettings(kind=BrokerKind.NATS, url=URL, late=timedelta(seconds=45), replicas=3)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"SPECTRAL_RELAY": "kafka"}, "SPECTRAL_RELAY"),
        ({"SPECTRAL_RELAY": "nats"}, "SPECTRAL_BROKER_URL"),
        ({"SPECTRAL_RELAY": "nats", "SPECTRAL_BROKER_URL": "redis://x"}, "SPECTRAL_BROKER_URL"),
        ({"SPECTRAL_RELAY": "redis", "SPECTRAL_BROKER_URL": URL}, "SPECTRAL_BROKER_URL"),
        ({"SPECTRAL_RELAY": "nats", "SPECTRAL_BROKER_URL": f"{URL},other"}, "SPECTRAL_BROKER_URL"),
        ({"SPECTRAL_RELAY": "nats", "SPECTRAL_BROKER_URL": URL, "SPECTRAL_RELAY_LATE": "0"}, "SPECTRAL_RELAY_LATE"),
        ({"SPECTRAL_RELAY": "nats", "SPECTRAL_BROKER_URL": URL, "SPECTRAL_RELAY_LATE": "x"}, "SPECTRAL_RELAY_LATE"),
        (
            {"SPECTRAL_RELAY": "nats", "SPECTRAL_BROKER_URL": URL, "SPECTRAL_BROKER_REPLICAS": "9"},
            "SPECTRAL_BROKER_REPLICAS",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as refused:
        BrokerSettings.from_environ(environ)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong", [{"answer": timedelta(0)}, {"late": 5}, {"redeliver_after": timedelta(-1)}, {"replicas": 0}, {"kind": "x"}]
)
def test_values_are_checked_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        BrokerSettings(**{"kind": BrokerKind.NATS, "url": URL, **wrong})


def test_a_kind_may_be_given_by_its_name() -> None:
    assert BrokerSettings(kind="redis", url="rediss://x").kind is BrokerKind.REDIS  # type: ignore[arg-type]


def test_several_servers_of_a_cluster_may_be_named() -> None:
    assert BrokerSettings(kind=BrokerKind.NATS, url=f"{URL}, tls://other:4222").url.startswith(URL)


def test_the_url_is_never_shown() -> None:
    assert "s3cret" not in repr(BrokerSettings(kind=BrokerKind.NATS, url=URL))


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"most_waiting": True}, {"poll": timedelta(0)}, {"grace": 1}])
def test_a_relay_that_would_not_come_to_rest_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RelaySettings(**wrong)


def test_a_relay_needs_a_broker() -> None:
    with pytest.raises(ConfigurationError, match="SPECTRAL_RELAY"):
        relay(environ={"SPECTRAL_DATABASE_URL": "postgresql://x/y"})
