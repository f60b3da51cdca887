"""`docs/how-to/add-a-context.md`, followed to the letter in a project of its own that has installed the wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "how-to" / "add-a-context.md"
_BLOCK: Final = re.compile(r"^```(?P<language>bash|sql|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"\A(?:#|--) (?P<path>[\w/]+\.(?:py|sql))\n(?P<text>.*)\Z", re.DOTALL)
_SHOWN: Final = re.compile(r"^```text\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
_ROLES: Final = ("orders_app", "billing_app")


@dataclass(frozen=True)
class Project:
    """A directory, and the environment of somebody who works in it."""

    directory: Path
    environ: dict[str, str]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def install_wheel(directory: Path) -> Path:
    """A fresh environment with the wheel, and the directory of its commands.

    Nothing is downloaded: the dependencies are those of this environment, appended to the path. The checkout's editable
    install stays out, for only a site directory's own .pth files are read.
    """
    for command in (
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory / "dist")],
        [sys.executable, "-m", "venv", "--without-pip", str(directory / "venv")],
    ):
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (directory / "dist").glob("spectral_events-*.whl")
    python = directory / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (site_packages,) = (directory / "venv" / "lib").glob("python*/site-packages")
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    (site_packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return python.parent


@pytest.fixture
def project(tmp_path: Path, empty_database: str) -> Iterator[Project]:
    """An empty directory outside the checkout, an empty database, and the wheel."""
    directory = tmp_path / "shop"
    directory.mkdir()
    environ = {
        "PATH": f"{install_wheel(tmp_path)}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SPECTRAL_DATABASE_URL": empty_database,
    }
    yield Project(directory, environ)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        for role in _ROLES:  # they belong to the server, not to the database
            if connection.execute("select from pg_roles where rolname = %s", [role]).fetchone():
                connection.execute(f"drop owned by {role}; drop role {role}".encode())


def follow(page: str, project: Project) -> str:
    """Write the page's files and type its commands, in its order; answers what they printed."""
    printed, exports = "", ""
    for block in _BLOCK.finditer(page):
        if file := _FILE.match(block["code"]):
            path = project.directory / file["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file["text"])
            continue
        assert block["language"] == "bash", f"neither a file nor a command: {block['code']}"
        done = project.run(exports + block["code"])
        assert done.returncode == 0, f"{block['code']}\n{done.stdout}\n{done.stderr}"
        printed += done.stdout + done.stderr
        exports += "".join(line for line in block["code"].splitlines(keepends=True) if line.startswith("export "))
    return printed


@pytest.mark.timeout(180)
def test_a_project_made_from_the_page_delivers_its_event_and_keeps_its_promise(
    project: Project, empty_database: str
) -> None:
    where = project.run("python -c 'import spectral, spectral_ops; print(spectral.__file__, spectral_ops.__file__)'")
    assert str(ROOT) not in where.stdout
    assert where.stdout.count("/venv/") == 2

    printed = follow(PAGE.read_text(), project)
    assert "orders: 1 event type(s), all fits" in printed
    with psycopg.connect(empty_database) as connection:
        events = connection.execute("select event_type, target, generation, status, attempts from core.outbox")
        assert events.fetchall() == [("orders.order.placed", "billing", 1, "delivered", 1)]
        invoices = connection.execute(
            "select i.email, i.cents from billing.invoices i join orders.orders using (order_id)"
        )
        assert invoices.fetchall() == [("ada@example.com", 4200)]
    listed = project.run("spectral events list --type orders.order.placed --json")
    assert [each["status"] for each in json.loads(listed.stdout)["items"]] == ["delivered"]

    _neither_context_has_a_right_to_the_other(empty_database)
    _each_process_has_the_rights_of_its_context_only(project)
    _a_removed_field_is_refused_as_the_page_shows(project)


def _neither_context_has_a_right_to_the_other(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for role, table in (("orders_app", "billing.invoices"), ("billing_app", "orders.orders")):
            connection.execute(f"set role {role}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select from {table}".encode())
            connection.execute("reset role")


def _each_process_has_the_rights_of_its_context_only(project: Project) -> None:
    """The same commands as on the page, each under the other's role."""
    names = "SPECTRAL_GENERATION=1 SPECTRAL_CONTEXTS=orders,billing"
    for role, command, told in (
        ("billing_app", "python -m orders.place_order ada@example.com 4200", "permission denied for schema orders"),
        ("orders_app", "spectral worker billing.consumer:billing --drain", "this role may not deliver events"),
    ):
        refused = project.run(f'{names} PGOPTIONS="-c role={role}" {command}')
        assert refused.returncode != 0
        assert told in refused.stderr


def _a_removed_field_is_refused_as_the_page_shows(project: Project) -> None:
    contract = project.directory / "orders" / "contracts" / "events" / "order_placed.py"
    text = (
        contract.read_text()
        .replace('email="ada@example.com", ', "")
        .replace("VERSION: Final = 1", "VERSION: Final = 2")
    )
    contract.write_text("".join(line for line in text.splitlines(keepends=True) if "email: str" not in line))
    shown = _SHOWN.search(PAGE.read_text())
    assert shown is not None
    refused = project.run(shown["command"])
    assert refused.returncode == 1
    assert refused.stdout == shown["output"]
    assert "breaks billing.write_invoice" in refused.stdout
    checked = project.run("spectral catalog check --package orders --app billing.consumer:billing")
    assert checked.returncode == 1
    assert "billing.write_invoice" in checked.stdout
