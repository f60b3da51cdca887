-- What a worker may do with rows it has claimed: begin, settle, release, renew. Each takes many rows as parallel arrays
-- of ids and claim tokens and answers those it still held; a row that is missing from the answer (for begin: that is
-- called fenced) was lost to the reaper, and everything done for it has to be rolled back.
--
-- A row is in flight exactly when it has a token (outbox_claim_check), so the token alone is asked for: with the
-- status in the condition the planner may start from the index of rows in flight and compare each with the whole array.

-- Arrays that belong together have one length; anything else is a caller's mistake, not a partial answer.
create function core.require_parallel(variadic p_lengths integer[]) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if (select count(distinct coalesce(given.length, -1)) <> 1
        from unnest(p_lengths) as given (length)) then
        raise exception 'parallel arrays must have the same length, got %', p_lengths
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
alter function core.require_parallel(integer[]) owner to spectral_owner;
revoke execute on function core.require_parallel(integer[]) from public;

-- One row, one answer: a row that is given twice, perhaps under an old token and a new one, is a caller's mistake.
create function core.require_distinct(p_given text[]) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if (select count(*) <> count(distinct given.each) from unnest(p_given) as given (each)) then
        raise exception 'a row is given twice' using errcode = 'invalid_parameter_value';
    end if;
end
$$;
alter function core.require_distinct(text[]) owner to spectral_owner;
revoke execute on function core.require_distinct(text[]) from public;

-- Begin: lock the claimed rows and pass the dedup gate, in the transaction that the handler will write in.
-- A row with several handlers appears once for each. Verdicts: run (the key is yours, run the handler), handled (the
-- key was taken before: do not run), fenced (the claim is no longer yours: stop).
-- The rows of one call stand or fall together: a handler that may fail alone begins inside the savepoint it is rolled
-- back to, in a call of its own, for its key has to go with its writes. Plain handlers, which write nothing here, begin
-- many at once when they settle.
-- Locks: the rows, FOR UPDATE, in id order; then the keys, in key order, waiting for whoever holds one uncommitted.
create function core.outbox_begin(
    p_ids uuid[],
    p_tokens uuid[],
    p_handler_names text[]
) returns table (id uuid, handler_name text, verdict text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set jit = off
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
alter function core.outbox_begin(uuid[], uuid[], text[]) owner to spectral_owner;
revoke execute on function core.outbox_begin(uuid[], uuid[], text[]) from public;

-- Settle: write the outcomes: delivered, retry (pending again after a delay) or dead_letter (failed, with its error).
-- Answers the rows whose claim still stood, with their new status. Locks: the rows, in id order.
create function core.outbox_settle(
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
    returning outbox.id, outbox.status;
end
$$;
alter function core.outbox_settle(uuid[], uuid[], text[], text[], interval[]) owner to spectral_owner;
revoke execute on function core.outbox_settle(uuid[], uuid[], text[], text[], interval[]) from public;

-- Release: give unstarted claims back as if they had never been made, and wake whoever may take them.
-- Locks: the rows, in id order.
create function core.outbox_release(p_ids uuid[], p_tokens uuid[]) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
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
        order by outbox.id
        for update of outbox
    ),
    released as (
        update core.outbox
        set status = 'pending', attempts = outbox.attempts - 1,
            claim_token = null, claimed_by = null, claimed_at = null
        from held
        where outbox.id = held.id
        returning outbox.id, outbox.channel
    ),
    -- one knock on each door, not one for each row
    woken as materialized (
        select pg_notify(knock.channel, knock.id::text)
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
alter function core.outbox_release(uuid[], uuid[]) owner to spectral_owner;
revoke execute on function core.outbox_release(uuid[], uuid[]) from public;

-- Renew: start the lease anew, and answer the claims that still stand. Touches no indexed column.
-- Locks: the rows, but waits for none: a row that is locked belongs to a handler whose transaction is open, and such a
-- row cannot be reaped, so its lease does not matter.
create function core.outbox_renew(p_ids uuid[], p_tokens uuid[]) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
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
        order by outbox.id
        limit cardinality(p_ids)
        for update of outbox skip locked
    ),
    renewed as (
        update core.outbox
        set claimed_at = clock_timestamp()
        from free
        where outbox.id = free.id
        returning outbox.id
    )
    select outbox.id
    from core.outbox
    join given on given.id = outbox.id
    where outbox.claim_token = given.token;
end
$$;
alter function core.outbox_renew(uuid[], uuid[]) owner to spectral_owner;
revoke execute on function core.outbox_renew(uuid[], uuid[]) from public;
