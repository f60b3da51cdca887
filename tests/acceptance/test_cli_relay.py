"""`spectral relay`: what it says and changes, what the doctor makes of it; and relays and workers as real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tests.acceptance.test_cli_status import spectral
from tests.acceptance.worker_process import Outbox, RelayProcess, WorkerProcess, eventually, write_app
from tests.acceptance.worker_process import publish as publish_events
from tests.integration.relay.nats_server import PASSWORD, URL_PASSWORD, NatsServer, nats_server
from tests.integration.test_insights import publish
from tests.migrations.schema import role

pytestmark = pytest.mark.database

__all__ = ["nats_server"]  # a fixture

SWITCH: Final = ("relay", "switch", "nats", "--reason", "NOTIFY is slow", "--by", "dana")
ALONE: Final = "try: SPECTRAL_RELAY=nats SPECTRAL_BROKER_URL=<url> spectral relay run"


def stand_for_a_relay(connection: psycopg.Connection[Any], broker: str = "nats") -> None:
    """Hold what a relay holds while it lives."""
    connection.execute("select pg_advisory_lock_shared(core.relay_lock_key())")
    connection.execute("select pg_advisory_lock_shared(core.relay_crew_key(%s))", [broker])


def test_the_way_to_a_broker_and_back(database: str, connection: psycopg.Connection[Any]) -> None:
    stand_for_a_relay(connection)
    there = spectral(database, *SWITCH, "--yes")
    assert (there.returncode, there.stdout) == (0, "")
    assert there.stderr == (
        "nats: workers that know NATS take events from there, the others claim from Postgres\n"
        "  take it back: spectral relay switch postgres --reason <why>\n"
    )
    again = spectral(database, *SWITCH, "--yes")
    assert (again.returncode, again.stderr) == (0, "nats already, by dana: NOTIFY is slow\n")
    shown = json.loads(spectral(database, "relay", "status", "--json").stdout)
    assert (shown["mode"], shown["switched_by"], shown["relays"], shown["lanes"]) == ("nats", "dana", 1, [])
    back = spectral(database, "relay", "switch", "postgres", "--reason", "done", "--yes", "--json")
    assert (back.returncode, json.loads(back.stdout)["changed"]) == (0, True)
    entries = json.loads(spectral(database, "audit", "--json").stdout)["items"]
    assert [(each["action"], each["reason"]) for each in entries] == [
        ("relay_switch", "done"),
        ("relay_switch", "NOTIFY is slow"),
    ]


def test_nothing_is_done_unasked_without_a_reason_or_on_a_dry_run(database: str) -> None:
    assert spectral(database, *SWITCH).returncode == 5
    assert spectral(database, "relay", "switch", "nats", "--yes").returncode == 2
    assert spectral(database, "relay", "switch", "kafka", "--reason", "r", "--yes").returncode == 2
    dry = spectral(database, *SWITCH, "--dry-run")
    assert (dry.returncode, dry.stderr.splitlines()[-1]) == (0, "nats: would be switched")
    assert json.loads(spectral(database, "relay", "status", "--json").stdout)["mode"] == "postgres"


def test_a_relay_for_another_broker_is_none(database: str, connection: psycopg.Connection[Any]) -> None:
    stand_for_a_relay(connection, "redis")
    assert spectral(database, "relay", "status").stderr.endswith("1 relay is alive: 1 for redis\n")
    told = spectral(database, *SWITCH, "--yes")
    assert "no relay for nats is alive" in told.stderr
    shown = spectral(database, "relay", "status")
    assert "no relay for nats is alive, 1 for redis\n" in shown.stderr
    assert ALONE in shown.stderr
    crews = json.loads(spectral(database, "relay", "status", "--json").stdout)["crews"]
    assert crews == [{"broker": "nats", "relays": 0}, {"broker": "redis", "relays": 1}]
    assert "no relay is alive that sends them there" in spectral(database, "status").stdout


def test_a_relay_of_an_older_release_may_be_for_any_broker(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("select pg_advisory_lock_shared(core.relay_lock_key())")
    told = spectral(database, *SWITCH, "--yes")
    assert "no relay" not in told.stderr
    assert spectral(database, "relay", "status").stderr.endswith("1 relay for nats is alive\n")
    assert "no relay is alive that sends them there" not in spectral(database, "status").stdout


def test_whoever_switches_to_a_broker_without_a_relay_is_told(database: str) -> None:
    told = spectral(database, *SWITCH, "--yes")
    assert told.returncode == 0
    assert "no relay for nats is alive: until one is, events wait for half a minute" in told.stderr
    assert ALONE in told.stderr


def test_status_counts_what_is_not_sent_and_what_nobody_has_claimed(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    for _ in range(3):
        publish(connection)
    quiet = spectral(database, "relay", "status")
    assert quiet.stdout == ""
    assert quiet.stderr.startswith("postgres: workers claim from Postgres (since ")
    assert quiet.stderr.endswith("by migration); no relay is alive\n")
    connection.execute("select core.relay_switch('redis', 'dana', 'growth')")
    connection.execute(
        "select * from core.outbox_relay('redis', 1, 'outbox_gen_1', 'platform', 1, null, interval '5 minutes')"
    )
    publish(connection, generation=0, channel="outbox_gen_0")  # retired: nobody's to send
    (lane,) = json.loads(spectral(database, "relay", "status", "--json").stdout)["lanes"]
    assert (lane["context"], lane["unsent"]["value"], lane["sent"]["value"]) == ("platform", 2, 1)
    table = spectral(database, "relay", "status").stdout.splitlines()
    assert table[0].split()[:3] == ["generation", "channel", "context"]
    assert table[1].split()[:4] == ["1", "outbox_gen_1", "platform", "2"]


def test_the_doctor_names_what_is_missing_and_what_comes_next(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("select core.relay_switch('nats', 'dana', 'growth')")
    assert relay_checks(database) == {"relay_missing"}
    stand_for_a_relay(connection)
    assert relay_checks(database) == set()
    publish(connection)
    connection.execute("update core.outbox set next_attempt_at = now() - interval '25 seconds'")
    assert relay_checks(database) == {"relay_lag"}
    assert "Events wait to be sent to nats" in spectral(database, "status").stdout


def relay_checks(database: str) -> set[str]:
    found = json.loads(spectral(database, "doctor", "--json").stdout)["findings"]
    return {each["check"] for each in found if each["check"].startswith("relay_")}


def test_a_login_that_may_only_look_may_not_switch(database: str) -> None:
    with role(database, groups=("spectral_readonly",)) as dsn:
        assert spectral(dsn, "relay", "status").returncode == 0
        refused = spectral(dsn, *SWITCH, "--yes")
    assert refused.returncode == 1
    assert "grant spectral_operator to <role>" in refused.stderr


def test_a_row_that_is_gone_is_told_with_its_remedy(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("delete from core.relay")
    shown = spectral(database, "relay", "status")
    assert shown.returncode == 3
    assert "core.relay is empty" in shown.stderr
    remedy = shown.stderr.partition('-c "')[2].partition('"')[0]
    connection.execute(remedy.encode())
    assert spectral(database, "relay", "status").returncode == 0


# real processes, and a real broker


def variables(database: str, server: NatsServer) -> dict[str, str]:
    return {
        "SPECTRAL_DATABASE_URL": database,
        "SPECTRAL_RELAY": "nats",
        "SPECTRAL_BROKER_URL": server.url,
        "SPECTRAL_LOG_LEVEL": "debug",
    }


def ask(process: WorkerProcess, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", process.wait_for("health is served")["port"], timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def health(process: WorkerProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(process, "/health")[1])
    return found


def is_so(process: WorkerProcess, **wanted: object) -> Callable[[], bool]:
    return lambda: wanted.items() <= health(process).items()


def metric(process: WorkerProcess, line: str) -> bool:
    return line in ask(process, "/metrics")[1].splitlines()


def test_a_relay_stands_until_it_is_switched_to_then_sends_and_workers_deliver(
    database: str, tmp_path: Path, nats_server: NatsServer
) -> None:
    write_app(tmp_path)
    given = variables(database, nats_server)
    with (
        RelayProcess(tmp_path, **given) as relay,
        WorkerProcess(tmp_path, "app:platform", "--health-port", "0", **given) as worker,
    ):
        relay.wait_for("listening")
        eventually(is_so(relay, state="standing", mode="postgres"), "a relay that stands")
        assert ask(relay, "/ready")[0] == 200
        assert "spectral_broker_connected" not in ask(relay, "/metrics")[1].replace("# ", "").split(" ")
        worker.wait_for("started")
        eventually(
            lambda: spectral(database, "relay", "status").stderr.endswith("1 relay is alive: 1 for nats\n"), "counted"
        )
        assert spectral(database, *SWITCH, "--yes").returncode == 0
        eventually(is_so(relay, state="sending", connected=True), "a relay that sends")
        eventually(is_so(worker, takes_from="nats", has_fallen_back=False), "a worker that takes from the broker")
        publish_events(database, "worlds.scan.completed", 20)
        eventually(lambda: Outbox(database).count() == {("delivered", 1): 20}, "delivery")
        assert health(relay)["sent"] >= 20
        assert metric(relay, f'spectral_relay_sent_total{{context="platform"}} {float(health(relay)["sent"])}')
        assert metric(relay, "spectral_broker_connected 1.0")
        assert metric(worker, "spectral_broker_connected 1.0")
        relay.stop(signal.SIGTERM)
        assert relay.end() == 0
        worker.stop()
        assert worker.end() == 0
    for process in (relay, worker):
        assert PASSWORD not in process.text
        assert URL_PASSWORD not in process.text


def test_a_broker_that_is_lost_is_told_and_costs_no_event(
    database: str, tmp_path: Path, nats_server: NatsServer
) -> None:
    write_app(tmp_path)
    given = variables(database, nats_server)
    with (
        RelayProcess(tmp_path, **given) as relay,
        WorkerProcess(tmp_path, "app:platform", "--health-port", "0", **given) as worker,
    ):
        assert spectral(database, *SWITCH, "--yes").returncode == 0
        eventually(is_so(relay, state="sending", connected=True), "a relay that sends")
        eventually(is_so(worker, takes_from="nats"), "a worker that takes from the broker")
        nats_server.kill()
        worker.wait_for("broker lost")
        eventually(is_so(worker, has_fallen_back=True), "a worker that has fallen back")
        assert ask(worker, "/ready")[0] == 200
        assert metric(worker, "spectral_broker_connected 0.0")
        publish_events(database, "worlds.scan.completed", 5)
        eventually(lambda: Outbox(database).count() == {("delivered", 1): 5}, "delivery without the broker")
        nats_server.start()
        worker.wait_for("broker back", times=2)  # the first was the beginning
        eventually(is_so(relay, connected=True), "a relay that is back")
        publish_events(database, "worlds.scan.completed", 5)
        eventually(lambda: Outbox(database).count() == {("delivered", 1): 10}, "delivery over the broker")


def test_a_relay_that_knows_no_broker_does_not_start(database: str, tmp_path: Path) -> None:
    with RelayProcess(tmp_path, SPECTRAL_DATABASE_URL=database) as relay:
        assert relay.end() == 2
        assert "set SPECTRAL_RELAY=nats or redis, and SPECTRAL_BROKER_URL" in relay.text
