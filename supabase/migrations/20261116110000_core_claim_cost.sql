-- A claim in fewer statements, and shorter rules for what nearly every update is.
--
-- Whoever delivers events one at a time pays for every statement and every expression that is made ready. Nothing that is
-- answered, refused or kept changes with this.

-- As before (20261115122000): the brake and the lines are asked for by one statement, the first row of a line is not
-- looked for by one of its own, and where nothing was found nothing is updated.
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
        exists (select from core.brakes where brakes.context in (p_context, '*'))
    into v_generations, v_channels, v_heads, v_braked
    from (
        select accepted.generation, heard.channel, head.next_attempt_at, head.id
        from unnest(p_generations) as accepted (generation)
        cross join unnest(p_channels) as heard (channel)
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
            limit p_limit - cardinality(v_chosen)
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
        if cardinality(v_chosen) + cardinality(v_found) >= p_limit then
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

-- As before (20261115121000), with a short way for the two updates that every event goes through, and with what the
-- trigger outbox_unsent did, whose condition was planned anew for each statement.
create or replace function core.outbox_check_update() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_broken text;
begin
    -- Claimed or delivered, and nothing else of it touched: nearly every update is one of these two and breaks no rule.
    -- An expression is made ready anew in every transaction, so what most rows need should be short.
    if new.attempts >= old.attempts
        and new.generation = old.generation
        and new.channel = old.channel
        and new.next_attempt_at = old.next_attempt_at
        and new.last_error is not distinct from old.last_error
        and new.failure_history = old.failure_history
        and old.deleted_at is null
        and new.deleted_at is null
        and (
            (
                new.status = 'in_flight' and old.status = 'pending' and new.claim_token is not null
                and new.claimed_by is not null and new.claimed_at is not null and new.delivered_at is null
            )
            or (
                new.status = 'delivered' and old.status = 'in_flight' and new.claim_token is null
                and new.delivered_at is not null
            )
        )
    then
        return new;
    end if;

    v_broken := case
        -- Attempts are given back by release and replay alone: that is what brings a poison pill to the DLQ.
        when not case
            when old.status = 'failed' and new.status = 'pending' then new.attempts = 0
            when old.status = 'in_flight' and new.status = 'pending' then new.attempts >= old.attempts - 1
            else new.attempts >= old.attempts
        end then 'outbox_attempts_transition'
        -- A claim ends; it is never taken over in flight.
        when new.claim_token <> old.claim_token then 'outbox_claim_transition'
        -- Delivered is for ever, its moment included; only a discard, which is of a failed row, may be taken back. A
        -- tombstone is set now, once: its age decides when the row is deleted.
        when (old.delivered_at is not null and new.delivered_at is distinct from old.delivered_at)
            or (old.deleted_at is not null and new.deleted_at is null and old.status <> 'failed')
            or new.deleted_at <> old.deleted_at
            or (
                old.deleted_at is null
                and new.deleted_at not between clock_timestamp() - interval '1 h' and clock_timestamp() + interval '1 h'
            )
            then 'outbox_end_transition'
        -- A row leaves its generation by replay (failed -> pending) or by hand-over (while pending).
        when (new.generation <> old.generation or new.channel <> old.channel)
            and not (old.status in ('failed', 'pending') and new.status = 'pending')
            then 'outbox_generation_transition'
        -- The history of earlier cycles only grows, by replay.
        when new.failure_history <> old.failure_history
            and not (
                old.status = 'failed' and new.status = 'pending'
                and new.failure_history - (-1) = old.failure_history
            )
            then 'outbox_history_transition'
        when not case old.status
            when 'pending' then
                new.status in ('pending', 'in_flight')
                or (new.status = 'delivered' and old.target is null)
                or (new.status = 'failed' and new.last_error like 'NoHandlerError:%')
            when 'in_flight' then
                true
            when 'failed' then
                new.status = 'failed'
                or (
                    new.status = 'pending'
                    and jsonb_array_length(new.failure_history) = jsonb_array_length(old.failure_history) + 1
                )
            else
                new.status = old.status
        end then 'outbox_status_transition'
    end;
    if v_broken is not null then
        raise exception 'core.outbox % may not go from % to % like this (%)', old.id, old.status, new.status, v_broken
            using errcode = 'check_violation',
                  table = 'outbox', schema = 'core', constraint = v_broken,
                  hint = 'Status is changed by core.outbox_claim, _settle, _release, _reap, _fan_out, _fail_unhandled '
                         'and _replay only.';
    end if;

    v_broken := case
        when new.status not in ('pending', 'in_flight', 'delivered', 'failed') then 'outbox_status_check'
        when new.attempts < 0 then 'outbox_attempts_check'
        when (new.generation <> old.generation or new.channel <> old.channel)
            and (
                new.generation < 0
                or (
                    new.channel <> 'outbox_gen_' || new.generation
                    and new.channel <> 'outbox_default'
                    and not (
                        starts_with(new.channel, 'outbox_gen_' || new.generation || '_')
                        and substr(new.channel, length('outbox_gen_' || new.generation || '_') + 1)
                            ~ '^[a-z][a-z0-9_]{0,31}$'
                    )
                )
            )
            then case when new.generation < 0 then 'outbox_generation_check' else 'outbox_channel_check' end
        when (new.status = 'in_flight') <> (new.claim_token is not null)
            or (new.status = 'in_flight' and (new.claimed_by is null or new.claimed_at is null))
            then 'outbox_claim_check'
        when new.deleted_at is not null and new.status not in ('delivered', 'failed') then 'outbox_deleted_check'
        when (new.status = 'delivered') <> (new.delivered_at is not null) then 'outbox_delivered_check'
        when new.status = 'failed' and (new.last_error is null or new.first_failed_at is null)
            then 'outbox_failed_check'
        when octet_length(new.last_error) > 4096 then 'outbox_last_error_check'
        when new.next_attempt_at not between '1900-01-01 00:00+00' and '9900-01-01 00:00+00' then 'outbox_times_check'
    end;
    if v_broken is not null then
        raise exception 'new row for relation "outbox" violates check constraint "%"', v_broken
            using errcode = 'check_violation', schema = 'core', table = 'outbox', constraint = v_broken;
    end if;

    -- What is pending again, or elsewhere, has to be sent to a broker again: its message was used up by the claim, or
    -- names the wrong lane.
    if new.relayed_at is not null
        and new.status = 'pending'
        and (old.status <> 'pending' or new.generation <> old.generation or new.channel <> old.channel)
    then
        new.relayed_at := null;
    end if;
    return new;
end
$$;

-- Locks: core.outbox, against everybody, for a moment.
drop trigger outbox_unsent on core.outbox;
drop function core.outbox_unsent();
