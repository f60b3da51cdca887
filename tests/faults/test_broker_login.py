"""A broker that does not let them in: relay and worker say so without a word too much, and Postgres delivers."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from tests.acceptance.worker_process import RelayProcess, WorkerProcess
from tests.faults.broker_stage import BrokerStage, broker, stage
from tests.faults.crew import ROOT
from tests.faults.handlers import PLAIN

__all__ = ["broker", "stage"]

APP = """
import os

from tests.faults.handlers import External, consumers
from tests.faults.plan import Plan

dsn = os.environ["SPECTRAL_DATABASE_URL"]
(platform,) = consumers(Plan(dsn=dsn, name="cli"), External(dsn))
"""


def test_a_wrong_password_is_told_and_not_shown_and_events_are_delivered(stage: BrokerStage, tmp_path: Path) -> None:
    wrong = f"wr0ng{secrets.token_hex(8)}"
    parts = urlsplit(stage.server.url)
    (tmp_path / "app.py").write_text(APP)
    variables = {
        "SPECTRAL_DATABASE_URL": stage.dsn,
        "SPECTRAL_RELAY": stage.broker.kind.value,
        "SPECTRAL_BROKER_URL": f"{parts.scheme}://{parts.username}:{wrong}@{parts.hostname}:{parts.port}",
        "PYTHONPATH": str(ROOT),
    }
    stage.switch()
    with (
        RelayProcess(tmp_path, **variables) as relay,
        WorkerProcess(tmp_path, "app:platform", "--health-port", "0", **variables) as worker,
    ):
        for each in (relay, worker):
            told = each.wait_for("broker lost", broker=stage.broker.kind.value)
            assert told["level"] == "warning"
            assert "password" in told["error"]
            assert "SPECTRAL_BROKER_URL" in told["error"]
        stage.publish(10)
        stage.publish(10, PLAIN)
        stage.assert_clean(delivered=20)
        health = _health(worker)
        assert (health["takes_from"], health["has_fallen_back"]) == ("postgres", True)
        assert _health(relay)["connected"] is False
        for each in (relay, worker):
            each.stop()
            assert each.end() == 0
    for each in (relay, worker):
        assert wrong not in each.text
        assert parts.password
        assert parts.password not in each.text


def _health(process: WorkerProcess) -> dict[str, object]:
    port = process.wait_for("health is served")["port"]
    with urlopen(f"http://127.0.0.1:{port}/health", timeout=20) as answer:
        health: dict[str, object] = json.load(answer)
        return health
