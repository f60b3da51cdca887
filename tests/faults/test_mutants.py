"""The mutations of `make mutations` still fit the code they change; `make mutations` shows that each is noticed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.faults.crew import ROOT
from tests.faults.mutants import MUTATIONS, Edit, Function, Mutation, NoTrigger

BY_NAME = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
DEFINITION = "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'core'::regnamespace and proname = %s"
TRIGGER = "select count(*) from pg_trigger where tgname = %s and tgrelid = %s::regclass"


def times_found(connection: psycopg.Connection[Any], change: Edit | Function | NoTrigger) -> int:
    match change:
        case Edit(file, old, _):
            return (ROOT / file).read_text().count(old)
        case Function(name, old, _):
            return sum(definition.count(old) for (definition,) in connection.execute(DEFINITION, [name]))
        case NoTrigger(name, table):
            ((count,),) = connection.execute(TRIGGER, [name, table]).fetchall()
            return int(count)


@BY_NAME
def test_what_a_mutation_changes_is_there_exactly_once(connection: psycopg.Connection[Any], mutation: Mutation) -> None:
    for change in mutation.changes:
        assert times_found(connection, change) == 1, change


@BY_NAME
def test_the_test_that_must_notice_exists(mutation: Mutation) -> None:
    file, _, name = mutation.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
