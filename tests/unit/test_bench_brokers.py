"""The brokers of the benchmarks: real servers for a moment, and what is said when something does not run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import brokers
from benchmarks.arena import Running
from benchmarks.environments import ContestantError
from spectral.core.events.broker import BrokerLane, BrokerLostError, BrokerSender
from spectral.core.events.broker_settings import BrokerSettings
from spectral.core.events.infrastructure.nats import NatsSender
from spectral.core.events.infrastructure.redis import RedisSender

SENDERS: dict[str, Callable[[BrokerSettings, str], BrokerSender]] = {"nats": NatsSender, "redis": RedisSender}
LANE = BrokerLane(1, "outbox_gen_1", "platform")


def settings_of(broker: brokers.Broker) -> BrokerSettings:
    settings = BrokerSettings.from_environ(broker.variables)
    assert settings is not None
    return settings


def password_of(broker: brokers.Broker) -> str:
    return broker.url.partition("@")[0].rpartition(":")[2]


@pytest.mark.parametrize("kind", brokers.KINDS)
async def test_a_broker_runs_for_its_block_and_is_reached_by_the_variables_it_gives(kind: str) -> None:
    with brokers.running(kind) as broker:
        sender = SENDERS[kind](settings_of(broker), "spectral_bench")
        await sender.open()
        await sender.prepare(LANE)
        waiting = await sender.waiting(LANE)
        await sender.close()

    assert waiting == 0
    with pytest.raises(ProcessLookupError):
        os.kill(broker.pid, 0)


@pytest.mark.parametrize("kind", brokers.KINDS)
async def test_a_broker_asks_for_its_password(kind: str) -> None:
    with brokers.running(kind) as broker:
        stranger = brokers.Broker(kind, broker.url.replace(password_of(broker), "x"), broker.pid)
        sender = SENDERS[kind](settings_of(stranger), "spectral_bench")

        with pytest.raises(BrokerLostError):
            await sender.open()


@pytest.mark.parametrize("kind", brokers.KINDS)
def test_the_password_is_shown_to_nobody(kind: str) -> None:
    with brokers.running(kind) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_text()

    assert password_of(broker) not in command
    assert password_of(broker) not in repr(broker)


def test_a_server_that_is_not_installed_is_absent_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with (
        pytest.raises(ContestantError, match=r"there is no nats-server here; run: make setup"),
        brokers.running("nats"),
    ):
        pass


def test_a_relay_that_has_ended_is_why_nothing_was_delivered() -> None:
    def measure() -> None:
        with brokers.relaying("postgresql://nowhere", {"SPECTRAL_RELAY": "nats", "SPECTRAL_BROKER_URL": ""}) as relay:
            relay.wait()
            raise ContestantError("handled nothing")

    with pytest.raises(ContestantError, match=r"the relay ended and said .*SPECTRAL_BROKER_URL"):
        measure()


def test_a_worker_is_waited_for_until_its_log_says_so_or_it_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import time; print('broker back', flush=True); time.sleep(60)"
    with log.open("wb") as output, subprocess.Popen([sys.executable, "-c", program], stdout=output) as process:
        worker = Running(process, tmp_path / "ticks", log)
        worker.wait_until_it_said("broker back", 20)
        has_lost = worker.has_said("broker lost")
        process.kill()
        process.wait()

        with pytest.raises(ContestantError, match=r"did not say 'broker lost' .* but 'broker back'"):
            worker.wait_until_it_said("broker lost", 20)

    assert not has_lost
