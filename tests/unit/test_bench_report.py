"""The report of the benchmarks: tables, JSON and picture, and the way back from the JSON."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from benchmarks.figures import Board, Summary
from benchmarks.plot import figure, svg_of
from benchmarks.report import Report, document, machine, read_document, show, write

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def report() -> Report:
    drain = Board(
        "drain-noop",
        "drain, <nothing> & more",
        "events/s",
        lower_is_better=False,
        summaries=(
            Summary("Spectral", "ours", (900.0, 1_100.0, 1_000.0), {"wal": 512.4, "round_trips": 0.05}),
            Summary("PgQueuer, best", "peer", (500.0,), {}),
            Summary("floor: our SQL", "floor", (2_000.0,), {"wal": 400.0}),
        ),
    )
    nothing = Board("mixed", "mixed", "events/s", lower_is_better=False, summaries=())
    return Report({"processor": "2 x Example", "Postgres": "18.6"}, 3, (drain, nothing), {"oban": "needs Python 3.12"})


def test_the_tables_name_everybody_the_absent_and_every_promise(report: Report) -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123  kept by the console

    show(report, console)
    text = console.export_text()
    console.file.close()

    assert "2 x Example, Postgres 18.6; medians of 3 interleaved rounds" in text
    assert "900 to 1,100" in text
    assert "needs Python 3.12" in text
    assert "no-op drain / best peer at its best" in text
    assert "2.00" in text  # 1,000 beside 500


def test_a_column_is_shown_as_soon_as_somebody_has_it(report: Report) -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123  as above

    show(report, console)
    text = console.export_text()
    console.file.close()

    assert "round trips / event" in text
    assert "statements / event" not in text


def test_the_json_leads_back_to_the_same_report(report: Report) -> None:
    again = read_document(json.loads(json.dumps(document(report))))

    assert document(again) == document(report)
    assert again.boards == report.boards


def test_both_files_are_written_beside_each_other(report: Report, tmp_path: Path) -> None:
    write(report, tmp_path / "new")

    said = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert said["scenarios"]["drain-noop"]["entries"]["Spectral"]["median"] == 1_000.0
    assert said["verdicts"][0]["kept"] is True
    assert (tmp_path / "new" / "bench.svg").read_text().startswith("<svg")


def test_the_picture_is_well_formed_and_has_a_bar_for_everybody(report: Report) -> None:
    root = ET.fromstring(svg_of(report.boards, report.caption()))  # noqa: S314  our own text

    bars = root.findall(f"{SVG}rect")
    texts = [text.text or "" for text in root.findall(f"{SVG}text")]

    assert len(bars) == 3
    assert float(bars[0].attrib["width"]) == pytest.approx(float(bars[2].attrib["width"]) / 2, rel=0.01)
    assert any("drain, <nothing> & more" in text for text in texts)
    assert "PgQueuer, best" in texts


def test_only_what_was_measured_more_than_once_has_a_spread(report: Report) -> None:
    root = ET.fromstring(svg_of(report.boards, ""))  # noqa: S314  our own text

    assert len(root.findall(f"{SVG}path")) == 1


@pytest.mark.parametrize(("value", "text"), [(12_345.6, "12,346"), (99.94, "99.9"), (2.345, "2.35"), (0.0, "0.00")])
def test_a_figure_has_as_many_digits_as_mean_something(value: float, text: str) -> None:
    assert figure(value) == text


def test_the_machine_is_named_with_its_server() -> None:
    said = machine("18.6")

    assert said["Postgres"] == "18.6"
    assert " x " in said["processor"]
