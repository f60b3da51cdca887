"""Every block of code in the README and the docs is run, top to bottom, page by page; generated pages are current."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from fastapi.testclient import TestClient

from docs.generate import pages
from spectral.core.embedded import PostgresServer, database_of
from spectral.core.migrations.lint import lint_sql
from tests.conformance.drivers import configure_django
from tests.integration.relay.nats_server import nats_server

__all__ = ["nats_server"]  # a fixture

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN: Final = {"text", "json", "mermaid"}  # output, data and drawings, not input
_ELSEWHERE: Final = {"event-substrate.md", "add-a-context.md"}  # test_runbook and test_new_project run these
_WITH_A_BROKER: Final = {"relay-to-a-broker.md"}
_SETUP: Final = ("make demo", "make test")  # what CI runs on a fresh clone


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(language, code) for language, code in _BLOCK.findall(page.read_text()) if language not in _NOT_RUN]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and page.name not in _ELSEWHERE], ids=page_name
)
@pytest.mark.timeout(240)
def test_every_block_of_the_page_runs(
    page: Path,
    postgres: PostgresServer,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    # Pages about migrations begin with nothing; the others with a database that has the schema.
    dsn = postgres.create_database() if "migrat" in page.name else database
    request.getfixturevalue("monkeypatch").setenv("SPECTRAL_DATABASE_URL", dsn)
    configure_django(dsn)
    variables = {"SPECTRAL_DATABASE_URL": dsn}
    if page.name in _WITH_A_BROKER:
        variables["SPECTRAL_BROKER_URL"] = request.getfixturevalue("nats_server").url
    names: dict[str, Any] = {"__name__": "documentation", "dsn": dsn}
    roles: set[str] = set()
    for language, code in blocks(page):
        match language:
            case "python":
                exec(compile(code, page.name, "exec"), names)  # noqa: S102  the pages are ours
            case "sql" if page.name == "migration-lint.md":  # an example for the lint, about tables that are not ours
                assert lint_sql(code, path=Path("20990101000000_example.sql")) == []
            case "sql":
                roles.update(re.findall(r"create role (\w+)", code))
                _run_sql(dsn, code)
            case "bash":
                _run_bash(variables, code, tmp_path)
            case _:
                pytest.fail(f"{page_name(page)} has a block in {language}, which nothing runs")
    _close_django()
    _drop_roles(dsn, roles)
    if page.name == "publish.md":
        with psycopg.connect(dsn) as connection:
            row = connection.execute("select count(*), count(distinct idempotency_key) from core.outbox").fetchone()
        assert row is not None
        assert row[0] == row[1] > 10_000
    if page.name == "README.md":
        # the worker's last lines may come after it
        assert "[('orders.order.placed', 'delivered', 42)]" in capsys.readouterr().out
    if dsn != database:
        postgres.drop_database(database_of(dsn))


def test_what_the_application_of_the_page_publishes_is_delivered_inside_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECTRAL_DATABASE_URL", database)
    monkeypatch.setenv("SPECTRAL_GENERATION", "1")
    monkeypatch.setenv("SPECTRAL_CONTEXTS", "orders,billing")
    page = blocks(ROOT / "docs" / "how-to" / "run-workers.md")
    (table,) = [code for language, code in page if language == "sql"]
    (application,) = [code for language, code in page if language == "python" and "FastAPI(" in code]
    _run_sql(database, table)
    names: dict[str, Any] = {"__name__": "documentation"}
    exec(compile(application, "run-workers.md", "exec"), names)  # noqa: S102  the pages are ours
    with TestClient(names["app"]) as client, psycopg.connect(database, autocommit=True) as connection:
        client.post("/orders/42").raise_for_status()
        deadline = time.monotonic() + 40
        asked = "select status from core.outbox join orders on orders.id = (payload ->> 'order')::bigint"
        while connection.execute(asked).fetchall() != [("delivered",)]:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # that a row is settled nobody is notified of


def test_the_application_of_the_page_serves_its_worker_s_numbers(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECTRAL_DATABASE_URL", database)
    monkeypatch.setenv("SPECTRAL_GENERATION", "1")
    monkeypatch.setenv("SPECTRAL_CONTEXTS", "orders,billing")
    page = blocks(ROOT / "docs" / "how-to" / "observe.md")
    (application,) = [code for language, code in page if language == "python" and "FastAPI(" in code]
    names: dict[str, Any] = {"__name__": "documentation"}
    exec(compile(application, "observe.md", "exec"), names)  # noqa: S102  the pages are ours
    with TestClient(names["app"]) as client:
        deadline = time.monotonic() + 40
        while "spectral_emitter_up 1.0" not in (served := client.get("/metrics")).text:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # it first looks within three seconds
    assert 'spectral_worker_state{state="idle"} 1.0' in served.text
    assert served.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def _run_sql(dsn: str, code: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(code.encode())


def _run_bash(variables: dict[str, str], code: str, directory: Path) -> None:
    commands = "\n".join(line for line in code.splitlines() if not line.startswith(_SETUP))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=directory,
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/nonexistent",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _close_django() -> None:
    from django.db import connections  # noqa: PLC0415  Django has to be configured first

    connections.close_all()


def _drop_roles(dsn: str, roles: set[str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for role in roles:
            connection.execute(psycopg.sql.SQL("drop role {}").format(psycopg.sql.Identifier(role)))


def test_generated_pages_are_current() -> None:
    # Made here and not where tests are collected: every process of a run collects, and asking each command for its
    # help takes seconds.
    stale = [path.name for path, text in pages().items() if path.read_text() != text]
    assert stale == [], "run: make docs"


_LINK: Final = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_the_readme_fits_one_screen_before_the_quickstart() -> None:
    introduction, _, _ = (ROOT / "README.md").read_text().partition("## Quickstart")
    assert len(introduction.splitlines()) <= 25
    for needed in ("make demo", "make test"):
        assert needed in introduction


def test_the_readme_says_which_distribution_this_is() -> None:
    text = (ROOT / "README.md").read_text()
    assert "pip install 'spectral-events" in text
    assert "(`spectral` on the package index\nis another project.)" in text
