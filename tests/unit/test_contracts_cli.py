"""`spectral catalog` in a project of somebody else: what CI sees, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.unit.test_contracts_discover import ORDER_PLACED, renamed, write_contract

SPECTRAL: Final = str(Path(sys.executable).with_name("spectral"))
BILLING: Final = """
from pydantic import BaseModel

from spectral.core.events import Consumer

billing = Consumer("billing")


class OrderPlacedEvent(BaseModel):
    email: str


@billing.on("shop.order.placed")
async def send_invoice(event: OrderPlacedEvent) -> None: ...
"""
WITHOUT_EMAIL: Final = (
    ORDER_PLACED.replace('    email: str = Field(description="Where the invoice goes.")\n', "")
    .replace(', email="ada@example.com"', "")
    .replace("VERSION: Final = 1", "VERSION: Final = 2")
)
WITH_NOTE: Final = ORDER_PLACED.replace(
    "    email:", '    note: str = Field(default="", description="What the customer said.")\n    email:'
).replace("VERSION: Final = 1", "VERSION: Final = 2")


def spectral(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SPECTRAL, "catalog", *arguments],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "SPECTRAL_CONTRACT_PACKAGES": "shop", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def git(project: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one contract and one consumer, committed."""
    write_contract(tmp_path, ORDER_PLACED)
    (tmp_path / "billing.py").write_text(BILLING)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "release 1")
    return tmp_path


def test_a_project_that_fits_passes(project: Path) -> None:
    ran = spectral(project, "check", "--app", "billing:billing", "--json")
    assert (ran.returncode, ran.stderr) == (0, "shop: 1 event type(s), all fits; 1 handler(s) checked\n")
    assert json.loads(ran.stdout) == {
        "fits": True,
        "packages": ["shop"],
        "event_types": ["shop.order.placed"],
        "handlers": 1,
        "findings": [],
        "problems": [],
    }


def test_a_removed_field_fails_the_check_and_names_the_consumer(project: Path) -> None:
    write_contract(project, WITHOUT_EMAIL)
    ran = spectral(project, "check", "--app", "billing:billing")
    assert ran.returncode == 1
    assert ran.stdout == (
        "breaks billing.send_invoice: shop.order.placed: email is never written, "
        "and billing.send_invoice cannot do without it\n"
        "  try: remove it from the model, or ask the owner to add it\n"
    )


DOUBTFUL: Final = (
    "doubtful: nobody who reads the events was looked at\n  try: name the consumers with --app module:attribute\n"
)


def test_a_verdict_without_a_handler_is_told_to_be_doubtful(project: Path) -> None:
    checked = spectral(project, "check")
    assert (checked.returncode, checked.stdout) == (0, "")
    assert checked.stderr == f"shop: 1 event type(s), all fits; 0 handler(s) checked\n{DOUBTFUL}"
    compared = spectral(project, "diff", "HEAD")
    assert compared.stderr == f"HEAD: 0 change(s), nothing breaks; 0 handler(s) checked\n{DOUBTFUL}"


def test_a_module_that_breaks_the_convention_fails_the_check(project: Path) -> None:
    write_contract(project, ORDER_PLACED.replace("EXAMPLES", "SAMPLES"))
    ran = spectral(project, "check")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: shop.contracts.events.order_placed: it has no examples; write EXAMPLES")


def test_a_successor_without_a_deadline_fails_the_check(project: Path) -> None:
    write_contract(project, renamed(ORDER_PLACED, "order_placed_v2", "order.placed.v2"), name="order_placed_v2")
    ran = spectral(project, "check")
    assert ran.returncode == 1
    assert ran.stdout.startswith("wrong: shop.order.placed is succeeded by shop.order.placed.v2 and has no deadline\n")


def test_a_removed_field_breaks_the_diff_with_a_revision_and_the_working_tree_is_left_alone(project: Path) -> None:
    write_contract(project, WITHOUT_EMAIL)
    before = sorted(project.rglob("*"))
    ran = spectral(project, "diff", "HEAD", "--app", "billing:billing")
    assert ran.returncode == 1
    assert ran.stdout == (
        "breaking: shop.order.placed: email is gone\n"
        "  consumers that read it get nothing\n"
        "  breaks billing.send_invoice\n"
        "  instead: keep writing it, under its old name too; or publish shop.order.placed.v2\n"
    )
    assert ran.stderr == "HEAD: 1 change(s), consumers break; 1 handler(s) checked\n"
    assert [each for each in sorted(project.rglob("*")) if "__pycache__" not in each.parts] == before


def test_an_added_field_passes_the_diff(project: Path) -> None:
    write_contract(project, WITH_NOTE)
    ran = spectral(project, "diff", "HEAD", "--json")
    assert ran.returncode == 0
    document = json.loads(ran.stdout)
    assert document["compatible"]
    assert [(each["kind"], each["path"], each["breaks"]) for each in document["changes"]] == [("additive", "note", [])]


def test_a_renamed_event_breaks_the_diff(project: Path) -> None:
    file = write_contract(project, ORDER_PLACED)
    file.unlink()
    write_contract(project, renamed(ORDER_PLACED, "order_sent", "order.sent"), name="order_sent")
    ran = spectral(project, "diff", "HEAD", "--app", "billing:billing")
    assert ran.returncode == 1
    assert "shop.order.placed is gone; shop.order.sent has the same fields: was it renamed?" in ran.stdout
    assert "breaks billing.send_invoice" in ran.stdout


def test_a_package_that_the_revision_lacks_is_refused_unless_it_is_said_to_be_new(project: Path) -> None:
    write_contract(
        project,
        renamed(ORDER_PLACED, "bill_sent", "x").replace("shop.x", "bills.bill.sent"),
        name="bill_sent",
        package="bills",
    )
    refused = spectral(project, "diff", "HEAD", "--package", "shop", "--package", "bills")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "has no contracts of bills; if the package is new: --allow-new-package" in refused.stderr
    ran = spectral(project, "diff", "HEAD", "--package", "bills", "--allow-new-package")
    assert (ran.returncode, ran.stdout) == (0, "additive: bills.bill.sent is new\n  nobody reads it yet\n")


def test_a_module_that_the_revision_lacks_is_not_read_from_the_working_tree(project: Path) -> None:
    """Packages without `__init__.py` are put together from every directory there is."""
    for file in (project / "shop").rglob("__init__.py"):
        file.unlink()
    git(project, "commit", "--quiet", "--all", "--message", "namespace packages")
    events = project / "shop" / "contracts" / "events"
    (events / "order_sent.py").write_text(renamed(ORDER_PLACED, "order_sent", "order.sent"))
    ran = spectral(project, "diff", "HEAD")
    assert (ran.returncode, ran.stdout) == (0, "additive: shop.order.sent is new\n  nobody reads it yet\n")


def test_a_released_snapshot_is_a_base_too(project: Path) -> None:
    ran = spectral(project, "snapshot", "--output", "contracts.json")
    assert ran.stderr == "contracts.json: 1 event type(s)\n"
    assert spectral(project, "snapshot").stdout == (project / "contracts.json").read_text()
    assert spectral(project, "diff", "contracts.json").returncode == 0
    write_contract(project, WITHOUT_EMAIL)
    assert spectral(project, "diff", "contracts.json").returncode == 1


def test_a_file_called_like_a_branch_does_not_hide_it_but_a_snapshot_does(project: Path) -> None:
    for name in ("release", "release.json"):
        git(project, "branch", name)
        (project / name).write_text("{}")
    assert spectral(project, "diff", "release").stdout == ""
    assert spectral(project, "diff", "release.json").stdout.startswith("additive: shop.order.placed is new\n")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("v9", "'v9' is neither a snapshot file nor a revision"),
        ("--output=/tmp/x", "No such option"),
        ("billing.py", "billing.py is no snapshot of contracts"),
    ],
)
def test_a_base_that_is_none_is_told(project: Path, base: str, message: str) -> None:
    ran = spectral(project, "diff", base)
    assert ran.returncode in {1, 2}
    assert message in ran.stderr


def test_a_revision_whose_contracts_cannot_be_read_is_told(project: Path) -> None:
    write_contract(project, "import nowhere")
    git(project, "commit", "--quiet", "--all", "--message", "broken")
    write_contract(project, ORDER_PLACED)
    ran = spectral(project, "diff", "HEAD")
    assert ran.returncode == 1
    assert "cannot be imported: ModuleNotFoundError" in ran.stderr


def test_a_project_without_git_is_told_to_use_a_snapshot(tmp_path: Path) -> None:
    write_contract(tmp_path, ORDER_PLACED)
    ran = spectral(tmp_path, "diff", "HEAD")
    assert ran.returncode == 1
    assert "spectral catalog snapshot --output contracts.json" in ran.stderr


def test_the_reference_contexts_come_with_their_consumers_and_fit() -> None:
    ran = spectral(Path("/"), "check", "--package", "spectral.platform", "--package", "spectral.worlds", "--json")
    assert ran.returncode == 0
    document = json.loads(ran.stdout)
    assert (document["findings"], document["problems"]) == ([], [])
    assert document["handlers"] == 7
