"""The lint as its callers see it: files, names, lines, syntax errors, waivers, settings."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from spectral.core.events.failure import ConfigurationError
from spectral.core.migrations.lint import Finding, LintSettings, Rule, lint_files, lint_sql

if TYPE_CHECKING:
    from types import ModuleType

BAD_GRANT = "grant select on worlds.card to platform_app;"
PROJECT = Path(__file__).parents[2]


def found(sql: str) -> list[tuple[Rule, int]]:
    return [(finding.rule, finding.line) for finding in lint_sql(sql, path=Path("m.sql"))]


def test_the_projects_own_migrations_have_no_findings() -> None:
    assert [str(finding) for finding in lint_files([PROJECT / "supabase" / "migrations"])] == []


def test_every_rule_is_documented() -> None:
    page = (PROJECT / "docs" / "reference" / "migration-lint.md").read_text()
    assert [rule for rule in Rule if f"| `{rule}` |" not in page] == []


def test_a_finding_reads_like_a_compilers() -> None:
    finding = Finding(Rule.SYNTAX_ERROR, Path("a/b.sql"), 7, "correct it")
    assert str(finding) == "a/b.sql:7: syntax-error: correct it"


def test_lines_are_those_of_the_statement_behind_its_comments() -> None:
    sql = f"-- höflich\nselect 'größe',\n  1; /* two\nlines */ {BAD_GRANT}\n\n\n-- comment\n\n{BAD_GRANT}"
    assert found(sql) == [(Rule.CROSS_CONTEXT_GRANT, 4), (Rule.CROSS_CONTEXT_GRANT, 9)]


def test_lines_inside_a_body_count_from_the_start_of_the_file() -> None:
    sql = f"-- é\ncreate function worlds.f()\nreturns void language plpgsql\nas $$\n-- ü\nbegin\n  {BAD_GRANT}\nend $$"
    assert found(sql) == [(Rule.CROSS_CONTEXT_GRANT, 7)]


@pytest.mark.parametrize("sql", ["", ";;", "-- nothing", "select 1"])
def test_files_without_findings_are_silent(sql: str) -> None:
    assert found(sql) == []


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("select 1;\n\nselec 2;", 3),
        ("select 'é', 'ü', 'ö', 'ä', 'ß';\nselec 1\n;\n", 2),
        ("select 1;\n\\set x 1\n", 2),
        ("\\i other.sql", 1),
        ("select 1;\nselect 'open", 2),
        ("select 1;\n/* open", 2),
        ("select 1;\n\0", 2),
        ("copy worlds.card from stdin;\n1\tx\n\\.\n", 2),
        ("\ufeffselect 1", 1),
        ("select 1;\n'\ud800'", 2),
        ("select " + "(" * 20_000 + "1" + ")" * 20_000, 1),
    ],
)
def test_text_that_does_not_parse_is_a_finding_with_its_line(sql: str, line: int) -> None:
    assert found(sql) == [(Rule.SYNTAX_ERROR, line)]


def test_a_syntax_error_does_not_hide_other_findings() -> None:
    sql = f"{BAD_GRANT}\nselec 1;\n-- spectral-lint: allow session-role because it is not parsed\nselec 2;\n{BAD_GRANT}"
    assert found(sql) == [
        (Rule.CROSS_CONTEXT_GRANT, 1),
        (Rule.SYNTAX_ERROR, 2),
        (Rule.CROSS_CONTEXT_GRANT, 5),
    ]


def test_a_syntax_error_in_one_file_does_not_hide_findings_in_another(tmp_path: Path) -> None:
    (tmp_path / "20250101000000_broken.sql").write_text("selec 1")
    (tmp_path / "20250102000000_latin.sql").write_bytes(b"select 1;\nselect '\xe9'")
    (tmp_path / "20250103000000_bad.sql").write_text(BAD_GRANT)
    assert [(finding.path.name, finding.line, finding.rule) for finding in lint_files([tmp_path])] == [
        ("20250101000000_broken.sql", 1, Rule.SYNTAX_ERROR),
        ("20250102000000_latin.sql", 2, Rule.SYNTAX_ERROR),
        ("20250103000000_bad.sql", 1, Rule.CROSS_CONTEXT_GRANT),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "create_cards.sql",
        "2025010100000_short.sql",
        "20250101000000.sql",
        "20250101000000-cards.sql",
        "20250101000000_Cards.sql",
        "20250101000000_cards__again.sql",
        "20250230000000_no_such_day.sql",
        "20250101240000_no_such_hour.sql",
        "19990101000000_too_early.sql",
        "00000000000000_zero.sql",
        "20250101000000_cards.SQL",
    ],
)
def test_wrong_file_names_are_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("select 1;")
    assert [(finding.rule, finding.path) for finding in lint_files([path])] == [(Rule.FILE_NAME, path)]


def test_versions_are_unique_and_files_are_taken_in_order(tmp_path: Path) -> None:
    names = ["20250101000000_b.sql", "20250101000000_a.sql", "20240101000000_c.sql"]
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text(BAD_GRANT)
    findings = lint_files([*paths, tmp_path])
    assert [finding.path.name for finding in findings if finding.rule is Rule.FILE_NAME] == ["20250101000000_b.sql"]
    in_order = [finding.path.name for finding in findings if finding.rule is Rule.CROSS_CONTEXT_GRANT]
    assert in_order == sorted(names)


def test_a_missing_file_is_an_error_not_a_finding(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lint_files([tmp_path / "20250101000000_gone.sql"])


WAIVER = "-- spectral-lint: allow cross-context-grant because the report reads it until May"


def test_a_waiver_above_a_statement_allows_its_rule() -> None:
    assert found(f"select 1;\n{WAIVER}\n{BAD_GRANT}") == []
    assert found(f"{WAIVER}\n-- a comment\n-- and another\n{BAD_GRANT}") == []
    assert found(f"{WAIVER}\n{BAD_GRANT}\n{BAD_GRANT}") == [(Rule.CROSS_CONTEXT_GRANT, 3)]


def test_waivers_of_several_rules_stand_above_each_other() -> None:
    other = "-- spectral-lint: allow schema-wide-grant because the schema is generated"
    grant = "grant select on all tables in schema worlds to platform_app;"
    assert found(f"{WAIVER}\n{other}\n{grant}") == []
    assert found(f"{other}\n{grant}") == [(Rule.CROSS_CONTEXT_GRANT, 2)]


def test_a_waiver_works_inside_code_and_above_the_whole_block() -> None:
    assert found(f"do $$\nbegin\n  {WAIVER}\n  {BAD_GRANT}\nend $$") == []
    assert found(f"{WAIVER}\ndo $$\nbegin\n  {BAD_GRANT}\nend $$") == []
    assert found(f"do $$\nbegin\n  {WAIVER}\n  null;\n  {BAD_GRANT}\nend $$") == [
        (Rule.UNUSED_WAIVER, 3),
        (Rule.CROSS_CONTEXT_GRANT, 5),
    ]


@pytest.mark.parametrize(
    "waiver",
    [
        "-- spectral-lint: allow cross-context-grant",
        "-- spectral-lint: allow cross-context-grant because",
        "-- spectral-lint: allow cross-context-grant it is fine",
        "-- spectral-lint: allow",
        "-- spectral-lint: disable cross-context-grant because I say so",
        "-- spectral-lint: allow cross-context because I say so",
        "-- spectral-lint: allow syntax-error because I say so",
        "/* spectral-lint: allow cross-context-grant because comments are comments */",
        "select 1; -- spectral-lint: allow cross-context-grant because it is near",
    ],
)
def test_a_waiver_that_is_not_well_formed_is_a_finding_and_allows_nothing(waiver: str) -> None:
    assert found(f"{waiver}\n{BAD_GRANT}") == [(Rule.BAD_WAIVER, 1), (Rule.CROSS_CONTEXT_GRANT, 2)]


def test_a_waiver_that_allows_nothing_is_a_finding() -> None:
    assert found(f"{WAIVER}\nselect 1;") == [(Rule.UNUSED_WAIVER, 1)]
    assert found(f"{WAIVER}\n\n{BAD_GRANT}") == [(Rule.UNUSED_WAIVER, 1), (Rule.CROSS_CONTEXT_GRANT, 3)]
    assert found(f"{WAIVER}\n\n-- a comment\n{BAD_GRANT}") == [(Rule.UNUSED_WAIVER, 1), (Rule.CROSS_CONTEXT_GRANT, 4)]
    assert found(f"select 1;\n{WAIVER}") == [(Rule.UNUSED_WAIVER, 2)]


def test_a_waiver_inside_a_string_is_text() -> None:
    assert found(f"select '\n{WAIVER}\n';\n{BAD_GRANT}") == [(Rule.CROSS_CONTEXT_GRANT, 4)]


def test_contexts_are_a_setting() -> None:
    settings = LintSettings(contexts=frozenset({"core", "game", "game_store"}))
    sql = "grant select on game.card to game_store_app; grant select on game_store.item to game_store_app;"
    (finding,) = lint_sql(sql + BAD_GRANT, path=Path("m.sql"), settings=settings)
    assert "game_store_app of context game_store" in finding.message


@pytest.mark.parametrize("contexts", [frozenset[str](), frozenset({"core", "Worlds"}), frozenset({"worlds"})])
def test_settings_that_make_no_sense_are_refused(contexts: frozenset[str]) -> None:
    with pytest.raises(ConfigurationError):
        LintSettings(contexts=contexts)


def test_without_pglast_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> NoReturn:
        raise ModuleNotFoundError(name)

    real: ModuleType = importlib
    monkeypatch.setattr(real, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"pip install 'spectral-events\[lint\]'"):
        lint_sql("select 1", path=Path("m.sql"))
