-- A row that may kill its process waits for one that holds nothing, and only one worker of its context waits with it.
--
-- Such a row was released for whoever came next. Each worker that was busy met it, stopped claiming until it held nothing,
-- and released it for the next one, until all of them waited at once.

-- Set aside: as core.outbox_release, but for so long nobody is to have them, and nobody is woken.
-- Locks: the rows, in id order.
create function core.outbox_set_aside(p_ids uuid[], p_tokens uuid[], p_delays interval[]) returns setof uuid
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
    perform core.require_parallel(cardinality(p_ids), cardinality(p_tokens), cardinality(p_delays));

    return query
    with held as materialized (
        select outbox.id, given.delay
        from core.outbox
        join unnest(p_ids, p_tokens, p_delays) as given (id, token, delay) on given.id = outbox.id
        where outbox.claim_token = given.token
          and outbox.id = any (p_ids)
        order by outbox.id
        for update of outbox
    )
    update core.outbox
    -- Within reason: whoever has set it aside may die.
    set status = 'pending', attempts = outbox.attempts - 1,
        next_attempt_at = v_now + least(greatest(held.delay, interval '0'), interval '5 minutes'),
        claim_token = null, claimed_by = null, claimed_at = null
    from held
    where outbox.id = held.id
      and outbox.id = any (p_ids)
    returning outbox.id;
end
$$;
alter function core.outbox_set_aside(uuid[], uuid[], interval[]) owner to spectral_owner;
revoke execute on function core.outbox_set_aside(uuid[], uuid[], interval[]) from public;
grant execute on function core.outbox_set_aside(uuid[], uuid[], interval[]) to spectral_worker;

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
create or replace function core.outbox_claim_these(
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
          -- By their ids, whatever the planner knows: said like this, the index of what is pending, of which there may be
          -- millions, is none for it.
          and outbox.status || '' = 'pending'
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

-- Claims a row that was set aside, before its time: by the worker that has waited for its turn with it. Only a row whose
-- worker was lost is had like that, and only in the life that is named. Answers as core.outbox_claim_these.
-- Locks: the row, FOR UPDATE SKIP LOCKED.
create function core.outbox_claim_aside(
    p_worker text,
    p_context text,
    p_generations bigint[],
    p_channels text[],
    p_id uuid,
    p_replays integer,
    p_attempts integer,
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
    set jit = off
as $$
declare
    v_row core.outbox;
begin
    select * into v_row from core.outbox where outbox.id = p_id for update skip locked;
    if v_row.status = 'pending'
        and v_row.deleted_at is null
        and v_row.target = p_context
        and v_row.generation = any (p_generations)
        and v_row.channel = any (p_channels)
        and v_row.next_attempt_at > clock_timestamp()
        and v_row.attempts = p_attempts
        and jsonb_array_length(v_row.failure_history) = p_replays
        and v_row.last_error like 'WorkerLostError:%'
    then
        update core.outbox set next_attempt_at = clock_timestamp() where outbox.id = p_id;
    end if;
    return query
    select *
    from core.outbox_claim_these(
        p_worker, p_context, p_generations, p_channels, array[p_id], array[p_replays], array[p_attempts],
        p_handler_names, p_handler_types
    );
end
$$;
alter function core.outbox_claim_aside(
    text, text, bigint[], text[], uuid, integer, integer, text[], text[]
) owner to spectral_owner;
revoke execute on function core.outbox_claim_aside(
    text, text, bigint[], text[], uuid, integer, integer, text[], text[]
) from public;
grant execute on function core.outbox_claim_aside(
    text, text, bigint[], text[], uuid, integer, integer, text[], text[]
) to spectral_worker;

-- The advisory lock of a context's quarantine: whoever holds it is the one worker that waits with such a row. A session
-- that ends lets it go. Anybody may take it; then nobody waits, and such rows run beside others after their time.
create function core.worker_quarantine_key(p_context text) returns bigint
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select hashtextextended('spectral.quarantine.' || p_context, 0)
$$;
alter function core.worker_quarantine_key(text) owner to spectral_owner;
revoke execute on function core.worker_quarantine_key(text) from public;
grant execute on function core.worker_quarantine_key(text) to spectral_worker;
