-- Claim from a position, and settle in one step.

-- As core.outbox_claim, which stays for workers of the generation before, but its cost does not depend on what lies
-- before or beside the rows it looks for:
--
-- p_from: start at this due time. A snapshot that pins old row versions keeps their index entries alive, and a scan from
-- the beginning walks over all of them; a worker that starts where it was walks over none. Null starts at the beginning,
-- which is what picks up retries and late commits, and has to be done now and then, and before sleeping.
-- p_window: look at so many pending rows of each generation and channel at most, whatever their type. Rows of types that
-- are not asked for are walked over, and there may be millions of them. Null looks at all.
--
-- The first row of the answer has no id: its claim_token is that of all rows, its occurred_at the time of the claim, its
-- due_at how far the claim looked: from there on, there may be more. Null: it looked at everything that is due. There is
-- no answer at all while the brake of the context is pulled.
-- waited: for how many seconds the row had been due. replays: how many cycles of it have ended in the DLQ. event_id is
-- null where it is the row's own id.
--
-- Locks: the rows it takes, FOR UPDATE SKIP LOCKED, until the end of the transaction, which should be short and may be
-- committed without waiting for the disk: a claim lost in a crash is just pending again.
create function core.outbox_claim_from(
    p_worker text,
    p_context text,
    p_generations bigint[],
    p_channels text[],
    p_event_types text[],
    p_limit integer,
    p_from timestamptz,
    p_window integer,
    p_handler_names text[]
) returns table (
    id uuid, claim_token uuid, event_id uuid, event_type text, event_version integer, occurred_at timestamptz,
    source text, workspace_id uuid, payload text, idempotency_key text, trace_context text, content_class text,
    channel text, generation bigint, attempts integer, due_at timestamptz, waited double precision, suspect boolean,
    replays integer, handled text[]
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
    v_from timestamptz := coalesce(p_from, '-infinity');
    v_token uuid := gen_random_uuid();
    v_line record;
    v_until timestamptz;
    v_reached timestamptz;
    v_head record;
    v_chosen uuid[] := '{}';
    v_found uuid[];
    v_last timestamptz;
begin
    if coalesce(p_worker, '') = '' or p_limit is null or p_limit < 1 or p_window < 1 then
        raise exception 'a claim needs a worker''s name, and a limit and a window of at least 1'
            using errcode = 'invalid_parameter_value';
    end if;
    if exists (select from core.brakes where brakes.context in (p_context, '*')) then
        return;
    end if;

    -- Each generation and channel is a line of its own; the one whose first row has waited longest is served first.
    for v_line in
        select accepted.generation, heard.channel, head.next_attempt_at
        from (select distinct given.generation from unnest(p_generations) as given (generation)) as accepted
        cross join (select distinct given.channel from unnest(p_channels) as given (channel)) as heard
        cross join lateral (
            select outbox.next_attempt_at, outbox.id
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = accepted.generation
              and outbox.channel = heard.channel
              and outbox.target = p_context
              and outbox.next_attempt_at <= v_now
              and outbox.next_attempt_at >= v_from
            order by outbox.next_attempt_at, outbox.id
            limit 1
        ) as head
        order by head.next_attempt_at, head.id
    loop
        if cardinality(v_chosen) >= p_limit then
            v_reached := least(v_reached, v_line.next_attempt_at);
            exit;
        end if;
        v_until := v_now;
        if p_window is not null then
            select outbox.next_attempt_at
            into v_until
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = v_line.generation
              and outbox.channel = v_line.channel
              and outbox.target = p_context
              and outbox.next_attempt_at <= v_now
              and outbox.next_attempt_at >= v_from
            order by outbox.next_attempt_at, outbox.id
            offset p_window
            limit 1;
            v_reached := least(v_reached, v_until);
            v_until := coalesce(v_until, v_now);
        end if;

        -- A suspect, a row whose last worker was lost, is handed out alone, when its turn has come.
        select outbox.id, outbox.attempts > 0 and outbox.last_error like 'WorkerLostError:%' as suspect
        into v_head
        from core.outbox
        where outbox.status = 'pending'
          and outbox.deleted_at is null
          and outbox.generation = v_line.generation
          and outbox.channel = v_line.channel
          and outbox.target = p_context
          and (p_event_types is null or outbox.event_type = any (p_event_types))
          and outbox.next_attempt_at <= v_until
          and outbox.next_attempt_at >= v_from
        order by outbox.next_attempt_at, outbox.id
        limit 1
        for update skip locked;
        continue when not found;
        if v_head.suspect then
            v_reached := least(v_reached, v_line.next_attempt_at);
            continue when cardinality(v_chosen) > 0;
            v_chosen := array[v_head.id];
            exit;
        end if;

        select coalesce(array_agg(line.id), '{}'), max(line.next_attempt_at)
        into v_found, v_last
        from (
            select outbox.id, outbox.next_attempt_at
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = v_line.generation
              and outbox.channel = v_line.channel
              and outbox.target = p_context
              and (p_event_types is null or outbox.event_type = any (p_event_types))
              and outbox.next_attempt_at <= v_until
              and outbox.next_attempt_at >= v_from
              and (outbox.attempts = 0 or outbox.last_error is null or outbox.last_error not like 'WorkerLostError:%')
            order by outbox.next_attempt_at, outbox.id
            limit p_limit - cardinality(v_chosen)
            for update skip locked
        ) as line;
        v_chosen := v_chosen || v_found;
        if cardinality(v_chosen) >= p_limit then
            v_reached := least(v_reached, v_last);
        end if;
    end loop;

    claim_token := v_token;
    occurred_at := v_now;
    due_at := v_reached;
    return next;

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
        claimed.id, null::uuid, claimed.parent_id, claimed.event_type, claimed.event_version,
        claimed.occurred_at, claimed.source, claimed.workspace_id, claimed.payload::text,
        claimed.idempotency_key, claimed.trace_context, claimed.content_class, claimed.channel, claimed.generation,
        claimed.attempts, claimed.next_attempt_at,
        extract(epoch from v_now - claimed.next_attempt_at)::double precision,
        coalesce(claimed.attempts > 1 and claimed.last_error like 'WorkerLostError:%', false),
        jsonb_array_length(claimed.failure_history),
        array(
            select asked.handler_name
            from unnest(p_handler_names) as asked (handler_name)
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
alter function core.outbox_claim_from(text, text, bigint[], text[], text[], integer, timestamptz, integer, text[])
    owner to spectral_owner;
revoke execute on function core.outbox_claim_from(text, text, bigint[], text[], text[], integer, timestamptz, integer, text[])
    from public;
grant execute on function core.outbox_claim_from(text, text, bigint[], text[], text[], integer, timestamptz, integer, text[])
    to spectral_worker;

-- Rows whose plain handlers have taken effect become delivered, and their dedup keys are written, in one step: what
-- core.outbox_begin and core.outbox_settle do in two. p_handled_ids and p_handler_names are parallel: which handler has
-- taken effect for which row. Fenced: a row whose claim is no longer p_tokens' is left alone, and so are its keys.
-- Answers the rows that were delivered. Give the ids in ascending order: two workers then lock them in the same one.
create function core.outbox_deliver(
    p_ids uuid[],
    p_tokens uuid[],
    p_handled_ids uuid[],
    p_handler_names text[]
) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    -- Through the index rows are found, and locked, in the order of their ids; a bitmap has them in that of their pages.
    set enable_bitmapscan = off
    set enable_nestloop = off
    set jit = off
    -- A key may be held uncommitted by a handler of minutes: the worker comes again.
    set lock_timeout = '2s'
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    perform core.require_parallel(cardinality(p_ids), cardinality(p_tokens));
    perform core.require_parallel(cardinality(p_handled_ids), cardinality(p_handler_names));

    return query
    with given as materialized (
        select asked.id, asked.token from unnest(p_ids, p_tokens) as asked (id, token)
    ),
    delivered as (
        update core.outbox
        set status = 'delivered', delivered_at = v_now, claim_token = null
        from given
        where outbox.id = given.id
          and outbox.id = any (p_ids)
          and outbox.claim_token = given.token
        returning outbox.id, outbox.idempotency_key, outbox.content_class
    ),
    handled as (
        insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)
        select taken.handler_name, delivered.idempotency_key, delivered.id, delivered.content_class
        from unnest(p_handled_ids, p_handler_names) as taken (id, handler_name)
        join delivered on delivered.id = taken.id
        order by delivered.idempotency_key, taken.handler_name, delivered.id
        on conflict do nothing
    )
    select delivered.id from delivered;
end
$$;
alter function core.outbox_deliver(uuid[], uuid[], uuid[], text[]) owner to spectral_owner;
revoke execute on function core.outbox_deliver(uuid[], uuid[], uuid[], text[]) from public;
grant execute on function core.outbox_deliver(uuid[], uuid[], uuid[], text[]) to spectral_worker;

-- The gate for one row and one handler, inside the savepoint that the handler's effects belong to: as core.outbox_begin,
-- for a lane, which comes here for every row. Answers run, handled or fenced. Locks: the row, FOR UPDATE.
create function core.outbox_begin_one(p_id uuid, p_token uuid, p_handler_name text) returns text
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    -- A key may be held uncommitted by a handler of minutes: the worker gives the row back and comes again.
    set lock_timeout = '2s'
as $$
declare
    v_row record;
begin
    select outbox.idempotency_key, outbox.content_class
    into v_row
    from core.outbox
    where outbox.id = p_id
      and outbox.claim_token = p_token
    for update;
    if not found then
        return 'fenced';
    end if;
    insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)
    values (p_handler_name, v_row.idempotency_key, p_id, v_row.content_class)
    on conflict do nothing;
    return case when found then 'run' else 'handled' end;
end
$$;
alter function core.outbox_begin_one(uuid, uuid, text) owner to spectral_owner;
revoke execute on function core.outbox_begin_one(uuid, uuid, text) from public;
grant execute on function core.outbox_begin_one(uuid, uuid, text) to spectral_worker;
