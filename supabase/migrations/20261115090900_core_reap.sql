-- Reap: take back what nobody is working on any more. Any worker may call it at any time; doubled calls are harmless.

-- The advisory lock by which a worker shows that it lives. It holds it on its ear connection, so the server drops it in
-- the moment the process is gone.
create function core.worker_lock_key(p_worker text) returns bigint
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select hashtextextended('spectral.worker.' || p_worker, 0)
$$;
alter function core.worker_lock_key(text) owner to spectral_owner;
revoke execute on function core.worker_lock_key(text) from public;

-- Takes back claims whose lease ran out (p_ttl), and after a short grace those of workers that show no sign of life; a
-- worker that has lost its ear for a moment keeps its claims by renewing them within the grace.
-- A row with attempts left is pending again at once and its channel is woken; one without goes to the DLQ. How many it
-- has is its handlers' business: the subscriptions say; p_max_attempts is for rows that no subscription speaks of. The
-- first loss never sends a row to the DLQ: it may have been a neighbour's doing, and only the second claim was alone.
-- Locks: rows in flight, FOR UPDATE SKIP LOCKED: a row whose handler's transaction is open is never taken, and of two
-- reapers at once each takes what the other does not.
create function core.outbox_reap(
    p_ttl interval default interval '300 seconds',
    p_grace interval default interval '5 seconds',
    p_limit integer default 100,
    p_max_attempts integer default 6
) returns table (id uuid, status text, reason text, worker text, attempts integer)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_living bigint[];
begin
    if p_ttl < interval '0' or p_grace < interval '0' or p_limit < 1 or p_max_attempts < 1 then
        raise exception 'times cannot be negative, and limits are at least 1'
            using errcode = 'invalid_parameter_value';
    end if;

    select coalesce(
        array_agg((lock.classid::bigint << 32) | lock.objid::bigint), '{}'
    )
    into v_living
    from pg_locks as lock
    where lock.locktype = 'advisory'
      and lock.objsubid = 1
      and lock.granted
      and lock.database = (select db.oid from pg_database as db where db.datname = current_database());

    return query
    with abandoned as materialized (
        select
            outbox.id, outbox.generation, outbox.target, outbox.event_type, outbox.attempts,
            outbox.claimed_by as worker,
            case when outbox.claimed_at < v_now - p_ttl then 'expired' else 'orphaned' end as reason
        from core.outbox
        where outbox.status = 'in_flight'
          and outbox.claimed_at < v_now - least(p_grace, p_ttl)
          and (
              outbox.claimed_at < v_now - p_ttl
              or core.worker_lock_key(outbox.claimed_by) <> all (v_living)
          )
        order by outbox.claimed_by, outbox.id
        limit p_limit
        for update skip locked
    ),
    verdict as (
        select
            abandoned.id, abandoned.worker, abandoned.reason,
            abandoned.attempts >= greatest(2, coalesce(
                (
                    select max(subscription.max_attempts)
                    from core.subscriptions as subscription
                    where subscription.generation = abandoned.generation
                      and subscription.context = abandoned.target
                      and subscription.event_type = abandoned.event_type
                ),
                p_max_attempts
            )) as exhausted
        from abandoned
    ),
    taken as (
        update core.outbox
        set status = case when verdict.exhausted then 'failed' else 'pending' end,
            next_attempt_at = case when verdict.exhausted then outbox.next_attempt_at else v_now end,
            claim_token = null,
            claimed_by = case when verdict.exhausted then outbox.claimed_by end,
            claimed_at = case when verdict.exhausted then v_now else outbox.claimed_at end,
            last_error = 'WorkerLostError: worker ' || left(verdict.worker, 200)
                || case verdict.reason
                       when 'expired' then ' let its lease run out'
                       else ' is gone'
                   end,
            first_failed_at = coalesce(outbox.first_failed_at, v_now)
        from verdict
        where outbox.id = verdict.id
        returning outbox.id, outbox.status, outbox.channel, outbox.attempts, verdict.reason, verdict.worker
    ),
    woken as materialized (
        select pg_notify(knock.channel, knock.id::text)
        from (
            select distinct on (taken.channel) taken.channel, taken.id
            from taken
            where taken.status = 'pending'
            order by taken.channel, taken.id
        ) as knock
    )
    select taken.id, taken.status, taken.reason, taken.worker, taken.attempts
    from taken
    where (select count(*) from woken) >= 0
    order by taken.id;
end
$$;
alter function core.outbox_reap(interval, interval, integer, integer) owner to spectral_owner;
revoke execute on function core.outbox_reap(interval, interval, integer, integer) from public;

-- Rows that no handler of their context and generation is subscribed to, due for longer than p_grace, go to the DLQ.
-- The subscriptions decide, never the handlers that the calling process happens to have.
-- Locks: the rows, FOR UPDATE SKIP LOCKED.
create function core.outbox_fail_unhandled(
    p_context text,
    p_generations bigint[],
    p_channels text[],
    p_grace interval default interval '300 seconds',
    p_limit integer default 100
) returns table (id uuid, event_type text, generation bigint)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    -- The few rows found are looked up one by one; a join of another kind would read the whole primary key.
    set enable_hashjoin = off
    set enable_mergejoin = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    return query
    with unhandled as materialized (
        select due.id
        from (select distinct given.generation from unnest(p_generations) as given (generation)) as accepted
        cross join (select distinct given.channel from unnest(p_channels) as given (channel)) as heard
        cross join lateral (
            select outbox.id
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = accepted.generation
              and outbox.channel = heard.channel
              and outbox.target = p_context
              and outbox.next_attempt_at <= v_now - p_grace
              and not exists (
                  select
                  from core.subscriptions as subscription
                  where subscription.generation = outbox.generation
                    and subscription.context = outbox.target
                    and subscription.event_type = outbox.event_type
              )
            order by outbox.next_attempt_at, outbox.id
            limit p_limit
            for update skip locked
        ) as due
    )
    update core.outbox
    set status = 'failed',
        claimed_at = v_now,
        last_error = 'NoHandlerError: no handler of ' || outbox.target || ' is subscribed to '
            || outbox.event_type || ' in generation ' || outbox.generation,
        first_failed_at = coalesce(outbox.first_failed_at, v_now)
    from unhandled
    where outbox.id = unhandled.id
    returning outbox.id, outbox.event_type, outbox.generation;
end
$$;
alter function core.outbox_fail_unhandled(text, bigint[], text[], interval, integer) owner to spectral_owner;
revoke execute on function core.outbox_fail_unhandled(text, bigint[], text[], interval, integer) from public;
