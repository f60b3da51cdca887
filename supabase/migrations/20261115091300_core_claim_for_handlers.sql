-- Claim, for workers that run handlers: the answer also says which of their handlers have taken effect already, and
-- whether the row is a suspect. No worker called the first form yet, so it is replaced under its name.

drop function core.outbox_claim(text, text, bigint[], text[], text[], integer, timestamptz);

-- The rows of one claim are marked in flight and charged an attempt in the same step, so that an event which kills its
-- process runs out of attempts. A suspect, a row whose last worker was lost, is handed out alone: should it be what
-- killed it, it takes no neighbour along the next time.
--
-- p_event_types: the types there are handlers for; null takes every type.
-- p_due_after: start the scan at this due time (the last one seen). A snapshot that pins old row versions makes the
-- scan walk their dead index entries; starting late avoids it. Null scans from the beginning, which is what picks up
-- retries and late commits, and has to be done now and then.
-- p_handler_names: of these, `handled` names those that hold the row's key already and need not run. It is what a look
-- showed, not the gate: outbox_begin is.
-- While the brake of the context is pulled, nothing is claimed.
--
-- Locks: the rows it takes and the first of each generation and channel, FOR UPDATE SKIP LOCKED, until the end of the
-- transaction, which should be short and may be committed without waiting for the disk: a claim lost in a crash is just
-- pending again.
create function core.outbox_claim(
    p_worker text,
    p_context text,
    p_generations bigint[],
    p_channels text[],
    p_event_types text[],
    p_limit integer default 10,
    p_due_after timestamptz default null,
    p_handler_names text[] default '{}'
) returns table (
    id uuid, event_id uuid, event_type text, event_version integer, occurred_at timestamptz, source text, target text,
    workspace_id uuid, payload text, idempotency_key text, trace_context text, content_class text, channel text,
    generation bigint, attempts integer, created_at timestamptz, due_at timestamptz, claim_token uuid,
    suspect boolean, handled text[]
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    -- One plan for every call and every state of the statistics: the partial index in its own order. A plan cached
    -- while the table was small must not read a table that has grown.
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    -- A generic plan's guess of the backlog may look worth compiling; the few rows it reads never are.
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_due_after timestamptz := coalesce(p_due_after, '-infinity');
    v_token uuid := gen_random_uuid();
    v_line record;
    v_chosen uuid[] := '{}';
    v_found uuid[];
begin
    if coalesce(p_worker, '') = '' or p_limit is null or p_limit < 1 then
        raise exception 'a claim needs a worker''s name and a limit of at least 1'
            using errcode = 'invalid_parameter_value';
    end if;
    if exists (select from core.brakes where brakes.context in (p_context, '*')) then
        return;
    end if;

    -- Each generation and channel is a line of its own; the one whose first row has waited longest is served first.
    for v_line in
        select accepted.generation, heard.channel, head.id, head.suspect
        from (select distinct given.generation from unnest(p_generations) as given (generation)) as accepted
        cross join (select distinct given.channel from unnest(p_channels) as given (channel)) as heard
        cross join lateral (
            select
                outbox.id, outbox.next_attempt_at,
                coalesce(outbox.attempts > 0 and outbox.last_error like 'WorkerLostError:%', false) as suspect
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = accepted.generation
              and outbox.channel = heard.channel
              and outbox.target = p_context
              and (p_event_types is null or outbox.event_type = any (p_event_types))
              and outbox.next_attempt_at <= v_now
              and outbox.next_attempt_at >= v_due_after
            order by outbox.next_attempt_at, outbox.id
            limit 1
            for update skip locked
        ) as head
        order by head.next_attempt_at, head.id
    loop
        exit when cardinality(v_chosen) >= p_limit;
        if v_line.suspect then
            continue when cardinality(v_chosen) > 0;
            v_chosen := array[v_line.id];
            exit;
        end if;
        select coalesce(array_agg(line.id), '{}')
        into v_found
        from (
            select outbox.id
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = v_line.generation
              and outbox.channel = v_line.channel
              and outbox.target = p_context
              and (p_event_types is null or outbox.event_type = any (p_event_types))
              and outbox.next_attempt_at <= v_now
              and outbox.next_attempt_at >= v_due_after
              and (outbox.attempts = 0 or outbox.last_error is null or outbox.last_error not like 'WorkerLostError:%')
            order by outbox.next_attempt_at, outbox.id
            limit p_limit - cardinality(v_chosen)
            for update skip locked
        ) as line;
        v_chosen := v_chosen || v_found;
    end loop;

    return query
    with claimed as (
        update core.outbox
        set status = 'in_flight',
            attempts = outbox.attempts + 1,
            claim_token = v_token,
            claimed_by = p_worker,
            claimed_at = v_now
        where outbox.id = any (v_chosen)
        returning outbox.*
    )
    select
        claimed.id, coalesce(claimed.parent_id, claimed.id), claimed.event_type, claimed.event_version,
        claimed.occurred_at, claimed.source, claimed.target, claimed.workspace_id, claimed.payload::text,
        claimed.idempotency_key, claimed.trace_context, claimed.content_class, claimed.channel,
        claimed.generation, claimed.attempts, claimed.created_at, claimed.next_attempt_at, claimed.claim_token,
        coalesce(claimed.attempts > 1 and claimed.last_error like 'WorkerLostError:%', false),
        array(
            select asked.handler_name
            from unnest(p_handler_names) as asked (handler_name)
            -- Each by its whole key: a join could be planned, while the table was small, from the half of the key that
            -- is not its beginning, and would read the whole index for each row.
            cross join lateral (
                select
                from core.event_handled
                where event_handled.handler_name = asked.handler_name
                  and event_handled.idempotency_key = claimed.idempotency_key
                limit 1
            ) as known
        )
    from claimed
    order by claimed.next_attempt_at, claimed.id;
end
$$;
alter function core.outbox_claim(text, text, bigint[], text[], text[], integer, timestamptz, text[])
    owner to spectral_owner;
revoke execute on function core.outbox_claim(text, text, bigint[], text[], text[], integer, timestamptz, text[])
    from public;
grant execute on function core.outbox_claim(text, text, bigint[], text[], text[], integer, timestamptz, text[])
    to spectral_worker;

-- How long until the next row of these contexts (or broadcast) falls due that is not due yet; null if none waits. A
-- worker sleeps no longer than that. Locks: none.
create function core.outbox_next_due(p_contexts text[], p_generations bigint[], p_channels text[]) returns interval
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
    return (
        select min(head.next_attempt_at) - v_now
        from (select distinct given.generation from unnest(p_generations) as given (generation)) as accepted
        cross join (select distinct given.channel from unnest(p_channels) as given (channel)) as heard
        cross join lateral (
            select addressed.next_attempt_at
            from unnest(p_contexts) as asked (context)
            cross join lateral (
                select outbox.next_attempt_at
                from core.outbox
                where outbox.status = 'pending'
                  and outbox.deleted_at is null
                  and outbox.generation = accepted.generation
                  and outbox.channel = heard.channel
                  and outbox.target = asked.context
                  and outbox.next_attempt_at > v_now
                order by outbox.next_attempt_at, outbox.id
                limit 1
            ) as addressed
            union all
            (
                select outbox.next_attempt_at
                from core.outbox
                where outbox.status = 'pending'
                  and outbox.deleted_at is null
                  and outbox.generation = accepted.generation
                  and outbox.channel = heard.channel
                  and outbox.target is null
                  and outbox.next_attempt_at > v_now
                -- the target is null in all of them; naming it lets the index's own order be used
                order by outbox.target, outbox.next_attempt_at, outbox.id
                limit 1
            )
        ) as head
    );
end
$$;
alter function core.outbox_next_due(text[], bigint[], text[]) owner to spectral_owner;
revoke execute on function core.outbox_next_due(text[], bigint[], text[]) from public;
grant execute on function core.outbox_next_due(text[], bigint[], text[]) to spectral_worker;
