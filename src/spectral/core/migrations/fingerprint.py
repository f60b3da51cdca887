"""The fingerprint of the schema `core`: one digest per object, so that a change made by hand has a name.

Recorded in the transaction of each applied file, compared by `verify`. Most of it is made from catalog columns. What is
only to be had as text that Postgres writes back from its parse trees (conditions of triggers, checks, indexes and
policies, defaults, views) is recorded with the server's major version and compared on the same one only: the text
differs between versions and would cry wolf after an upgrade. Of grants it sees those to PUBLIC; others are the
project's own business.

Changing what is hashed makes recorded digests stale: do it only together with a new migration file, whose application
records them anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from psycopg import Connection

# Partitions are left out: they come and go with the months, not with migrations. A table that was partitioned by
# `spectral partitions enable` looks as it did before, and so does one on the way there: that is no change by hand. Its
# key has the partition's column too, and a key that cannot have it is its partitions' own. Type names are joined by
# hand because format_type() answers differently under another search_path.
_OBJECTS = """\
with
-- every type by a name that does not depend on the search_path
types as (
    select t.oid, case when n.nspname = 'pg_catalog' then '' else n.nspname || '.' end || t.typname as name
    from pg_catalog.pg_type t
    join pg_catalog.pg_namespace n on n.oid = t.typnamespace
),
-- tables, views and sequences of the schema that a migration made
relations as (
    select c.oid, n.nspname || '.' || c.relname as name, case c.relkind when 'p' then 'r' else c.relkind end as relkind,
        c.relkind = 'p' as is_partitioned, c.relrowsecurity, c.relforcerowsecurity,
        case when c.relkind in ('v', 'm') then c.reloptions end as view_options,
        exists (select from pg_catalog.aclexplode(c.relacl) where grantee = 0) as open_to_public
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'core' and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and not c.relispartition
      and c.relname not in ('outbox_partitioned', 'event_handled_hashed')
),
-- what a conversion to partitions has put there, or takes away, for its own use
passing (name) as (
    values ('outbox_before_pkey'), ('outbox_before_id_key'), ('outbox_before_boundary'), ('outbox_child_key'),
        ('event_handled_mirror')
),
-- a function's body, and everything that decides as whom and how it runs
functions as (
    select n.nspname || '.' || p.proname || '(' || coalesce((
            select string_agg(t.name, ', ' order by a.position)
            from unnest(p.proargtypes) with ordinality as a (oid, position)
            join types t on t.oid = a.oid
        ), '') || ')' as name,
        row(p.prosrc, p.prokind, p.prosecdef, p.proconfig, p.provolatile, p.proisstrict, p.proparallel, p.proretset,
            l.lanname, r.name, case when p.prosecdef then o.rolname end,
            p.proacl is null or exists (select from pg_catalog.aclexplode(p.proacl) where grantee = 0))::text as facts
    from pg_catalog.pg_proc p
    join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    join pg_catalog.pg_language l on l.oid = p.prolang
    join pg_catalog.pg_roles o on o.oid = p.proowner
    join types r on r.oid = p.prorettype
    where n.nspname = 'core'
),
columns as (
    select r.name || '.' || a.attname as name,
        row(t.name, a.atttypmod, a.attnotnull, a.attidentity, a.attgenerated, a.atthasdef)::text as facts
    from relations r
    join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
    join types t on t.oid = a.atttypid
    where r.relkind <> 'S'
),
triggers as (
    select g.tgname || ' on ' || r.name as name,
        row(g.tgenabled, g.tgtype, n.nspname, p.proname)::text as facts
    from relations r
    join pg_catalog.pg_trigger g on g.tgrelid = r.oid and not g.tgisinternal
    join pg_catalog.pg_proc p on p.oid = g.tgfoid
    join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where g.tgname not in (select passing.name from passing)
),
-- not-null constraints are left to the columns: they have rows of their own from Postgres 18 on
constraints as (
    select k.conname || ' on ' || r.name as name, row(k.contype, k.convalidated)::text as facts
    from relations r
    join pg_catalog.pg_constraint k on k.conrelid = r.oid and k.contype in ('c', 'f', 'p', 'u', 'x')
    where k.conname not in (select passing.name from passing)
),
indexes as (
    select c.relname || ' on ' || r.name as name,
        row(i.indisunique, i.indisvalid, (
            select string_agg(coalesce(a.attname, '?'), ', ' order by key.position)
            from unnest(i.indkey) with ordinality as key (attnum, position)
            left join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum = key.attnum and key.attnum <> 0
            where not (r.is_partitioned and i.indisunique and coalesce(a.attname = 'created_at', false))
        ))::text as facts
    from relations r
    join pg_catalog.pg_index i on i.indrelid = r.oid
    join pg_catalog.pg_class c on c.oid = i.indexrelid
    where c.relname not in (select passing.name from passing)
),
policies as (
    select y.polname || ' on ' || r.name as name, row(y.polcmd, y.polpermissive)::text as facts
    from relations r
    join pg_catalog.pg_policy y on y.polrelid = r.oid
),
-- what Postgres writes back; the search_path is pinned by whoever runs this
definitions as (
    select 'trigger ' || g.tgname || ' on ' || r.name as name, pg_catalog.pg_get_triggerdef(g.oid) as facts
    from relations r
    join pg_catalog.pg_trigger g on g.tgrelid = r.oid and not g.tgisinternal
    union all
    select 'constraint ' || k.conname || ' on ' || r.name,
        case when r.is_partitioned and k.contype in ('p', 'u')
            then replace(pg_catalog.pg_get_constraintdef(k.oid), ', created_at)', ')')
            else pg_catalog.pg_get_constraintdef(k.oid)
        end
    from relations r
    join pg_catalog.pg_constraint k on k.conrelid = r.oid and k.contype in ('c', 'f', 'p', 'u', 'x')
    union all
    select 'index ' || c.relname || ' on ' || r.name,
        case when r.is_partitioned and i.indisunique
            then replace(replace(pg_catalog.pg_get_indexdef(c.oid), ' ON ONLY ', ' ON '), ', created_at)', ')')
            when r.is_partitioned then replace(pg_catalog.pg_get_indexdef(c.oid), ' ON ONLY ', ' ON ')
            else pg_catalog.pg_get_indexdef(c.oid)
        end
    from relations r
    join pg_catalog.pg_index i on i.indrelid = r.oid
    join pg_catalog.pg_class c on c.oid = i.indexrelid
    union all
    select 'policy ' || y.polname || ' on ' || r.name,
        row(pg_catalog.pg_get_expr(y.polqual, y.polrelid), pg_catalog.pg_get_expr(y.polwithcheck, y.polrelid), (
            select string_agg(o.rolname, ', ' order by o.rolname)
            from pg_catalog.pg_roles o
            where o.oid = any (y.polroles)
        ))::text
    from relations r
    join pg_catalog.pg_policy y on y.polrelid = r.oid
    union all
    select 'default ' || r.name || '.' || a.attname, pg_catalog.pg_get_expr(d.adbin, d.adrelid)
    from relations r
    join pg_catalog.pg_attrdef d on d.adrelid = r.oid
    join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum = d.adnum
    union all
    select 'view ' || r.name, pg_catalog.pg_get_viewdef(r.oid)
    from relations r
    where r.relkind in ('v', 'm')
),
objects (kind, name, facts) as (
    select 'table', name, row(relkind, relrowsecurity, relforcerowsecurity, view_options, open_to_public)::text
    from relations
    union all select 'function', name, facts from functions
    union all select 'column', name, facts from columns
    union all select 'trigger', name, facts from triggers
    union all select 'constraint', name, facts from constraints
    union all select 'index', name, facts from indexes
    union all select 'policy', name, facts from policies
    union all select 'definition of', name, facts from definitions
    union all select 'server', current_setting('server_version_num')::integer / 10000 || '', ''
)
select kind, name, encode(sha256(convert_to(facts, 'UTF8')), 'hex') as digest
from objects"""

# Replaces the recorded fingerprint by what is there now. Complete statements, so that a DBA's script can hold them too.
PIN_SEARCH_PATH = "set local search_path = pg_catalog, pg_temp"

RECORD_FINGERPRINT = f"""\
{PIN_SEARCH_PATH};

delete from spectral_migrations.objects;

insert into spectral_migrations.objects (kind, name, digest)
{_OBJECTS};"""  # noqa: S608  put together from constants of this module

_SERVER = "server"
_DEFINITION = "definition of"

_READ_RECORDED = "select kind, name, digest from spectral_migrations.objects"


class ObjectChange(StrEnum):
    """What was done to an object by hand."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, order=True)
class ObjectDrift:
    """An object of the schema that is not as the last applied file left it."""

    kind: str
    name: str
    change: ObjectChange

    @property
    def message(self) -> str:
        """The finding in words."""
        return f"{self.kind} {self.name} was {self.change} by hand"


def compare_objects(
    recorded: Mapping[tuple[str, str], str], present: Mapping[tuple[str, str], str]
) -> tuple[ObjectDrift, ...]:
    """Name each object that was added, changed or removed since the fingerprint was recorded."""
    found: list[ObjectDrift] = []
    same_server = {name for kind, name in recorded if kind == _SERVER} == {
        name for kind, name in present if kind == _SERVER
    }
    for kind, name in recorded.keys() | present.keys():
        before, after = recorded.get((kind, name)), present.get((kind, name))
        # An object that came or went is named as such; its definition matters where it stayed, on one version.
        if kind == _SERVER or (kind == _DEFINITION and not (same_server and before and after)):
            continue
        if before is None:
            found.append(ObjectDrift(kind, name, ObjectChange.ADDED))
        elif after is None:
            found.append(ObjectDrift(kind, name, ObjectChange.REMOVED))
        elif before != after:
            found.append(ObjectDrift(kind, name, ObjectChange.CHANGED))
    return tuple(sorted(found))


def object_drift(connection: Connection[Any]) -> tuple[ObjectDrift, ...]:
    """Compare the schema with its recorded fingerprint; the ledger has to exist."""
    recorded = connection.execute(_READ_RECORDED).fetchall()
    with connection.transaction():
        connection.execute(PIN_SEARCH_PATH)
        present = connection.execute(_OBJECTS.encode()).fetchall()
    return compare_objects(
        {(kind, name): digest for kind, name, digest in recorded},
        {(kind, name): digest for kind, name, digest in present},
    )
