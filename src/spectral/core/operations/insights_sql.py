"""The statements of one look at the database, in one transaction. Events are counted by functions of the schema.

Every one is bounded: lists by a limit, counts by a limit below the count. The parameters are `now` (the database's
clock when the look began), `cap` (one more than is counted), `lanes` (one more than are listed).
"""

from __future__ import annotations

from typing import Final

BEGIN: Final = b"set transaction isolation level repeatable read, read only"

WHO: Final = b"""
select
    clock_timestamp() as taken_at,
    current_user::text as login,
    pg_has_role(current_user, 'pg_read_all_stats', 'usage') as activity_visible,
    pg_notification_queue_usage() as notify_queue,
    (select live.generation from core.live_generation as live) as live_generation
"""

DEPLOYMENTS: Final = b"""
select listed.generation, listed.status, listed.label, listed.promoted_at, listed.drained_at
from (
    (select * from core.deployments where status <> 'retired' order by generation desc limit 100)
    union
    (select * from core.deployments order by generation desc limit 20)
) as listed
order by listed.generation desc
"""

# The functions run as the owner: whoever may call them, an operator or a worker, counts the same.
LANES: Final = b"""
select lane.generation, lane.generation_status, lane.channel, lane.context, lane.due, lane.waiting, lane.oldest_due,
    lane.next_due
from core.insight_lanes(%(now)s, %(cap)s, %(lanes)s) as lane
"""

# Only an operator reads every event; a role that is missing is the doctor's to tell.
SEES_EVENTS: Final = b"""
select exists (
    select from pg_roles as role
    where role.rolname = 'spectral_operator' and pg_has_role(role.oid, 'usage')
      and has_table_privilege('core.outbox', 'select') and has_table_privilege('core.subscriptions', 'select')
)
"""

# Whatever the statistics say, the claim's index is read. This lasts to the transaction's end, so it comes last in it.
BY_INDEX: Final = b"set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off"

# The parameters are the lanes, and how many rows of each are looked at: those that have been due longest.
STRAYS: Final = b"""
select
    lane.context, lane.generation, lane.channel, array_agg(distinct oldest.event_type order by oldest.event_type),
    count(*) as rows, oldest.looked, %(now)s - min(oldest.next_attempt_at) as oldest_due
from unnest(%(generations)s::bigint[], %(channels)s::text[], %(contexts)s::text[])
    as lane (generation, channel, context)
cross join lateral (
    select waiting.event_type, waiting.next_attempt_at, count(*) over () as looked
    from (
        select event.event_type, event.next_attempt_at
        from core.outbox as event
        where event.status = 'pending' and event.deleted_at is null and event.generation = lane.generation
          and event.channel = lane.channel and event.target = lane.context and event.next_attempt_at <= %(now)s
        order by event.next_attempt_at, event.id
        limit %(looked)s
    ) as waiting
) as oldest
where not exists (
    select
    from core.subscriptions as subscription
    where subscription.generation = lane.generation and subscription.event_type = oldest.event_type
      and subscription.context = lane.context
)
group by lane.context, lane.generation, lane.channel, oldest.looked
order by lane.generation desc, lane.context, lane.channel
"""

IN_FLIGHT: Final = b"""
select held.generation, held.generation_status, held.context, held.worker, held.rows, held.stale
from core.insight_in_flight(%(now)s, %(cap)s) as held
"""

FAILED: Final = b"""
select failed.generation, failed.generation_status, failed.context, failed.rows, failed.lately
from core.insight_failed(%(now)s, %(cap)s) as failed
"""

WORKERS: Final = b"""
select
    worker.name, worker.generation, worker.generations, worker.contexts, worker.channels, worker.host, worker.pid,
    worker.version, worker.signed_in_at, core.worker_lives(worker.name) as alive,
    array(
        select served.context
        from unnest(worker.contexts) as served (context)
        where not exists (
            select
            from core.subscriptions as subscription
            where subscription.generation = worker.generation
              and subscription.context = served.context
        )
        order by served.context
    ) as unsubscribed
from core.workers as worker
order by worker.generation desc, worker.name
limit 500
"""

BRAKES: Final = b"""
select brake.context, brake.pulled_at, brake.pulled_by, brake.reason
from core.brakes as brake
order by brake.context
limit 500
"""

TABLES: Final = b"""
with member as (
    select root.oid as root, root.oid as relation
    from unnest(array['core.outbox', 'core.event_handled', 'core.audit']::regclass[]) as root (oid)
    union all
    select child.inhparent, child.inhrelid
    from pg_inherits as child
    where child.inhparent in ('core.outbox'::regclass, 'core.event_handled'::regclass)
),
measured as (
    select
        member.root, relation.oid,
        case when relation.reltuples > 0 then relation.reltuples else coalesce(stat.n_live_tup, 0) end as rows,
        coalesce(stat.n_dead_tup, 0) as dead,
        coalesce(stat.n_tup_ins, 0) as inserted,
        pg_total_relation_size(relation.oid) as bytes,
        greatest(stat.last_vacuum, stat.last_autovacuum) as last_vacuum,
        coalesce((
            select each.option_value::boolean from pg_options_to_table(relation.reloptions) as each
            where each.option_name = 'autovacuum_enabled'
        ), true) and current_setting('autovacuum')::boolean as autovacuum,
        coalesce((
            select each.option_value from pg_options_to_table(relation.reloptions) as each
            where each.option_name = 'autovacuum_vacuum_threshold'
        ), current_setting('autovacuum_vacuum_threshold'))::float8
        + coalesce((
            select each.option_value from pg_options_to_table(relation.reloptions) as each
            where each.option_name = 'autovacuum_vacuum_scale_factor'
        ), current_setting('autovacuum_vacuum_scale_factor'))::float8 * greatest(relation.reltuples, 0) as due_at
    from member
    join pg_class as relation on relation.oid = member.relation and relation.relkind = 'r'
    left join pg_stat_user_tables as stat on stat.relid = relation.oid
)
select
    -- as regclass prints it, the schema would be left out where the search path has it
    root.relnamespace::regnamespace::text || '.' || quote_ident(root.relname) as name,
    sum(measured.rows)::bigint as rows, sum(measured.dead)::bigint as dead,
    sum(measured.bytes)::bigint as bytes, sum(measured.inserted)::bigint as inserted,
    max(measured.last_vacuum) as last_vacuum, bool_and(measured.autovacuum) as autovacuum,
    sum(measured.due_at)::bigint as vacuum_due_at
from measured
join pg_class as root on root.oid = measured.root
group by root.relnamespace, root.relname
order by 1
"""

# Whoever's oldest transaction holds the horizon of this database back. A vacuum's own does not count.
HOLDERS: Final = b"""
select held.kind, held.name, held.holder as user, held.pid, held.state, held.age, held.since
from (
    select
        case when activity.backend_type = 'walsender' then 'standby' else 'backend' end as kind,
        coalesce(nullif(activity.application_name, ''), activity.backend_type, 'unnamed') as name,
        activity.usename::text as holder, activity.pid, activity.state,
        greatest(age(activity.backend_xmin), age(activity.backend_xid)) as age,
        %(now)s - activity.xact_start as since
    from pg_stat_activity as activity
    where (activity.backend_xmin is not null or activity.backend_xid is not null)
      and (activity.datname = current_database() or activity.backend_type = 'walsender')
      and activity.backend_type is distinct from 'autovacuum worker'
      and activity.pid <> pg_backend_pid()
      and activity.pid not in (select vacuum.pid from pg_stat_progress_vacuum as vacuum)
    union all
    select
        'slot', slot.slot_name::text, null, slot.active_pid, case when slot.active then 'active' else 'inactive' end,
        age(slot.xmin), null
    from pg_replication_slots as slot
    where slot.xmin is not null
    union all
    select
        'prepared', prepared.gid, prepared.owner::text, null, 'prepared', age(prepared.transaction),
        %(now)s - prepared.prepared
    from pg_prepared_xacts as prepared
    where prepared.database = current_database()
) as held
order by held.age desc nulls last, held.since desc nulls last
limit 5
"""
