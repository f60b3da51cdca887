-- A claim asks for the dedup keys of those handlers only that a row is for.
--
-- Of every row that was claimed, each plain handler of the context was looked up in core.event_handled, whatever its type:
-- 3 us for each row and handler, so that a context with thirty handlers claimed a third as fast as one with a single one.

-- As core.outbox_claim, which stays for workers of earlier generations, but its cost does not depend on what lies before
-- or beside the rows it looks for:
--
-- p_from: start at this due time. A snapshot that pins old row versions keeps their index entries alive, and a scan from
-- the beginning walks over all of them; a worker that starts where it was walks over none. Null starts at the beginning,
-- which is what picks up retries and late commits, and has to be done now and then, and before sleeping.
-- p_window: look at so many pending rows of each generation and channel at most, whatever their type. Rows of types that
-- are not asked for are walked over, and there may be millions of them. Null looks at all.
-- p_handler_names, p_handler_types: of these, `handled` names those that hold the row's key already. They are parallel: a
-- handler of several types is named once for each, and one without a type is for every row.
--
-- The first row of the answer has no id: its claim_token is that of all rows, its occurred_at the time of the claim, its
-- due_at how far the claim looked: from there on, there may be more. Null: it looked at everything that is due. There is
-- no answer at all while the brake of the context is pulled.
-- waited: for how many seconds the row had been due. replays: how many cycles of it have ended in the DLQ. event_id is
-- null where it is the row's own id.
--
-- Without p_handler_types it is there for workers that do not know of them.
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
    p_handler_names text[],
    p_handler_types text[]
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
    v_generations bigint[];
    v_channels text[];
    v_heads timestamptz[];
    v_alone boolean[];
    v_braked boolean;
    v_until timestamptz;
    v_reached timestamptz;
    v_chosen uuid[] := '{}';
    v_found uuid[];
    v_suspects boolean[];
    v_last timestamptz;
begin
    if coalesce(p_worker, '') = '' or p_limit is null or p_limit < 1 or p_window < 1 then
        raise exception 'a claim needs a worker''s name, and a limit and a window of at least 1'
            using errcode = 'invalid_parameter_value';
    end if;
    -- Each generation and channel is a line of its own; the one whose first row has waited longest is served first.
    select
        array_agg(line.generation order by line.next_attempt_at, line.id),
        array_agg(line.channel order by line.next_attempt_at, line.id),
        array_agg(line.next_attempt_at order by line.next_attempt_at, line.id),
        array_agg(line.alone order by line.next_attempt_at, line.id),
        exists (select from core.brakes where brakes.context in (p_context, '*'))
    into v_generations, v_channels, v_heads, v_alone, v_braked
    from (
        select accepted.generation, heard.channel, head.next_attempt_at, head.id, head.alone
        from unnest(p_generations) as accepted (generation)
        cross join unnest(p_channels) as heard (channel)
        cross join lateral (
            -- alone: a suspect that is asked for. Then no more than one row is locked: what is locked and not taken
            -- others pass over, as if nothing were there.
            select
                outbox.next_attempt_at, outbox.id,
                coalesce(
                    outbox.attempts > 0
                    and outbox.last_error like 'WorkerLostError:%'
                    and (p_event_types is null or outbox.event_type = any (p_event_types)),
                    false
                ) as alone
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
    ) as line;
    if v_braked then
        return;
    end if;

    for v_place in 1..coalesce(cardinality(v_heads), 0) loop
        if cardinality(v_chosen) >= p_limit then
            v_reached := least(v_reached, v_heads[v_place]);
            exit;
        end if;
        v_until := v_now;
        if p_window is not null then
            select outbox.next_attempt_at
            into v_until
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = v_generations[v_place]
              and outbox.channel = v_channels[v_place]
              and outbox.target = p_context
              and outbox.next_attempt_at <= v_now
              and outbox.next_attempt_at >= v_from
            order by outbox.next_attempt_at, outbox.id
            offset p_window
            limit 1;
            v_reached := least(v_reached, v_until);
            v_until := coalesce(v_until, v_now);
        end if;

        select array_agg(line.id), array_agg(line.suspect), max(line.next_attempt_at)
        into v_found, v_suspects, v_last
        from (
            select
                outbox.id, outbox.next_attempt_at,
                coalesce(outbox.attempts > 0 and outbox.last_error like 'WorkerLostError:%', false) as suspect
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = v_generations[v_place]
              and outbox.channel = v_channels[v_place]
              and outbox.target = p_context
              and (p_event_types is null or outbox.event_type = any (p_event_types))
              and outbox.next_attempt_at <= v_until
              and outbox.next_attempt_at >= v_from
            order by outbox.next_attempt_at, outbox.id
            limit case when v_alone[v_place] then 1 else p_limit - cardinality(v_chosen) end
            for update skip locked
        ) as line;
        continue when v_found is null;
        -- A suspect, a row whose last worker was lost, is handed out alone, when its turn has come.
        if v_suspects[1] then
            v_reached := least(v_reached, v_heads[v_place]);
            continue when cardinality(v_chosen) > 0;
            v_chosen := v_found[1:1];
            exit;
        end if;
        if v_alone[v_place] or cardinality(v_chosen) + cardinality(v_found) >= p_limit then
            v_reached := least(v_reached, v_last);
        end if;
        if true = any (v_suspects) then
            v_found := array(
                select each.id
                from unnest(v_found, v_suspects) as each (id, suspect)
                where not each.suspect
            );
        end if;
        v_chosen := v_chosen || v_found;
    end loop;

    claim_token := v_token;
    occurred_at := v_now;
    due_at := v_reached;
    return next;
    if cardinality(v_chosen) = 0 then
        return;
    end if;

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
            from unnest(p_handler_names, p_handler_types) as asked (handler_name, event_type)
            cross join lateral (
                select
                from core.event_handled
                where event_handled.handler_name = asked.handler_name
                  and event_handled.idempotency_key = claimed.idempotency_key
                limit 1
            ) as known
            where asked.event_type is null or asked.event_type = claimed.event_type
        )
    from claimed
    order by claimed.next_attempt_at, claimed.id;
end
$$;
alter function core.outbox_claim_from(
    text, text, bigint[], text[], text[], integer, timestamptz, integer, text[], text[]
) owner to spectral_owner;
revoke execute on function core.outbox_claim_from(
    text, text, bigint[], text[], text[], integer, timestamptz, integer, text[], text[]
) from public;
grant execute on function core.outbox_claim_from(
    text, text, bigint[], text[], text[], integer, timestamptz, integer, text[], text[]
) to spectral_worker;

create or replace function core.outbox_claim_from(
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
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    select claim.*
    from core.outbox_claim_from(
        p_worker, p_context, p_generations, p_channels, p_event_types, p_limit, p_from, p_window, p_handler_names,
        null::text[]
    ) as claim
$$;

-- Claims exactly these rows: those that are still pending and due, of this context and of these generations and
-- channels, in the life that the reference names: so many times replayed, so many times attempted. p_ids, p_replays and
-- p_attempts are parallel. Everything else is void: somebody has it, or had it, or its message is of an earlier life.
--
-- Asks for handlers and answers as core.outbox_claim_from does, and nothing at all while the brake of the context is
-- pulled. A suspect, a row whose last worker was lost, is handed out alone, if it comes first. The first row of the
-- answer has no id, and lists in `handled` the ids that could have been claimed and were left: beside a suspect, or
-- suspects themselves.
--
-- Locks: the rows, FOR UPDATE SKIP LOCKED, until the end of the transaction, which should be short and may be committed
-- without waiting for the disk. Acknowledge the messages after that commit.
create function core.outbox_claim_these(
    p_worker text,
    p_context text,
    p_generations bigint[],
    p_channels text[],
    p_ids uuid[],
    p_replays integer[],
    p_attempts integer[],
    p_handler_names text[],
    p_handler_types text[]
) returns table (
    id uuid, claim_token uuid, event_id uuid, event_type text, event_version integer, occurred_at timestamptz,
    source text, workspace_id uuid, payload text, idempotency_key text, trace_context text, content_class text,
    channel text, generation bigint, attempts integer, due_at timestamptz, waited double precision, suspect boolean,
    replays integer, handled text[]
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_nestloop = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_token uuid := gen_random_uuid();
    v_claimable uuid[];
    v_suspects boolean[];
    v_chosen uuid[] := '{}';
begin
    if coalesce(p_worker, '') = '' then
        raise exception 'a claim needs a worker''s name' using errcode = 'invalid_parameter_value';
    end if;
    perform core.require_parallel(cardinality(p_ids), cardinality(p_replays));
    perform core.require_parallel(cardinality(p_ids), cardinality(p_attempts));
    if exists (select from core.brakes where brakes.context in (p_context, '*')) then
        return;
    end if;

    with given as materialized (
        -- once each: a message may come twice
        select distinct on (asked.id, asked.replays, asked.attempts)
            asked.id, asked.replays, asked.attempts, asked.place
        from unnest(p_ids, p_replays, p_attempts) with ordinality as asked (id, replays, attempts, place)
        order by asked.id, asked.replays, asked.attempts, asked.place
    ),
    free as materialized (
        select
            outbox.id, given.place,
            coalesce(outbox.attempts > 0 and outbox.last_error like 'WorkerLostError:%', false) as suspect
        from core.outbox
        join given on given.id = outbox.id
        where outbox.id = any (p_ids)
          and outbox.status = 'pending'
          and outbox.deleted_at is null
          and outbox.target = p_context
          and outbox.generation = any (p_generations)
          and outbox.channel = any (p_channels)
          and outbox.next_attempt_at <= v_now
          and outbox.attempts = given.attempts
          and jsonb_array_length(outbox.failure_history) = given.replays
        order by outbox.id
        limit cardinality(p_ids)
        for update of outbox skip locked
    )
    select array_agg(free.id order by free.place), array_agg(free.suspect order by free.place)
    into v_claimable, v_suspects
    from free;

    if v_suspects[1] then
        v_chosen := v_claimable[1:1];
    else
        select coalesce(array_agg(each.id), '{}')
        into v_chosen
        from unnest(v_claimable, v_suspects) as each (id, suspect)
        where not each.suspect;
    end if;

    claim_token := v_token;
    occurred_at := v_now;
    handled := array(
        select each.id::text
        from unnest(v_claimable) as each (id)
        where each.id <> all (v_chosen)
    );
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
            from unnest(p_handler_names, p_handler_types) as asked (handler_name, event_type)
            cross join lateral (
                select
                from core.event_handled
                where event_handled.handler_name = asked.handler_name
                  and event_handled.idempotency_key = claimed.idempotency_key
                limit 1
            ) as known
            where asked.event_type is null or asked.event_type = claimed.event_type
        )
    from claimed
    order by claimed.next_attempt_at, claimed.id;
end
$$;
alter function core.outbox_claim_these(
    text, text, bigint[], text[], uuid[], integer[], integer[], text[], text[]
) owner to spectral_owner;
revoke execute on function core.outbox_claim_these(
    text, text, bigint[], text[], uuid[], integer[], integer[], text[], text[]
) from public;
grant execute on function core.outbox_claim_these(
    text, text, bigint[], text[], uuid[], integer[], integer[], text[], text[]
) to spectral_worker;

create or replace function core.outbox_claim_these(
    p_worker text,
    p_context text,
    p_generations bigint[],
    p_channels text[],
    p_ids uuid[],
    p_replays integer[],
    p_attempts integer[],
    p_handler_names text[]
) returns table (
    id uuid, claim_token uuid, event_id uuid, event_type text, event_version integer, occurred_at timestamptz,
    source text, workspace_id uuid, payload text, idempotency_key text, trace_context text, content_class text,
    channel text, generation bigint, attempts integer, due_at timestamptz, waited double precision, suspect boolean,
    replays integer, handled text[]
)
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    select claim.*
    from core.outbox_claim_these(
        p_worker, p_context, p_generations, p_channels, p_ids, p_replays, p_attempts, p_handler_names, null::text[]
    ) as claim
$$;
