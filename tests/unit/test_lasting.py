"""Which statements may leave something behind in their session besides rows."""

from __future__ import annotations

import sys
import time

import pytest

from spectral.core.events.infrastructure.postgres.lasting import may_last

PLAIN = [
    "insert into invoices (order_id, total) values (%s, %s)",
    "insert into invoices values (%(order)s) on conflict (order_id) do update set total = excluded.total + 1",
    'insert into billing."Invoices" as i (order_id) values (%s) on conflict do nothing returning i.id',
    "  UPDATE accounts SET balance = balance - %s, seen_at = now() WHERE id = %s",
    "update t set (a, b) = (%s, %s) where id in (select id from u where kind = any (%s))",
    "delete from carts where owner = %s and (age(made_at) > interval '1 day' or done);",
    "select count(*), coalesce(sum(total), 0)::numeric(10, 2) from invoices where order_id = %s for update",
    "with due as (select id from jobs limit 5) update jobs set state = 'run' from due where jobs.id = due.id",
    "merge into stock using arrivals as a on stock.id = a.id when matched then update set count = a.count",
    "select jsonb_build_object('a', 1)",
    "select 'grün', count (*) from größen where (a.b) = any (%(kinds)s)",
    "values (1)",
]
LASTING = [
    "",
    "set local app.tenant = 'a'",
    "SET search_path TO x",
    "select set_config('app.tenant', %s, true)",
    "select set_config/**/('app.tenant', 'a', true)",
    "select set_config -- why not\n ('app.tenant', 'a', true)",
    'select "set_config"(%s, %s, true)',
    "select pg_catalog.set_config('a.b', 'c', true)",
    "select set_tenant(%s)",
    "select billing.set_tenant (%s)",
    "insert into t values (set_tenant(%s))",
    "select pg_advisory_lock(1)",
    "select pg_try_advisory_xact_lock(1)",
    "update pg_settings set setting = '1min' where name = 'statement_timeout'",
    "select 1 into temp copied from t",
    "select 1 as one into copied",
    "create temp table t (a int)",
    "insert into pg_temp.t values (1)",
    "declare c cursor for select 1",
    "commit",
    "rollback",
    "savepoint a",
    "insert into t values (1); set local role other",
    "lock table t",
    "call close_month()",
    "do $$ begin end $$",
    "copy t from stdin",
    "prepare p as select 1",
    "notify wake",
    "explain analyze select 1",
    "/* */ insert into t values (1)",
    "select nextval('s'), lastval()",
    "insert into t values ('" + "x" * 20_000 + "')",
    'update U&"\\0070g_settings" set setting = 1',
    # To the server these are one name each.
    "select caf\N{LATIN SMALL LETTER E}\N{COMBINING ACUTE ACCENT}(%s)",
    "select \N{EURO SIGN}now()",
    "select count\N{NO-BREAK SPACE}(%s)",
    "select billing . now()",
    "select billing.\n now()",
]


@pytest.mark.parametrize("query", PLAIN)
def test_what_only_reads_and_writes_rows_leaves_nothing(query: str) -> None:
    assert may_last(query) is False


@pytest.mark.parametrize("query", LASTING, ids=lambda query: query[:40])
def test_whatever_else_may_leave_something(query: str) -> None:
    assert may_last(query) is True


@pytest.mark.parametrize("filler", ["x", " ", ".", ". ", "(", '"', "into ", "a "])
def test_no_text_takes_long(filler: str) -> None:
    text = f"select '{filler * (9_900 // len(filler))}'"
    began = time.process_time()
    may_last(text)
    assert time.process_time() - began < 0.1


def test_long_texts_are_not_remembered() -> None:
    text = "select '" + "x" * 20_000 + "'"
    before = sys.getrefcount(text)
    assert may_last(text)
    assert sys.getrefcount(text) == before
