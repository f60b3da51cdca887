-- Plans that outlive the table they were made for. A session keeps its plans until the next analyze; made on a table of
-- one page, a join with core.outbox reads the whole primary key, for that is the cheapest way while it is one page, and
-- goes on doing so when there are a million rows. No switch of the planner forbids that, so the functions below say it
-- in their conditions; what they do, their owner and who may call them stay as they were, but that wake-ups go through
-- core.outbox_wake.
--
-- `outbox.id = any (...)` stands beside each join, or instead of it: a condition on the table alone is an index
-- condition in every plan. Where rows are joined with what was given for them, nested loops are off: they would compare
-- every row with the whole array. Where one row is looked up for another, it is by a subquery that is not a join.

-- Begin: lock the claimed rows and pass the dedup gate, in the transaction that the handler will write in.
-- A row with several handlers appears once for each. Verdicts: run (the key is yours, run the handler), handled (the
-- key was taken before: do not run), fenced (the claim is no longer yours: stop).
-- The rows of one call stand or fall together: a handler that may fail alone begins inside the savepoint it is rolled
-- back to, in a call of its own, for its key has to go with its writes. Plain handlers, which write nothing here, begin
-- many at once when they settle.
-- Locks: the rows, FOR UPDATE, in id order; then the keys, in key order, waiting for whoever holds one uncommitted.
create or replace function core.outbox_begin(
    p_ids uuid[],
    p_tokens uuid[],
    p_handler_names text[]
) returns table (id uuid, handler_name text, verdict text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_nestloop = off
    set jit = off
    -- A key may be held uncommitted by a handler of minutes: the worker gives the row back and comes again.
    set lock_timeout = '2s'
as $$
begin
    perform core.require_parallel(
        cardinality(p_ids), cardinality(p_tokens), cardinality(p_handler_names)
    );
    perform core.require_distinct(array(
        select format('%s %s', given.id, given.handler_name)
        from unnest(p_ids, p_handler_names) as given (id, handler_name)
    ));

    return query
    with asked as materialized (
        select given.id, given.token, given.handler_name
        from unnest(p_ids, p_tokens, p_handler_names) as given (id, token, handler_name)
    ),
    -- the claims that still stand
    held as materialized (
        select outbox.id, outbox.idempotency_key, outbox.content_class
        from core.outbox
        join (select distinct asked.id, asked.token from asked) as claim on claim.id = outbox.id
        where outbox.claim_token = claim.token
          and outbox.id = any (p_ids)
        order by outbox.id
        for update of outbox
    ),
    -- the gate: whoever inserts the key runs the handler
    passed as (
        insert into core.event_handled as handled (handler_name, idempotency_key, event_id, content_class)
        select asked.handler_name, held.idempotency_key, held.id, held.content_class
        from asked
        join held on held.id = asked.id
        order by held.idempotency_key, asked.handler_name, held.id
        on conflict do nothing
        returning handled.handler_name, handled.event_id
    )
    select
        asked.id,
        asked.handler_name,
        case
            when held.id is null then 'fenced'
            when passed.event_id is null then 'handled'
            else 'run'
        end
    from asked
    left join held on held.id = asked.id
    left join passed on passed.event_id = asked.id and passed.handler_name = asked.handler_name;
end
$$;

-- Settle: write the outcomes: delivered, retry (pending again after a delay) or dead_letter (failed, with its error).
-- Answers the rows whose claim still stood, with their new status. Locks: the rows, in id order.
create or replace function core.outbox_settle(
    p_ids uuid[],
    p_tokens uuid[],
    p_outcomes text[],
    p_errors text[],
    p_delays interval[]
) returns table (id uuid, status text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_nestloop = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    perform core.require_parallel(
        cardinality(p_ids), cardinality(p_tokens), cardinality(p_outcomes),
        cardinality(p_errors), cardinality(p_delays)
    );
    perform core.require_distinct(p_ids::text[]);
    if exists (
        select
        from unnest(p_outcomes, p_errors) as given (outcome, error)
        where given.outcome is null
           or given.outcome not in ('delivered', 'retry', 'dead_letter')
           or (given.outcome <> 'delivered' and given.error is null)
    ) then
        raise exception 'an outcome is delivered, or retry or dead_letter with an error'
            using errcode = 'invalid_parameter_value';
    end if;

    return query
    with given as materialized (
        select
            ask.id, ask.token, ask.outcome,
            -- 4,096 bytes at most, whatever the caller sends: an error text must never keep a row from settling
            case
                when octet_length(ask.error) <= 4096 then ask.error
                else left(ask.error, 1024)
            end as error,
            ask.delay
        from unnest(p_ids, p_tokens, p_outcomes, p_errors, p_delays)
            as ask (id, token, outcome, error, delay)
    ),
    held as materialized (
        select outbox.id
        from core.outbox
        join given on given.id = outbox.id
        where outbox.claim_token = given.token
          and outbox.id = any (p_ids)
        order by outbox.id
        for update of outbox
    )
    update core.outbox
    set status = case given.outcome when 'delivered' then 'delivered' when 'retry' then 'pending' else 'failed' end,
        delivered_at = case given.outcome when 'delivered' then v_now end,
        next_attempt_at = case given.outcome
            when 'retry' then
                v_now + least(greatest(coalesce(given.delay, interval '0'), interval '0'), interval '1 year')
            else outbox.next_attempt_at
        end,
        claim_token = null,
        claimed_by = case given.outcome when 'retry' then null else outbox.claimed_by end,
        -- a failed row's claimed_at is when it failed: the runbook and the history read it so
        claimed_at = case given.outcome when 'dead_letter' then v_now else outbox.claimed_at end,
        last_error = case given.outcome when 'delivered' then outbox.last_error else given.error end,
        first_failed_at = case given.outcome
            when 'delivered' then outbox.first_failed_at
            else coalesce(outbox.first_failed_at, v_now)
        end
    from held
    join given on given.id = held.id
    where outbox.id = held.id
      and outbox.id = any (p_ids)
    returning outbox.id, outbox.status;
end
$$;

-- Release: give unstarted claims back as if they had never been made, and wake whoever may take them.
-- Locks: the rows, in id order.
create or replace function core.outbox_release(p_ids uuid[], p_tokens uuid[]) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_nestloop = off
    set jit = off
as $$
begin
    perform core.require_parallel(cardinality(p_ids), cardinality(p_tokens));

    return query
    with held as materialized (
        select outbox.id
        from core.outbox
        join unnest(p_ids, p_tokens) as given (id, token) on given.id = outbox.id
        where outbox.claim_token = given.token
          and outbox.id = any (p_ids)
        order by outbox.id
        for update of outbox
    ),
    released as (
        update core.outbox
        set status = 'pending', attempts = outbox.attempts - 1,
            claim_token = null, claimed_by = null, claimed_at = null
        from held
        where outbox.id = held.id
          and outbox.id = any (p_ids)
        returning outbox.id, outbox.channel
    ),
    -- one knock on each door, not one for each row
    woken as materialized (
        select core.outbox_wake(knock.channel, knock.id::text)
        from (
            select distinct on (released.channel) released.channel, released.id
            from released
            order by released.channel, released.id
        ) as knock
    )
    select released.id
    from released
    where (select count(*) from woken) >= 0;
end
$$;

-- Renew: start the lease anew, and answer the claims that still stand. Touches no indexed column.
-- Locks: the rows, but waits for none: a row that is locked belongs to a handler whose transaction is open, and such a
-- row cannot be reaped, so its lease does not matter.
create or replace function core.outbox_renew(p_ids uuid[], p_tokens uuid[]) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_nestloop = off
    set jit = off
as $$
begin
    perform core.require_parallel(cardinality(p_ids), cardinality(p_tokens));

    return query
    with given as materialized (
        select ask.id, ask.token
        from unnest(p_ids, p_tokens) as ask (id, token)
    ),
    free as materialized (
        select outbox.id
        from core.outbox
        join given on given.id = outbox.id
        where outbox.claim_token = given.token
          and outbox.id = any (p_ids)
        order by outbox.id
        limit cardinality(p_ids)
        for update of outbox skip locked
    ),
    renewed as (
        update core.outbox
        set claimed_at = clock_timestamp()
        from free
        where outbox.id = free.id
          and outbox.id = any (p_ids)
        returning outbox.id
    )
    select outbox.id
    from core.outbox
    join given on given.id = outbox.id
    where outbox.claim_token = given.token
      and outbox.id = any (p_ids);
end
$$;

-- Takes back claims whose lease ran out (p_ttl), and after a short grace those of workers that show no sign of life; a
-- worker that has lost its ear for a moment keeps its claims by renewing them within the grace.
-- A row with attempts left is pending again at once and its channel is woken; one without goes to the DLQ. How many it
-- has is its handlers' business: the subscriptions say; p_max_attempts is for rows that no subscription speaks of. The
-- first loss never sends a row to the DLQ: it may have been a neighbour's doing, and only the second claim was alone.
-- Locks: rows in flight, FOR UPDATE SKIP LOCKED: a row whose handler's transaction is open is never taken, and of two
-- reapers at once each takes what the other does not.
create or replace function core.outbox_reap(
    p_ttl interval default interval '300 seconds',
    p_grace interval default interval '5 seconds',
    p_limit integer default 100,
    p_max_attempts integer default 6
) returns table (id uuid, status text, reason text, worker text, attempts integer)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_nestloop = off
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
          and outbox.id = any (array(select abandoned.id from abandoned))
        returning outbox.id, outbox.status, outbox.channel, outbox.attempts, verdict.reason, verdict.worker
    ),
    woken as materialized (
        select core.outbox_wake(knock.channel, knock.id::text)
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

-- Rows that no handler of their context and generation is subscribed to, due for longer than p_grace, go to the DLQ.
-- The subscriptions decide, never the handlers that the calling process happens to have.
-- Locks: the rows, FOR UPDATE SKIP LOCKED.
create or replace function core.outbox_fail_unhandled(
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
    where outbox.id = any (array(select unhandled.id from unhandled))
    returning outbox.id, outbox.event_type, outbox.generation;
end
$$;

-- Splits due broadcasts of these generations and channels; answers (parent, child, context), with the last two null for
-- a broadcast that nobody subscribes to. Parent and children change in one step. Nothing is split while the brake of
-- all contexts is pulled.
-- Locks: the parents, FOR UPDATE SKIP LOCKED.
create or replace function core.outbox_fan_out(
    p_generations bigint[],
    p_channels text[],
    p_limit integer default 100
) returns table (parent_id uuid, child_id uuid, context text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    if exists (select from core.brakes where brakes.context = '*') then
        return;
    end if;

    return query
    with broadcast as materialized (
        select due.*
        from (select distinct given.generation from unnest(p_generations) as given (generation)) as accepted
        cross join (select distinct given.channel from unnest(p_channels) as given (channel)) as heard
        cross join lateral (
            select outbox.*
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = accepted.generation
              and outbox.channel = heard.channel
              and outbox.target is null
              and outbox.next_attempt_at <= v_now
            -- the target is null in all of them; naming it lets the index's own order be used
            order by outbox.target, outbox.next_attempt_at, outbox.id
            limit p_limit
            for update skip locked
        ) as due
    ),
    share as materialized (
        select distinct broadcast.id as parent_id, subscription.context
        from broadcast
        join core.subscriptions as subscription
          on subscription.generation = broadcast.generation
         and subscription.event_type = broadcast.event_type
    ),
    child as (
        insert into core.outbox (
            id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
            idempotency_key, trace_context, parent_id, channel, generation
        )
        select
            -- An id that somebody has taken, by chance or on purpose, must not hold up the other broadcasts; that a
            -- context gets one child and no more is outbox_child_key's business.
            case
                when (
                    select true from core.outbox as taken
                    where taken.id = core.outbox_child_id(broadcast.id, share.context)
                ) then core.uuid7()
                else core.outbox_child_id(broadcast.id, share.context)
            end,
            broadcast.event_type, broadcast.event_version,
            broadcast.occurred_at, broadcast.source, share.context, broadcast.content_class, broadcast.workspace_id,
            broadcast.payload, broadcast.idempotency_key, broadcast.trace_context, broadcast.id,
            broadcast.channel, broadcast.generation
        from share
        join broadcast on broadcast.id = share.parent_id
        order by broadcast.next_attempt_at, broadcast.id, share.context
        returning outbox.id, outbox.parent_id, outbox.target
    ),
    parent as (
        update core.outbox
        set status = 'delivered', delivered_at = v_now
        where outbox.id = any (array(select broadcast.id from broadcast))
        returning outbox.id
    )
    select parent.id, child.id, child.target
    from parent
    left join child on child.parent_id = parent.id
    order by parent.id, child.target;
end
$$;

-- Locks those of the rows that are in the DLQ, and answers them. Rows in another state are neither locked nor waited
-- for: a handler may be at work on them. By primary key only, whatever the planner believes of the DLQ's size.
create or replace function core.outbox_lock_failed(p_event_ids uuid[]) returns uuid[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
declare
    v_candidates uuid[];
    v_locked uuid[];
begin
    with seen as materialized (
        select outbox.id, outbox.status
        from core.outbox
        where outbox.id = any (p_event_ids)
    )
    select array_agg(seen.id) into v_candidates from seen where seen.status = 'failed';

    -- in one order, so that two operators cannot block each other
    with locked as materialized (
        select outbox.id, outbox.status, outbox.deleted_at, outbox.channel
        from core.outbox
        where outbox.id = any (v_candidates)
        order by outbox.id
        for update
    ),
    -- Somebody was quicker and has replayed it: whoever that woke has passed it by, for it is locked here until the
    -- end of this transaction. So they are woken again, then.
    woken as materialized (
        select core.outbox_wake(missed.channel, '')
        from (select distinct locked.channel from locked where locked.status = 'pending') as missed
    )
    select coalesce(array_agg(locked.id order by locked.id), '{}')
    into v_locked
    from locked
    where locked.status = 'failed' and locked.deleted_at is null and (select count(*) from woken) >= 0;
    return v_locked;
end
$$;

-- Replays many failed rows into a generation: the finished cycle moves into the history, the row starts anew under the
-- same id and key, on the channel of its new generation (its class is kept), and that channel is woken.
-- Answers every id asked for, with the cycle that was closed or the reason it was refused.
-- Locks: the deployment, FOR SHARE, so that it is not retired meanwhile; the rows, FOR UPDATE, in id order.
create or replace function core.outbox_replay_many(
    p_event_ids uuid[],
    p_new_generation bigint,
    p_replayed_by text default null,
    p_reason text default null
) returns table (id uuid, cycle integer, refusal text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_generation_status text;
    v_replayed uuid[];
    v_asked uuid[] := (
        select coalesce(array_agg(distinct asked.id), '{}')
        from unnest(p_event_ids) as asked (id)
    );
begin
    select deployment.status
    into v_generation_status
    from core.deployments as deployment
    where deployment.generation = p_new_generation
    for share;
    if v_generation_status is null or v_generation_status = 'retired' then
        raise exception 'generation % is %', coalesce(p_new_generation::text, 'null'),
            coalesce(v_generation_status, 'unknown')
            using errcode = 'invalid_parameter_value',
                  hint = 'Replay into a generation that has workers: select * from core.live_generation.';
    end if;

    v_replayed := core.outbox_lock_failed(v_asked);
    with replayed as (
        update core.outbox
        set failure_history = outbox.failure_history || jsonb_build_array(jsonb_build_object(
                'cycle', jsonb_array_length(outbox.failure_history) + 1,
                'attempts', outbox.attempts,
                'last_error', outbox.last_error,
                'first_failed_at', outbox.first_failed_at,
                'failed_at', outbox.claimed_at,
                'replayed_at', v_now,
                'replayed_by', p_replayed_by
            )),
            generation = p_new_generation,
            channel = regexp_replace(
                outbox.channel, '^outbox_(default$|gen_[0-9]+)', 'outbox_gen_' || p_new_generation
            ),
            status = 'pending',
            attempts = 0,
            next_attempt_at = v_now,
            last_error = null,
            first_failed_at = null,
            claimed_by = null,
            claimed_at = null
        where outbox.id = any (v_replayed)
        returning outbox.id, outbox.channel
    ),
    woken as materialized (
        select core.outbox_wake(knock.channel, knock.id::text)
        from (
            select distinct on (replayed.channel) replayed.channel, replayed.id
            from replayed
            order by replayed.channel, replayed.id
        ) as knock
    )
    select coalesce(array_agg(replayed.id order by replayed.id), '{}')
    into v_replayed
    from replayed
    where (select count(*) from woken) >= 0;

    if cardinality(v_replayed) > 0 then
        insert into core.audit (action, actor, reason, affected, event_ids, detail)
        values (
            'replay', left(coalesce(nullif(p_replayed_by, ''), session_user), 200), left(p_reason, 2000),
            cardinality(v_replayed), v_replayed,
            jsonb_build_object('generation', p_new_generation)
        );
    end if;

    return query
    select
        asked.id,
        case when asked.id = any (v_replayed) then jsonb_array_length(outbox.failure_history) end,
        case
            when asked.id = any (v_replayed) then null
            when outbox.id is null then 'unknown'
            when outbox.deleted_at is not null then 'discarded'
            else outbox.status
        end
    from unnest(v_asked) as asked (id)
    left join lateral (
        select outbox.id, outbox.status, outbox.deleted_at, outbox.failure_history
        from core.outbox
        where outbox.id = asked.id
        limit 1
    ) as outbox on true
    order by asked.id;
end
$$;

-- Discards failed rows: they leave the DLQ, and the table when the retention sweep comes; the history stays till then.
-- Answers every id asked for; refusal is null for those discarded. Locks: the rows, FOR UPDATE, in id order.
create or replace function core.outbox_discard(
    p_event_ids uuid[],
    p_discarded_by text default null,
    p_reason text default null
) returns table (id uuid, refusal text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
declare
    v_discarded uuid[];
    v_asked uuid[] := (
        select coalesce(array_agg(distinct asked.id), '{}')
        from unnest(p_event_ids) as asked (id)
    );
begin
    v_discarded := core.outbox_lock_failed(v_asked);
    update core.outbox
    set deleted_at = clock_timestamp()
    where outbox.id = any (v_discarded);

    if cardinality(v_discarded) > 0 then
        insert into core.audit (action, actor, reason, affected, event_ids)
        values (
            'discard', left(coalesce(nullif(p_discarded_by, ''), session_user), 200), left(p_reason, 2000),
            cardinality(v_discarded), v_discarded
        );
    end if;

    return query
    select
        asked.id,
        case
            when asked.id = any (v_discarded) then null
            when outbox.id is null then 'unknown'
            when outbox.deleted_at is not null then 'discarded'
            else outbox.status
        end
    from unnest(v_asked) as asked (id)
    left join lateral (
        select outbox.id, outbox.status, outbox.deleted_at
        from core.outbox
        where outbox.id = asked.id
        limit 1
    ) as outbox on true
    order by asked.id;
end
$$;
