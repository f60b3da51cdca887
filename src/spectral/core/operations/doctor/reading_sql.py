"""The statements by which the doctor reads the server, the roles and the locks. All of them read catalogs only."""

from __future__ import annotations

from typing import Final

SERVER: Final = b"""
select
    current_setting('server_version_num')::integer as version,
    current_setting('server_version') as version_text,
    current_user::text as login,
    pg_is_in_recovery() as recovering,
    current_setting('transaction_read_only')::boolean as read_only,
    current_setting('fsync')::boolean as fsync,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('track_counts')::boolean as track_counts,
    (select sum(stat.numbackends)::integer from pg_stat_database as stat) as connections,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer
        - coalesce(current_setting('reserved_connections', true)::integer, 0) as connections_max
"""

GROUPS: Final = b"""
select
    role.rolname::text as name, pg_has_role(current_user, role.oid, 'usage') as mine
from pg_roles as role
where role.rolname in (
    'spectral_owner', 'spectral_publisher', 'spectral_worker', 'spectral_operator', 'spectral_retention',
    'spectral_readonly'
)
"""

SUPERUSER: Final = b"select role.rolsuper from pg_roles as role where role.rolname = current_user"

# What each group cannot do its work without. A function by its name, whatever its form; a missing one is the schema's
# business, not the grant's.
MISSING_GRANTS: Final = b"""
with needed (role, kind, object) as (
    values
        ('spectral_publisher', 'schema', 'core'), ('spectral_worker', 'schema', 'core'),
        ('spectral_operator', 'schema', 'core'), ('spectral_retention', 'schema', 'core'),
        ('spectral_readonly', 'schema', 'core'),
        ('spectral_publisher', 'insert', 'core.outbox'), ('spectral_operator', 'select', 'core.outbox'),
        ('spectral_operator', 'select', 'core.workers'), ('spectral_operator', 'select', 'core.brakes'),
        ('spectral_worker', 'select', 'core.deployments'), ('spectral_worker', 'select', 'core.subscriptions'),
        ('spectral_publisher', 'execute', 'outbox_publish'), ('spectral_publisher', 'execute', 'outbox_publish_many'),
        ('spectral_worker', 'execute', 'outbox_subscribe'), ('spectral_worker', 'execute', 'outbox_claim'),
        ('spectral_worker', 'execute', 'outbox_begin'), ('spectral_worker', 'execute', 'outbox_settle'),
        ('spectral_worker', 'execute', 'outbox_release'), ('spectral_worker', 'execute', 'outbox_renew'),
        ('spectral_worker', 'execute', 'outbox_reap'), ('spectral_worker', 'execute', 'outbox_fan_out'),
        ('spectral_worker', 'execute', 'worker_sign_in'), ('spectral_worker', 'execute', 'worker_sign_out'),
        ('spectral_operator', 'execute', 'outbox_replay'), ('spectral_operator', 'execute', 'outbox_discard'),
        ('spectral_operator', 'execute', 'brake_pull'), ('spectral_operator', 'execute', 'brake_release'),
        ('spectral_publisher', 'execute', 'outbox_bell_needed'), ('spectral_worker', 'execute', 'bell_awake'),
        ('spectral_worker', 'execute', 'bell_quiet'), ('spectral_operator', 'execute', 'bell_set'),
        ('spectral_operator', 'execute', 'worker_lives'), ('spectral_operator', 'execute', 'insight_lanes'),
        ('spectral_operator', 'execute', 'insight_in_flight'), ('spectral_operator', 'execute', 'insight_failed'),
        ('spectral_worker', 'execute', 'relay_mode'), ('spectral_worker', 'execute', 'outbox_relay'),
        ('spectral_worker', 'execute', 'outbox_claim_these'), ('spectral_worker', 'execute', 'outbox_claim_late'),
        ('spectral_worker', 'execute', 'outbox_set_aside'), ('spectral_worker', 'execute', 'outbox_claim_aside'),
        ('spectral_worker', 'execute', 'worker_quarantine_key'), ('spectral_worker', 'execute', 'outbox_label'),
        ('spectral_operator', 'execute', 'outbox_label'), ('spectral_worker', 'execute', 'outbox_became'),
        ('spectral_operator', 'execute', 'relay_switch'), ('spectral_operator', 'execute', 'insight_relay'),
        ('spectral_operator', 'execute', 'outbox_partitions'), ('spectral_operator', 'execute', 'partition_create'),
        ('spectral_retention', 'execute', 'partition_create'), ('spectral_retention', 'execute', 'partition_drop'),
        ('spectral_retention', 'execute', 'sweep_outbox'), ('spectral_retention', 'execute', 'sweep_handled')
),
judged as (
    select
        needed.role, needed.kind, needed.object,
        case needed.kind
            when 'schema' then has_schema_privilege(role.oid, namespace.oid, 'usage')
            when 'insert' then has_any_column_privilege(role.oid, to_regclass(needed.object)::oid, 'insert')
            when 'select' then has_table_privilege(role.oid, to_regclass(needed.object)::oid, 'select')
            else (
                select bool_or(has_function_privilege(role.oid, function.oid, 'execute'))
                from pg_proc as function
                where function.proname = needed.object and function.pronamespace = namespace.oid
            )
        end as granted
    from needed
    join pg_roles as role on role.rolname = needed.role
    join pg_namespace as namespace on namespace.nspname = 'core'
)
select case judged.kind
    when 'schema' then 'grant usage on schema ' || judged.object || ' to ' || judged.role
    when 'execute' then 'grant execute on function core.' || judged.object || ' to ' || judged.role
    else 'grant ' || judged.kind || ' on ' || judged.object || ' to ' || judged.role
end
from judged
where judged.granted is false
order by 1
"""

FOREIGN: Final = b"""
select object.name, object.owner
from (
    select
        case relation.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end
            || ' core.' || relation.relname as name,
        pg_get_userbyid(relation.relowner)::text as owner
    from pg_class as relation
    join pg_namespace as namespace on namespace.oid = relation.relnamespace and namespace.nspname = 'core'
    where relation.relkind in ('r', 'p', 'v', 'S')
    union all
    select 'function core.' || function.proname, pg_get_userbyid(function.proowner)::text
    from pg_proc as function
    join pg_namespace as namespace on namespace.oid = function.pronamespace and namespace.nspname = 'core'
) as object
where object.owner <> 'spectral_owner'
order by object.name
limit 20
"""

NOTIFY_TRIGGER: Final = b"""
select trigger.tgenabled::text
from pg_trigger as trigger
where trigger.tgrelid = to_regclass('core.outbox') and trigger.tgname = 'outbox_notify'
"""

HAS_BELL: Final = b"select coalesce(has_table_privilege(to_regclass('core.bell')::oid, 'select'), false)"
BELL: Final = b"select bell.mode from core.bell"

HAS_SCHEMA: Final = b"select to_regclass('core.outbox') is not null"

BLOCKERS: Final = b"""
select
    lock.pid, coalesce(nullif(activity.application_name, ''), 'unnamed') as name, activity.usename::text as user,
    activity.state, lock.granted, clock_timestamp() - activity.xact_start as since
from pg_locks as lock
left join pg_stat_activity as activity on activity.pid = lock.pid
where lock.locktype = 'relation'
  and lock.relation = to_regclass('core.outbox')
  and lock.database = (select db.oid from pg_database as db where db.datname = current_database())
  and lock.mode = 'AccessExclusiveLock'
order by lock.granted desc, lock.pid
limit 3
"""

# Blocks drawn at random until there should be `rows` rows: as cheap on a table of a hundred million as on a small one.
LATENCY: Final = b"""
select coalesce(sum(day.sample), 0)::integer as sample, min(day.p99) as p99, count(*)::integer as days
from (
    select
        count(*) as sample,
        percentile_disc(0.99) within group (order by outbox.delivered_at - outbox.next_attempt_at) as p99
    from core.outbox tablesample system (%(percent)s)
    where outbox.status = 'delivered'
      and outbox.target is not null
      and outbox.delivered_at > clock_timestamp() - interval '7 days'
    group by date_trunc('day', outbox.delivered_at)
) as day
"""
