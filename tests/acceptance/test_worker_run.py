"""`spectral worker` from its command line to its exit code."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.worker_process import Outbox, WorkerProcess, publish, write_app


def test_drain_empties_the_backlog_and_exits_with_0(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        @platform.on("worlds.scan.started")
        async def in_a_transaction(event: EventEnvelope, tx: Transaction) -> None:
            await tx.execute("select 1")
        """,
    )
    publish(database, "worlds.scan.completed", 120)
    publish(database, "worlds.scan.started", 120)
    with WorkerProcess(tmp_path, "app:platform", "--drain", SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 0
    assert Outbox(database).count() == {("delivered", 1): 240}


@pytest.mark.parametrize("driver", ["python", "binary"])
def test_with_either_driver_and_whatever_it_was_taught_events_are_delivered(
    database: str, tmp_path: Path, driver: str
) -> None:
    """`psycopg` without its extra is all in Python, and knows less of a session; and projects teach it their types."""
    write_app(
        tmp_path,
        """
        import psycopg
        from psycopg.types.json import JsonbDumper

        psycopg.adapters.register_dumper(list, JsonbDumper)

        @platform.on("worlds.scan.started")
        async def in_a_transaction(event: EventEnvelope, tx: Transaction, context: DeliveryContext) -> None:
            await tx.execute("select jsonb_array_length(%s)", [[1, 2]])
            context.logger.info("by", driver=psycopg.pq.__impl__)
            raise ValueError("no")
        """,
    )
    publish(database, "worlds.scan.completed", 2)
    publish(database, "worlds.scan.started")
    with psycopg.connect(database) as connection:
        connection.execute(
            "update core.outbox set next_attempt_at = clock_timestamp() + interval '1 day'"
            " where id = (select id from core.outbox where event_type = 'worlds.scan.completed' limit 1)"
        )
    variables = {"SPECTRAL_DATABASE_URL": database, "PSYCOPG_IMPL": driver}
    with WorkerProcess(tmp_path, "app:platform", "--drain", "--health-port", "0", **variables) as worker:
        assert worker.end() == 0
    assert worker.logged("by")[0]["driver"] == driver
    assert Outbox(database).count() == {("delivered", 1): 1, ("failed", 1): 1, ("pending", 0): 1}


def test_once_claims_once(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    publish(database, "worlds.scan.completed", 30)
    arguments = ("app:platform", "--once", "--concurrency", "5")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 0
    counted = Outbox(database).count()
    assert counted.keys() == {("delivered", 1), ("pending", 0)}
    assert counted["delivered", 1] <= 10


def test_several_consumers_and_lists_of_them_run_in_one_process(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        worlds = Consumer("worlds")

        @worlds.on("platform.card.shown")
        async def shown(event: EventEnvelope) -> None:
            pass

        both = [platform, worlds]
        """,
    )
    arguments = ("app:both", "app:worlds", "--drain")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 0
    assert worker.logged("started")[0]["contexts"] == ["platform", "worlds"]


def test_classes_and_accepted_generations_come_from_flags_or_variables(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    flags = ("app:platform", "--class", "hot", "--class", "cold", "--accept-generations", "0")
    with WorkerProcess(tmp_path, *flags, SPECTRAL_DATABASE_URL=database, SPECTRAL_CLASSES="other") as worker:
        by_flags = worker.wait_for("listening")["channels"]
    variables = {"SPECTRAL_CLASSES": "hot,cold", "SPECTRAL_ACCEPT_GENERATIONS": "0"}
    with WorkerProcess(tmp_path, SPECTRAL_DATABASE_URL=database, **variables) as worker:
        by_variables = worker.wait_for("listening")["channels"]
    expected = [f"outbox_gen_{generation}{kind}" for generation in (1, 0) for kind in ("", "_hot", "_cold")]
    assert by_flags == by_variables == expected


def test_every_log_line_is_one_json_object_that_says_when_and_who(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        r"""
        @platform.on("worlds.scan.failed")
        async def hostile(event: EventEnvelope, context: DeliveryContext) -> None:
            context.logger.info("said", text="a\nb\x1b[2J\x9b")
        """,
    )
    publish(database, "worlds.scan.failed", trace_context=f"00-{'a' * 32}-{'b' * 16}-01")
    variables = {"SPECTRAL_DATABASE_URL": database, "SPECTRAL_ENVIRONMENT": "test", "SPECTRAL_LOG_LEVEL": "debug"}
    with WorkerProcess(tmp_path, "app:platform", "--drain", **variables) as worker:
        assert worker.end() == 0
    assert "\x1b" not in worker.text
    assert "\x9b" not in worker.text
    documents = [json.loads(line) for line in worker.text.splitlines()]
    for line in documents:
        assert list(line)[:3] == ["timestamp", "level", "event"]
        assert datetime.fromisoformat(line["timestamp"]).tzinfo == UTC
        assert (line["service"], line["environment"], line["generation"]) == ("spectral-worker", "test", 1)
    assert worker.logged("said")[0]["text"] == "a\nb\x1b[2J\x9b"
    about = [line for line in documents if line.get("event_id")]
    assert [line["event"] for line in about if line["event"] != "said"] == ["handler ran", "handled"]
    assert {(line["event_id"], line["trace_id"], line["attempts"]) for line in about} == {
        (about[0]["event_id"], "a" * 32, 1)
    }
    assert {line["worker"] for line in about} == {worker.logged("started")[0]["worker"]}
    assert {"claimed", "settled", "stopped"} <= {line["event"] for line in documents}


def test_what_others_say_is_a_line_too_where_nobody_has_configured_logging(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        r"""
        import gc
        import logging
        import warnings

        async def forgotten() -> None:
            raise ValueError("postgresql://me:canary@db/shop")

        @platform.on("worlds.scan.failed")
        async def talks(event: EventEnvelope) -> None:
            logging.getLogger("shop").warning("a\nb\x1b[2J %s", 1)
            logging.getLogger("shop").info("chatter")
            warnings.warn("old\nways", UserWarning)
            task = asyncio.create_task(forgotten())
            await asyncio.wait([task])
            del task
            gc.collect()
        """,
    )
    publish(database, "worlds.scan.failed", trace_context=f"00-{'a' * 32}-{'b' * 16}-01")
    with WorkerProcess(tmp_path, "app:platform", "--drain", SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 0
    documents = [json.loads(line) for line in worker.text.splitlines()]
    others = {line["logger"]: line for line in documents if "logger" in line}
    assert set(others) == {"shop", "py.warnings", "asyncio"}
    assert others["shop"]["event"] == "a\nb\x1b[2J 1"
    assert others["shop"]["trace_id"] == "a" * 32
    assert others["py.warnings"]["event"].startswith("UserWarning: old\nways (")
    assert others["asyncio"]["level"] == "error"
    assert "forgotten" in others["asyncio"]["exception"]
    assert others["asyncio"]["event"] == "Task exception was never retrieved"
    assert "canary" not in worker.text
    assert "\x1b" not in worker.text


def test_a_log_level_that_there_is_not_is_2_and_names_those_there_are(tmp_path: Path) -> None:
    write_app(tmp_path)
    variables = {"SPECTRAL_DATABASE_URL": "postgresql://nowhere", "SPECTRAL_LOG_LEVEL": "loud"}
    with WorkerProcess(tmp_path, **variables) as worker:
        assert worker.end() == 2
    assert "set it to one of debug, info, warning, error" in worker.text


def test_whoever_configures_structlog_keeps_it(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        import sys
        import structlog
        structlog.configure(
            processors=[structlog.processors.KeyValueRenderer()],
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
        """,
    )
    with WorkerProcess(tmp_path, "app:platform", "--drain", SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 0
    assert "event='started'" in worker.text
    assert worker.lines == []


def test_in_a_project_s_own_structlog_every_line_says_who_speaks_too(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        import sys
        import structlog
        structlog.configure(
            processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )

        @platform.on("worlds.scan.failed")
        async def talks(event: EventEnvelope, context: DeliveryContext) -> None:
            context.logger.info("said")
        """,
    )
    publish(database, "worlds.scan.failed")
    variables = {
        "SPECTRAL_ENVIRONMENT": "test",
        "OTEL_TRACES_EXPORTER": "nonsense",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_METRICS_EXPORTER": "none",
        "SENTRY_DSN": "nonsense",
    }
    arguments = ("app:platform", "--health-port", "0")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database, **variables) as worker:
        worker.wait_for("handled")
        worker.wait_for("this worker measures the database")
        worker.stop()
        assert worker.end() == 0
    of_the_process = {"telemetry is off", "error reports are off", "health is served", "told to stop"}
    assert of_the_process | {"said", "started", "stopped"} <= {line["event"] for line in worker.lines}
    assert len(worker.lines) == len(worker.text.splitlines())
    for line in worker.lines:
        assert (line["service"], line["environment"], line["generation"]) == ("spectral-worker", "test", 1), line
        assert {"level", "trace_id"} <= line.keys(), line


@pytest.mark.parametrize(
    ("app", "said", "advice"),
    [
        ("nowhere:platform", "there is no module 'nowhere'", "or install its package"),
        ("app:other", "app has no 'other'", "it has app:platform; name one of these"),
        ("app:quick", "app:quick is not a Consumer", "it has app:platform; name one of these"),
        ("app", "'app' names no consumer", "such as 'shop.events:billing'"),
        ("broken:platform", "broken cannot be imported: ValueError: no good", "SPECTRAL_DEBUG=1 shows where"),
    ],
)
def test_an_app_that_cannot_be_run_is_2_and_says_what_to_do(tmp_path: Path, app: str, said: str, advice: str) -> None:
    write_app(tmp_path)
    (tmp_path / "broken.py").write_text("raise ValueError('no good')")
    with WorkerProcess(tmp_path, app, SPECTRAL_DATABASE_URL="postgresql://nowhere") as worker:
        assert worker.end() == 2
    assert worker.text.startswith(f"error: {said}")
    assert worker.text.rstrip().endswith(advice)
    assert len(worker.text.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SPECTRAL_GENERATION": ""}, "SPECTRAL_GENERATION is not set"),
        ({"SPECTRAL_GENERATION": "next"}, "SPECTRAL_GENERATION='next' is not a generation"),
        ({"SPECTRAL_DATABASE_URL": ""}, "no database is named"),
        ({"SPECTRAL_GENERATION": "0"}, "generation 0 is retired"),
    ],
)
def test_settings_that_make_no_sense_are_2(database: str, tmp_path: Path, variables: dict[str, str], said: str) -> None:
    write_app(tmp_path)
    with WorkerProcess(tmp_path, **{"SPECTRAL_DATABASE_URL": database, **variables}) as worker:
        assert worker.end() == 2
    assert f"error: {said}" in worker.text


def test_a_handler_on_record_that_is_lacking_is_2_unless_told_to_forget_it(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    with psycopg.connect(database) as connection:
        connection.execute(
            "insert into core.subscriptions (generation, context, event_type, handler_name, max_attempts)"
            " values (1, 'platform', 'worlds.scan.completed', 'platform.of_yesterday', 3)"
        )
    with WorkerProcess(tmp_path, "app:platform", "--drain", SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 2
    assert "platform.of_yesterday" in worker.text
    assert "--replace-subscriptions" in worker.text
    arguments = ("app:platform", "--drain", "--replace-subscriptions")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as forgetful:
        assert forgetful.end() == 0


def test_a_database_that_is_down_is_waited_for_without_showing_its_password(tmp_path: Path) -> None:
    write_app(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        dsn = f"postgresql://me:canary@127.0.0.1:{closed.getsockname()[1]}/app"
        with WorkerProcess(tmp_path, SPECTRAL_DATABASE_URL=dsn) as worker:
            worker.wait_for("database lost", doing="subscribe", times=2)
            worker.stop()
            assert worker.end() == 0
    assert "canary" not in worker.text


@pytest.mark.parametrize("arguments", [("--drain",), ("--once",), ("--drain", "--processes", "2")], ids=" ".join)
def test_one_that_ends_by_itself_gives_up_a_database_that_is_not_there_with_75(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    write_app(
        tmp_path,
        """
        from spectral.core.events import WorkerSettings

        # The default that all settings share: nobody has a minute.
        object.__setattr__(WorkerSettings(generation=1).times, "start", timedelta(seconds=0.4))
        """,
    )
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        dsn = f"postgresql://worker:secret-word@127.0.0.1:{taken.getsockname()[1]}/nowhere"
        with WorkerProcess(tmp_path, "app:platform", *arguments, SPECTRAL_DATABASE_URL=dsn) as worker:
            assert worker.end() == 75
    told = [line for line in worker.text.splitlines() if not line.startswith("{")]
    assert len(told) == (2 if "2" in arguments else 1)
    for line in told:
        assert line.startswith("error: the database was not there within 0.4 s, nothing was started (")
        assert "SPECTRAL_DATABASE_URL" in line
    assert worker.logged("crashed") == []
    assert "secret-word" not in worker.text


def test_a_generation_that_looks_like_a_slip_is_a_warning(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    variables = {"SPECTRAL_DATABASE_URL": database, "SPECTRAL_GENERATION": "77"}
    with WorkerProcess(tmp_path, "app:platform", "--drain", **variables) as worker:
        assert worker.end() == 0
    (line,) = worker.logged("never allocated")
    assert line["level"] == "warning"
    assert line["advice"] == "generation 77 was never allocated; live is 1: check SPECTRAL_GENERATION"


def test_a_worker_that_crashes_says_so_once_and_exits_with_1(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        from spectral.core.events import failpoints

        def fail(name: str) -> None:
            if name == "claim.before":
                raise ZeroDivisionError("a bug of ours")

        failpoints.arm(fail)
        """,
    )
    with WorkerProcess(tmp_path, SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 1
    (crash,) = worker.logged("crashed", level="critical")
    assert "ZeroDivisionError: a bug of ours" in crash["error"]
    assert "Traceback" not in worker.text
    with WorkerProcess(tmp_path, SPECTRAL_DATABASE_URL=database, SPECTRAL_DEBUG="1") as debugged:
        assert debugged.end() == 1
    assert "Traceback" in debugged.text


def test_once_and_drain_exclude_each_other(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path, "app:platform", "--once", "--drain", SPECTRAL_DATABASE_URL="") as worker:
        assert worker.end() == 2
    assert "exclude each other" in worker.text
