"""The runbook, run: every section on a database of its own, every query and command in it from top to bottom.

Placeholders (`<event-id>`) are filled in by the queries below, when a section begins; the page says what they mean.
Logins are as the page says: an operator, unless the first line of a query names another; a worker's for `spectral
worker`, one in retention for `spectral retention run`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from spectral.core.embedded import PostgresServer, database_of, with_database
from spectral.core.migrations.statements import split
from tests.acceptance.cli_desk import Desk, Ran, copied, prepared
from tests.migrations.schema import role

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/runbooks/event-substrate.md"
GLANCE: Final = "At a glance"

_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"<[a-z-]+>")
_EXITS: Final = re.compile(r"# exits with (\d+)$")
_AS: Final = re.compile(r"-- as (?:the |a )?(\w+)\n")

PLACEHOLDERS: Final = {
    "<event-id>": "select id from core.dead_letters where error_class = 'ValueError' order by id limit 1",
    "<another-event-id>": "select id from core.dead_letters where error_class = 'ValueError' order by id desc limit 1",
    "<generation>": "select generation from core.live_generation",
    "<old-generation>": (
        "select max(generation) from core.deployments where generation < (select generation from core.live_generation)"
    ),
    "<next-generation>": "select max(generation) from core.deployments where status = 'allocated'",
    "<pid>": "select pid from pg_stat_activity where application_name = 'holder' and datname = current_database()",
    "<app>": "select 'scans:platform'",
}

# What has happened before the section is opened, by its title.
SCENES: Final = {
    "Roll back": "select core.deployment_promote(2)",
    "Rows left behind": "select core.deployment_promote(2)",
    "Retire is blocked": "select core.deployment_promote(2)",
    "Broadcasts reach nobody": "delete from core.subscriptions",
    "The broker or the relay is gone": "select core.relay_switch('nats', 'ada', 'growth')",
}
IN_MONTHS: Final = "Partitions are missing"
# What another session does meanwhile.
HOLDERS: Final = {
    "The NOTIFY queue fills up": "listen outbox_gen_1; begin; select 1",
    "A transaction that holds vacuum up": "begin isolation level repeatable read; select 1 from core.outbox",
    "The outbox is locked": "begin; lock table core.outbox in exclusive mode",
}
DOWN: Final = "The database is down"
_NOWHERE: Final = "postgresql://127.0.0.1:1/app"

# What has to be so at the end of the section; sections that only look are not here.
OUTCOMES: Final = {
    "Events wait": "select not exists (select from core.outbox where status = 'pending' and target is not null)",
    "Broadcasts reach nobody": "select exists (select from core.subscriptions where context = 'platform')",
    "Replay": (
        "select status = 'pending' and attempts = 0 and jsonb_array_length(failure_history) = 1"
        " from core.outbox where id = '<event-id>'"
    ),
    "Discard, and take it back": (
        "select status = 'failed' and deleted_at is null and (select count(*) from core.audit"
        " where action in ('discard', 'undo_discard') and event_ids @> array[outbox.id]) = 2"
        " from core.outbox where id = '<event-id>'"
    ),
    "Stale claims": "select not exists (select from core.outbox where status = 'in_flight')",
    "The NOTIFY queue fills up": "select not exists (select from pg_stat_activity where application_name = 'holder')",
    "Poll only": "select mode = 'bell' from core.bell",
    "Deploy a generation": "select generation = <next-generation> from core.live_generation",
    "Roll back": "select generation = <old-generation> from core.live_generation",
    "Rows left behind": (
        "select not exists (select from core.outbox where generation = <old-generation> and status = 'pending')"
    ),
    "Retire is blocked": "select status <> 'retired' from core.deployments where generation = <old-generation>",
    "The emergency brake": "select not exists (select from core.brakes)",
    "The sweep is overdue": "select finished_at is not null and name is null from core.sweeper",
    "A transaction that holds vacuum up": (
        "select not exists (select from pg_stat_activity where application_name = 'holder')"
    ),
    "The outbox is locked": "select not exists (select from pg_stat_activity where application_name = 'holder')",
    "The broker or the relay is gone": "select mode = 'postgres' from core.relay",
    IN_MONTHS: "select count(*) >= 3 from core.outbox_partitions() where kind = 'month'",
    "Rows on the default channel": "select count(*) = 2 from core.outbox where payload ? 'scan'",
}

_APP: Final = """
from spectral.core.events import Consumer, EventEnvelope

platform = Consumer("platform")

@platform.on("worlds.scan.completed")
async def index_scan(event: EventEnvelope) -> None: ...
"""


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    blocks: tuple[tuple[str, str], ...]


def sections() -> list[Section]:
    _, *parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    return [Section(part.partition("\n")[0], part, tuple(_BLOCK.findall(part))) for part in parts]


SECTIONS: Final = sections()


@dataclass
class OnDuty:
    """Whoever follows the page: with a login for each part, and values for what it leaves open."""

    owner: str
    logins: dict[str, str]
    directory: Path
    values: dict[str, str] = field(default_factory=dict)
    is_down: bool = False

    def fill(self, code: str) -> str:
        """The code with values for its placeholders; each keeps the value it has first had."""
        with psycopg.connect(self.owner, autocommit=True) as connection:
            for name in dict.fromkeys(_PLACEHOLDER.findall(code)):
                if name not in self.values:
                    found = connection.execute(PLACEHOLDERS[name].encode()).fetchone()
                    if found is not None and found[0] is not None:
                        self.values[name] = str(found[0])
        return _PLACEHOLDER.sub(lambda found: self.values.get(found[0], found[0]), code)

    def run_sql(self, code: str) -> None:
        marked = _AS.match(code)
        dsn = self.logins[marked[1] if marked else "operator"]
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statement in split(self.fill(code)):
                connection.execute(statement.text.encode())

    def run_bash(self, line: str) -> None:
        exits = _EXITS.search(line)
        words = shlex.split(self.fill(line), comments=True)
        if "worker" in words:
            ran = Desk(self.logins["worker"], self.directory).shell(self.fill(line))
        else:
            assert words[0] == "spectral", line
            ran = self._spectral(words[1:])
        # These two also tell of what the other sections are about.
        allowed = {int(exits[1])} if exits else {0, 4} if words[1] in {"status", "doctor"} else {0}
        assert ran.code in allowed, f"{line}\n{ran.out}{ran.err}"

    def _spectral(self, arguments: list[str]) -> Ran:
        dsn = self.logins["retention" if arguments[:2] == ["retention", "run"] else "operator"]
        quicker = ["--interval", "0.1"] if arguments[0] == "top" else []
        return Desk(_NOWHERE if self.is_down else dsn, self.directory).spectral(*arguments, *quicker)


@pytest.fixture(scope="module")
def template(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    with prepared(postgres, migrated_template) as name:
        yield name


@pytest.fixture(scope="module")
def roles(postgres: PostgresServer, template: str) -> Iterator[dict[str, str]]:
    """The DSN of each login."""
    dsn = with_database(postgres.dsn, template)
    groups = {
        "operator": ("spectral_operator",),
        "retention": ("spectral_retention",),
        "publisher": ("spectral_publisher",),
        "worker": ("spectral_worker", "spectral_publisher"),
    }
    with ExitStack() as stack:
        yield {name: stack.enter_context(role(dsn, groups=given)) for name, given in groups.items()}


@pytest.fixture
def on_duty(postgres: PostgresServer, template: str, roles: dict[str, str], tmp_path: Path) -> Iterator[OnDuty]:
    (tmp_path / "scans.py").write_text(_APP)
    with copied(postgres, template) as dsn:
        logins = {name: with_database(login, database_of(dsn)) for name, login in roles.items()}
        yield OnDuty(dsn, {**logins, "owner": dsn, "superuser": dsn}, tmp_path)


@contextmanager
def holding(dsn: str, statements: str) -> Iterator[None]:
    """Another session that has done this and sits there, until somebody ends it."""
    connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True, application_name="holder")
    try:
        for statement in split(statements):
            connection.execute(statement.text.encode())
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_the_section_runs_from_top_to_bottom(on_duty: OnDuty, section: Section) -> None:
    with ExitStack() as stack:
        with psycopg.connect(on_duty.owner, autocommit=True) as connection:
            connection.execute(SCENES.get(section.title, "select 1").encode())
        if section.title == IN_MONTHS:
            assert Desk(on_duty.owner, on_duty.directory).spectral("partitions", "enable", "--yes").code == 0
        stack.enter_context(holding(on_duty.owner, HOLDERS.get(section.title, "select 1")))
        on_duty.fill(section.text)
        on_duty.is_down = section.title == DOWN
        for language, code in section.blocks:
            match language:
                case "sql":
                    on_duty.run_sql(code)
                case "bash":
                    for line in code.splitlines():
                        on_duty.run_bash(line)
                case _:
                    pytest.fail(f"a block in {language}, which nothing runs")
        if section.title in OUTCOMES:
            with psycopg.connect(on_duty.owner, autocommit=True) as connection:
                assert connection.execute(on_duty.fill(OUTCOMES[section.title]).encode()).fetchone() == (True,)


def test_scenes_and_outcomes_are_of_sections_that_exist() -> None:
    assert {*SCENES, *HOLDERS, *OUTCOMES, DOWN, IN_MONTHS} <= {section.title for section in SECTIONS}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_every_section_has_a_command_a_query_and_a_way_back(section: Section) -> None:
    assert {language for language, _ in section.blocks} == {"bash", "sql"}
    if section.title != GLANCE:
        for part in ("**See.**", "**Undo.**"):
            assert part in section.text


def test_every_check_of_the_doctor_leads_to_a_section() -> None:
    (glance,) = (section.text for section in SECTIONS if section.title == GLANCE)
    assert set(re.findall(r"`([a-z_]+)`", glance.partition("| check |")[2])) == checks()


def checks() -> set[str]:
    """The names that findings are given, wherever they are made."""
    found: set[str] = set()
    for path in (ROOT / "src/spectral/core/operations").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                first = node.args[0] if node.args else node.keywords[0].value
                assert isinstance(first, ast.Constant), f"{path}: the name of a check is not a literal"
                found.add(str(first.value))
    return found


def test_links_within_the_page_lead_to_sections() -> None:
    slugs = {re.sub(r"[^a-z0-9 -]", "", section.title.lower()).replace(" ", "-") for section in SECTIONS}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE.read_text())) <= slugs
