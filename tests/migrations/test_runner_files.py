"""Files on disk, without a database: what is taken for a migration, and where its statements begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spectral.core.migrations import MigrationFileError, bundled_directory, discover
from spectral.core.migrations.rendering import render
from spectral.core.migrations.statements import split

if TYPE_CHECKING:
    from pathlib import Path


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, sql in files.items():
        (directory / f"{name.removeprefix('v')}.sql").write_text(sql)
    return directory


def test_directories_are_merged_in_version_order(tmp_path: Path) -> None:
    ours = write(tmp_path / "ours", v20250101000000_a="select 1", v20250103000000_c="select 3")
    theirs = write(tmp_path / "theirs", v20250102000000_b="select 2")
    assert [each.name for each in discover([ours, theirs])] == ["a", "b", "c"]


def test_a_directory_named_twice_is_read_once(tmp_path: Path) -> None:
    directory = write(tmp_path, v20250101000000_a="select 1")
    assert len(discover([directory, directory / "." / "../" / directory.name])) == 1


def test_the_checksum_ignores_windows_line_ends_and_nothing_else(tmp_path: Path) -> None:
    names = {
        "unix": b"select 1;\nselect 2;\n",
        "dos": b"select 1;\r\nselect 2;\r\n",
        "other": b"select 1;\nselect 2;\n\n",
    }
    for folder, content in names.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "20250101000000_a.sql").write_bytes(content)
    unix, dos, other = (discover([tmp_path / folder])[0].checksum for folder in names)
    assert unix == dos != other


@pytest.mark.parametrize("name", ["1_short.sql", "20250101000000.sql", "20250101000000_.sql", "20250101000000_a b.sql"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("select 1")
    with pytest.raises(MigrationFileError, match="YYYYMMDDHHMMSS_name"):
        discover([tmp_path])


def test_files_that_are_not_sql_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    assert discover([tmp_path]) == ()


def test_the_same_version_twice_is_refused(tmp_path: Path) -> None:
    ours = write(tmp_path / "ours", v20250101000000_a="select 1")
    theirs = write(tmp_path / "theirs", v20250101000000_b="select 2")
    with pytest.raises(MigrationFileError, match=r"20250101000000_b\.sql and 20250101000000_a\.sql"):
        discover([ours, theirs])


@pytest.mark.parametrize("content", ["", "\n\n", "-- only a comment\n/* and /* another */ */", ";;"])
def test_a_file_without_a_statement_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(MigrationFileError, match="holds no statement"):
        discover([write(tmp_path, v20250101000000_a=content)])


@pytest.mark.parametrize(
    "statement",
    ["commit", "COMMIT AND CHAIN", "begin", "end", "rollback", "start transaction", "abort", "prepare transaction 'x'"],
)
def test_a_statement_that_would_end_the_transaction_is_refused_with_its_line(tmp_path: Path, statement: str) -> None:
    with pytest.raises(MigrationFileError, match=r"20250101000000_a\.sql, line 2: .* would break the one transaction"):
        discover([write(tmp_path, v20250101000000_a=f"select 1;\n{statement};\nselect 2;")])


@pytest.mark.parametrize(
    "sql",
    [
        "do $$ begin perform 1; end; $$",
        "do $body$ begin execute $$commit;$$; end $body$",
        "select 'commit;'';commit;'",
        r"select e'it\'s;commit;'",
        'select 1 as "a;commit;"',
        "select 1 -- ;commit;\n",
        "select /* ;commit; /* ;commit; */ ;commit; */ 1",
        "create function f() returns int begin atomic select 1; select case when true then 1 else 2 end; end",
        "create rule r as on insert to t do also (insert into a values (1); insert into b values (2))",
        "select foo$bar from baz$qux",
        "release savepoint a",
        "rollback to savepoint a",
    ],
)
def test_what_only_looks_like_the_end_of_a_statement_is_not(sql: str) -> None:
    (statement,) = split(f"\n{sql};\n")
    assert not statement.controls_transaction
    assert statement.line == 2
    assert statement.text == sql.removesuffix(" -- ;commit;\n")


def test_statements_are_split_as_the_postgres_parser_splits_them() -> None:
    parser = pytest.importorskip("pglast").parser
    for migration in discover([bundled_directory()]):
        assert [each.text for each in split(migration.sql)] == list(parser.split(migration.sql))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(MigrationFileError, match="nowhere"):
        discover([tmp_path / "nowhere"])


def test_a_script_ends_an_unterminated_last_statement(tmp_path: Path) -> None:
    directory = write(tmp_path, v20250101000000_a="select 1 -- trailing comment")
    assert "select 1 -- trailing comment\n;\n" in render((), discover([directory]), after=None)
