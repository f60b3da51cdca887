"""The statements of one look at the database. They run in one transaction that has switched sequential scans off.

Every one is bounded: lists by a limit, counts by a limit below the count. The parameters are `now` (the database's
clock when the look began), `cap` (one more than is counted), `lanes` (one more than are listed).
"""

from __future__ import annotations

from typing import Final

BEGIN: Final = b"set transaction isolation level repeatable read, read only"

# One look per generation, channel and context: whatever the statistics say, the partial index is the way.
PLAN: Final = b"""
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('jit', 'off', true)
"""

WHO: Final = b"""
select
    clock_timestamp() as taken_at,
    current_user::text as login,
    -- what row-level security does not narrow
    (
        select role.rolsuper or role.rolbypassrls from pg_roles as role where role.rolname = current_user
    ) or pg_has_role(current_user, 'spectral_operator', 'usage')
      or pg_has_role(current_user, 'spectral_owner', 'usage') as login_sees_all,
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

LANES: Final = b"""
with recursive
-- each generation and channel on which something waits: one step of the index for each, however many rows there are
line as (
    (
        select outbox.generation, outbox.channel
        from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null
        order by outbox.generation, outbox.channel
        limit 1
    )
    union all
    select following.generation, following.channel
    from line
    cross join lateral (
        select outbox.generation, outbox.channel
        from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null
          and (outbox.generation, outbox.channel) > (line.generation, line.channel)
        order by outbox.generation, outbox.channel
        limit 1
    ) as following
),
found as materialized (select * from line limit %(lanes)s),
-- each context on it
addressed as (
    select found.generation, found.channel, first.target
    from found
    cross join lateral (
        select outbox.target
        from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null
          and outbox.generation = found.generation and outbox.channel = found.channel and outbox.target is not null
        order by outbox.target
        limit 1
    ) as first
    union all
    select addressed.generation, addressed.channel, following.target
    from addressed
    cross join lateral (
        select outbox.target
        from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null
          and outbox.generation = addressed.generation and outbox.channel = addressed.channel
          and outbox.target > addressed.target
        order by outbox.target
        limit 1
    ) as following
),
lane as materialized (
    (select * from addressed limit %(lanes)s)
    union all
    select found.generation, found.channel, null
    from found
    where exists (
        select from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null
          and outbox.generation = found.generation and outbox.channel = found.channel and outbox.target is null
    )
    limit %(lanes)s
)
select
    lane.generation, deployment.status as generation_status, lane.channel, lane.target as context,
    coalesce(to_target.due, broadcast.due) as due, coalesce(to_target.waiting, broadcast.waiting) as waiting,
    %(now)s::timestamptz - coalesce(to_target.first_due, broadcast.first_due) as oldest_due,
    coalesce(to_target.first_waiting, broadcast.first_waiting) - %(now)s::timestamptz as next_due
from lane
left join core.deployments as deployment on deployment.generation = lane.generation
-- An index finds `= value` or `is null`, but not a comparison that covers both.
left join lateral (
    select
        (
            select count(*) from (
                select from core.outbox
                where outbox.status = 'pending' and outbox.deleted_at is null
                  and outbox.generation = lane.generation and outbox.channel = lane.channel
                  and outbox.target = lane.target and outbox.next_attempt_at <= %(now)s
                limit %(cap)s
            ) as counted
        ) as due,
        (
            select count(*) from (
                select from core.outbox
                where outbox.status = 'pending' and outbox.deleted_at is null
                  and outbox.generation = lane.generation and outbox.channel = lane.channel
                  and outbox.target = lane.target and outbox.next_attempt_at > %(now)s
                limit %(cap)s
            ) as counted
        ) as waiting,
        (
            select outbox.next_attempt_at from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and outbox.generation = lane.generation and outbox.channel = lane.channel
              and outbox.target = lane.target and outbox.next_attempt_at <= %(now)s
            order by outbox.next_attempt_at
            limit 1
        ) as first_due,
        (
            select outbox.next_attempt_at from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and outbox.generation = lane.generation and outbox.channel = lane.channel
              and outbox.target = lane.target and outbox.next_attempt_at > %(now)s
            order by outbox.next_attempt_at
            limit 1
        ) as first_waiting
) as to_target on lane.target is not null
left join lateral (
    select
        count(*) filter (where counted.next_attempt_at <= %(now)s) as due,
        count(*) filter (where counted.next_attempt_at > %(now)s) as waiting,
        min(counted.next_attempt_at) filter (where counted.next_attempt_at <= %(now)s) as first_due,
        min(counted.next_attempt_at) filter (where counted.next_attempt_at > %(now)s) as first_waiting
    from (
        select outbox.next_attempt_at from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null
          and outbox.generation = lane.generation and outbox.channel = lane.channel and outbox.target is null
        order by outbox.target, outbox.next_attempt_at
        limit %(cap)s
    ) as counted
) as broadcast on lane.target is null
order by lane.generation desc, lane.target nulls last, lane.channel
"""

# A claim younger than the reaper's grace is not called stale: its worker may be reconnecting.
IN_FLIGHT: Final = b"""
with held as materialized (
    select
        counted.generation, counted.target, counted.claimed_by,
        count(*) as rows, count(*) filter (where counted.claimed_at < %(now)s - interval '5 seconds') as settled_down
    from (
        select outbox.generation, outbox.target, outbox.claimed_by, outbox.claimed_at
        from core.outbox
        where outbox.status = 'in_flight'
        limit %(cap)s
    ) as counted
    group by counted.generation, counted.target, counted.claimed_by
),
claimer as materialized (
    select named.claimed_by, core.worker_lives(named.claimed_by) as alive
    from (select distinct held.claimed_by from held) as named
)
select
    held.generation, deployment.status as generation_status, held.target as context, held.claimed_by as worker,
    held.rows, case when claimer.alive then 0 else held.settled_down end as stale
from held
join claimer on claimer.claimed_by = held.claimed_by
left join core.deployments as deployment on deployment.generation = held.generation
"""

FAILED: Final = b"""
select
    counted.generation, (select deployment.status from core.deployments as deployment
        where deployment.generation = counted.generation) as generation_status,
    counted.target as context, count(*) as rows,
    count(*) filter (where counted.claimed_at > %(now)s - interval '1 hour') as lately
from (
    select outbox.generation, outbox.target, outbox.claimed_at
    from core.outbox
    where outbox.status = 'failed' and outbox.deleted_at is null
    order by outbox.first_failed_at desc, outbox.id
    limit %(cap)s
) as counted
group by counted.generation, counted.target
"""

WORKERS: Final = b"""
select
    worker.name, worker.generation, worker.generations, worker.contexts, worker.channels, worker.host, worker.pid,
    worker.version, worker.signed_in_at, core.worker_lives(worker.name) as alive
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
    measured.root::regclass::text as name, sum(measured.rows)::bigint as rows, sum(measured.dead)::bigint as dead,
    sum(measured.bytes)::bigint as bytes, sum(measured.inserted)::bigint as inserted,
    max(measured.last_vacuum) as last_vacuum, bool_and(measured.autovacuum) as autovacuum,
    sum(measured.due_at)::bigint as vacuum_due_at
from measured
group by measured.root
order by measured.root::regclass::text
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
