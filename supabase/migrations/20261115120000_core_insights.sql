-- Insight: what waits, what runs and what failed, in numbers. People at the controls and the workers' metrics read the
-- same ones, through the same functions.
--
-- A worker may read no event, and a reader only those of its own workspace; how many there are, of which context and
-- generation, is nobody's secret. So these run as the owner, and answer with counts and ages alone: no payload, no key,
-- no workspace. Each is bounded: no count goes beyond 10,001 and no list of lanes beyond 201, whatever is asked for.
-- Whatever the statistics say, it is the partial index that is read. They lock nothing and change nothing.

-- Rows that wait, for each generation, channel and context; without a context: broadcasts that are not split yet.
-- p_now: what is due by then counts as due, the rest as waiting. p_cap: how far to count; p_lanes: how many to list.
create function core.insight_lanes(p_now timestamptz, p_cap integer, p_lanes integer) returns table (
    generation bigint, generation_status text, channel text, context text,
    due bigint, waiting bigint, oldest_due interval, next_due interval
)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
    with recursive
    -- each generation and channel on which something waits: one step of the index for each, however many rows there are
    line as (
        (
            select outbox.generation, outbox.channel
            from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and (outbox.generation, outbox.channel) > (-1, '')
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
    found as materialized (select * from line limit least(p_lanes, 201)),
    -- each context on it, in the same way
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
        (select * from addressed limit least(p_lanes, 201))
        union all
        -- looked up for each, by the limit: EXISTS might be answered by reading every broadcast that waits
        select found.generation, found.channel, null
        from found
        cross join lateral (
            select from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and outbox.generation = found.generation and outbox.channel = found.channel and outbox.target is null
            limit 1
        ) as unsplit
        limit least(p_lanes, 201)
    )
    select
        lane.generation, deployment.status as generation_status, lane.channel, lane.target as context,
        coalesce(to_target.due, broadcast.due) as due, coalesce(to_target.waiting, broadcast.waiting) as waiting,
        p_now - coalesce(to_target.first_due, broadcast.first_due) as oldest_due,
        coalesce(to_target.first_waiting, broadcast.first_waiting) - p_now as next_due
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
                      and outbox.target = lane.target and outbox.next_attempt_at <= p_now
                    limit least(p_cap, 10001)
                ) as counted
            ) as due,
            (
                select count(*) from (
                    select from core.outbox
                    where outbox.status = 'pending' and outbox.deleted_at is null
                      and outbox.generation = lane.generation and outbox.channel = lane.channel
                      and outbox.target = lane.target and outbox.next_attempt_at > p_now
                    limit least(p_cap, 10001)
                ) as counted
            ) as waiting,
            (
                select outbox.next_attempt_at from core.outbox
                where outbox.status = 'pending' and outbox.deleted_at is null
                  and outbox.generation = lane.generation and outbox.channel = lane.channel
                  and outbox.target = lane.target and outbox.next_attempt_at <= p_now
                order by outbox.next_attempt_at
                limit 1
            ) as first_due,
            (
                select outbox.next_attempt_at from core.outbox
                where outbox.status = 'pending' and outbox.deleted_at is null
                  and outbox.generation = lane.generation and outbox.channel = lane.channel
                  and outbox.target = lane.target and outbox.next_attempt_at > p_now
                order by outbox.next_attempt_at
                limit 1
            ) as first_waiting
    ) as to_target on lane.target is not null
    left join lateral (
        select
            count(*) filter (where counted.next_attempt_at <= p_now) as due,
            count(*) filter (where counted.next_attempt_at > p_now) as waiting,
            min(counted.next_attempt_at) filter (where counted.next_attempt_at <= p_now) as first_due,
            min(counted.next_attempt_at) filter (where counted.next_attempt_at > p_now) as first_waiting
        from (
            select outbox.next_attempt_at from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and outbox.generation = lane.generation and outbox.channel = lane.channel and outbox.target is null
            order by outbox.target, outbox.next_attempt_at
            limit least(p_cap, 10001)
        ) as counted
    ) as broadcast on lane.target is null
    order by lane.generation desc, lane.target nulls last, lane.channel
$$;
alter function core.insight_lanes(timestamptz, integer, integer) owner to spectral_owner;
revoke execute on function core.insight_lanes(timestamptz, integer, integer) from public;
grant execute on function core.insight_lanes(timestamptz, integer, integer)
    to spectral_worker, spectral_operator, spectral_readonly;

-- Rows in flight, for each generation, context and claimer; stale: those whose claimer shows no sign of life. A claim
-- younger than the reaper's grace is not called stale: its worker may be reconnecting.
create function core.insight_in_flight(p_now timestamptz, p_cap integer) returns table (
    generation bigint, generation_status text, context text, worker text, rows bigint, stale bigint
)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
    with held as materialized (
        select
            counted.generation, counted.target, counted.claimed_by,
            count(*) as rows, count(*) filter (where counted.claimed_at < p_now - interval '5 seconds') as settled_down
        from (
            select outbox.generation, outbox.target, outbox.claimed_by, outbox.claimed_at
            from core.outbox
            where outbox.status = 'in_flight'
            limit least(p_cap, 10001)
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
$$;
alter function core.insight_in_flight(timestamptz, integer) owner to spectral_owner;
revoke execute on function core.insight_in_flight(timestamptz, integer) from public;
grant execute on function core.insight_in_flight(timestamptz, integer)
    to spectral_worker, spectral_operator, spectral_readonly;

-- The newest dead letters, for each generation and context; lately: within the hour before p_now.
create function core.insight_failed(p_now timestamptz, p_cap integer) returns table (
    generation bigint, generation_status text, context text, rows bigint, lately bigint
)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
    select
        counted.generation,
        (
            select deployment.status from core.deployments as deployment
            where deployment.generation = counted.generation
        ) as generation_status,
        counted.target as context, count(*) as rows,
        count(*) filter (where counted.claimed_at > p_now - interval '1 hour') as lately
    from (
        select outbox.generation, outbox.target, outbox.claimed_at
        from core.outbox
        where outbox.status = 'failed' and outbox.deleted_at is null
        order by outbox.first_failed_at desc, outbox.id
        limit least(p_cap, 10001)
    ) as counted
    group by counted.generation, counted.target
$$;
alter function core.insight_failed(timestamptz, integer) owner to spectral_owner;
revoke execute on function core.insight_failed(timestamptz, integer) from public;
grant execute on function core.insight_failed(timestamptz, integer)
    to spectral_worker, spectral_operator, spectral_readonly;

-- When the oldest event was delivered that is not put away yet: by that a sweep that never came is seen to be late. The
-- oldest stand at the beginning of the table until something is swept, so its first hundred blocks are enough.
create function core.insight_oldest_delivered() returns timestamptz
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
    select min(outbox.delivered_at)
    from core.outbox
    where outbox.ctid < '(100,0)' and outbox.status = 'delivered' and outbox.deleted_at is null
$$;
alter function core.insight_oldest_delivered() owner to spectral_owner;
revoke execute on function core.insight_oldest_delivered() from public;
grant execute on function core.insight_oldest_delivered()
    to spectral_worker, spectral_operator, spectral_retention, spectral_readonly;

-- The rest of what an operator sees at a glance has no event in it.
grant select on core.workers, core.brakes, core.sweeper to spectral_worker;
grant execute on function core.worker_lives(text) to spectral_worker;

-- The advisory lock of the one that measures the database for all of its workers. It is held on a connection of its
-- own, so the server drops it in the moment the process is gone, and another one takes over.
create function core.emitter_lock_key() returns bigint
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select hashtextextended('spectral.emitter', 0)
$$;
alter function core.emitter_lock_key() owner to spectral_owner;
revoke execute on function core.emitter_lock_key() from public;
grant execute on function core.emitter_lock_key() to spectral_worker;

-- What a worker says of rows that it took back or failed without having claimed them: whose they were, not what they
-- carry. Answers those of the ids that are in the DLQ. Locks: none.
create function core.outbox_names(p_ids uuid[]) returns table (
    id uuid, event_id uuid, event_type text, source text, target text, workspace_id uuid, trace_context text,
    attempts integer, last_error text, generation bigint
)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return query
    select
        outbox.id, coalesce(outbox.parent_id, outbox.id), outbox.event_type, outbox.source, outbox.target,
        outbox.workspace_id, outbox.trace_context, outbox.attempts, outbox.last_error, outbox.generation
    from core.outbox
    where outbox.id = any (p_ids)
      and outbox.status = 'failed';
end
$$;
alter function core.outbox_names(uuid[]) owner to spectral_owner;
revoke execute on function core.outbox_names(uuid[]) from public;
grant execute on function core.outbox_names(uuid[]) to spectral_worker;
