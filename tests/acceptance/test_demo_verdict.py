"""When the demo is clean, and what the command says and answers if it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spectral.core.events import SpectralError
from spectral_ops.cli.app import app
from spectral_ops.demo import telling, tour
from spectral_ops.demo.counts import MUST_BE_NOTHING, Counts

CLEAN = Counts(
    published=100,
    rolled_back=10,
    broadcasts=4,
    delivered=104,
    handled=104,
    handled_by_generation={1: 60, 2: 44},
    taken_over=7,
    dead_lettered=3,
    replayed=3,
    external_duplicates=2,
    decided=100,
    scans=80,
    projected=80,
    lost=0,
    phantom=0,
    ghost=0,
    duplicated=0,
    stuck=0,
    false_dead_letters=0,
    wrong_generation=0,
    wrong_context=0,
    left_in_dlq=0,
    seconds=1.5,
)
KEYS = {
    *("published", "delivered", "handled", "dead_lettered", "replayed", "lost", "duplicated", "stuck"),
    *("wrong_generation", "wrong_context", "seconds"),
}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, outcome: Counts | BaseException, *options: str) -> Result:
    """`spectral demo` with a tour that ends like this, after a worker has logged something."""

    def ended_tour(teller: telling.Teller, environ: Mapping[str, str], directory: Path) -> Counts:
        teller.say("touring")
        assert "PATH" in environ
        (directory / "worker-1.log").write_text("{}\n")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(tour, "tour", ended_tour)
    return CliRunner().invoke(app, ["demo", *options])


def test_a_clean_tour_is_0_and_leaves_no_logs(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    ran = run(monkeypatch, CLEAN)
    assert ran.exit_code == 0
    assert " s  touring\n" in ran.stderr
    assert "clean in 1.5 s" in ran.stderr
    assert list(logs.iterdir()) == []


def test_the_table_shows_every_count(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    table = run(monkeypatch, CLEAN).stdout.splitlines()
    shown = {line[:20].strip(): line[20:30].strip() for line in table}
    assert shown["published"] == "100"
    assert (shown["by generation 1"], shown["by generation 2"]) == ("60", "44")
    assert {shown[name.replace("_", " ")] for name in MUST_BE_NOTHING} == {"0"}
    assert logs.is_dir()


def test_the_same_as_data(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    document: dict[str, Any] = json.loads(run(monkeypatch, CLEAN, "--json").stdout)
    assert document.keys() >= KEYS
    assert document["clean"] is True
    assert document["handled_by_generation"] == {"1": 60, "2": 44}
    assert list(logs.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_unclean_tour_is_4_and_names_the_problems_and_the_logs(
    monkeypatch: pytest.MonkeyPatch, logs: Path, options: tuple[str, ...]
) -> None:
    problem = "lost: event 7 is delivered, but platform.project_scan did not handle it"
    ran = run(monkeypatch, replace(CLEAN, lost=1, problems=(problem,)), *options)
    assert ran.exit_code == 4
    (kept,) = logs.iterdir()
    assert problem in ran.stderr
    assert f"the workers' logs are in {kept}" in ran.stderr
    assert (kept / "worker-1.log").exists()
    assert "clean in" not in ran.stderr


def test_a_tour_that_cannot_go_on_keeps_the_logs_too(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    ran = run(monkeypatch, SpectralError("worker 2 did not start"))
    assert isinstance(ran.exception, SpectralError)
    (kept,) = logs.iterdir()
    assert str(kept) in ran.stderr


def test_an_interrupted_tour_leaves_no_logs(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    assert run(monkeypatch, KeyboardInterrupt()).exit_code == 130
    assert list(logs.iterdir()) == []


@pytest.mark.parametrize("name", MUST_BE_NOTHING)
def test_one_of_what_must_be_nothing_is_not_clean(name: str) -> None:
    changed: dict[str, Any] = {name: 1}
    assert CLEAN.clean
    assert not replace(CLEAN, **changed).clean


@pytest.mark.parametrize(
    "changed",
    [
        {"decided": 99},
        {"delivered": 103},
        {"handled": 105},
        {"projected": 79},
        {"replayed": 2},
        {"dead_lettered": 0, "replayed": 0},
        {"taken_over": 0},
        {"rolled_back": 0},
        {"broadcasts": 0, "delivered": 100, "handled": 100},
        {"handled_by_generation": {1: 104}},
    ],
)
def test_a_business_that_is_not_even_or_a_tour_that_showed_less_is_not_clean(changed: dict[str, Any]) -> None:
    assert not replace(CLEAN, **changed).clean
