-- A late claim sees past a heap.
--
-- Workers that receive references from a broker find by a late claim what no message tells them of. It looked at the
-- first 50,000 rows of a line: a heap of one type, which nobody handles or which finds no room, kept it from all others
-- until the heap was smaller.

-- Claims what has been due for longer than p_late, whoever has sent it and wherever its message is: for workers that
-- receive references, so that a relay that is gone costs time and nothing else. Answers as core.outbox_claim_these. Looks
-- at the first 50,000 rows of each generation and channel, and then at the last 50,000.
-- Locks: as core.outbox_claim_these.
create or replace function core.outbox_claim_late(
    p_worker text,
    p_context text,
    p_generations bigint[],
    p_channels text[],
    p_event_types text[],
    p_limit integer,
    p_late interval,
    p_handler_names text[]
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
    v_late timestamptz := clock_timestamp() - p_late;
    v_until timestamptz;
    v_from timestamptz;
    v_line record;
    v_range record;
    v_found record;
    v_ids uuid[] := '{}';
    v_replays integer[] := '{}';
    v_attempts integer[] := '{}';
begin
    if p_limit is null or p_limit < 1 or p_late is null then
        raise exception 'a claim needs a limit of at least 1, and a time' using errcode = 'invalid_parameter_value';
    end if;
    -- The one whose first row has waited longest is served first, as by core.outbox_claim_from.
    for v_line in
        select accepted.generation, heard.channel
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
              and outbox.next_attempt_at <= v_late
            order by outbox.next_attempt_at, outbox.id
            limit 1
        ) as head
        order by head.next_attempt_at, head.id
    loop
        exit when cardinality(v_ids) >= p_limit;
        select outbox.next_attempt_at
        into v_until
        from core.outbox
        where outbox.status = 'pending'
          and outbox.deleted_at is null
          and outbox.generation = v_line.generation
          and outbox.channel = v_line.channel
          and outbox.target = p_context
          and outbox.next_attempt_at <= v_late
        order by outbox.next_attempt_at, outbox.id
        offset 50000
        limit 1;
        -- A heap of what is not asked for, or finds no room, may fill all that: then the last rows are looked at too.
        v_from := null;
        if v_until is not null then
            select outbox.next_attempt_at
            into v_from
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = v_line.generation
              and outbox.channel = v_line.channel
              and outbox.target = p_context
              and outbox.next_attempt_at <= v_late
              and outbox.next_attempt_at > v_until
            order by outbox.next_attempt_at desc, outbox.id desc
            offset 50000
            limit 1;
            v_from := coalesce(v_from, v_until);
        end if;
        for v_range in
            select range.after, range.until
            from (
                values
                    (1, '-infinity'::timestamptz, coalesce(v_until, v_late)),
                    (2, v_from, v_late)
            ) as range (place, after, until)
            where range.after is not null
            order by range.place
        loop
            exit when cardinality(v_ids) >= p_limit;
            for v_found in
                select outbox.id, outbox.attempts, jsonb_array_length(outbox.failure_history) as replays
                from core.outbox
                where outbox.status = 'pending'
                  and outbox.deleted_at is null
                  and outbox.generation = v_line.generation
                  and outbox.channel = v_line.channel
                  and outbox.target = p_context
                  and outbox.next_attempt_at > v_range.after
                  and outbox.next_attempt_at <= v_range.until
                  and (p_event_types is null or outbox.event_type = any (p_event_types))
                order by outbox.next_attempt_at, outbox.id
                limit p_limit - cardinality(v_ids)
                for update skip locked
            loop
                v_ids := v_ids || v_found.id;
                v_replays := v_replays || v_found.replays;
                v_attempts := v_attempts || v_found.attempts;
            end loop;
        end loop;
    end loop;
    return query
    select *
    from core.outbox_claim_these(
        p_worker, p_context, p_generations, p_channels, v_ids, v_replays, v_attempts, p_handler_names
    );
end
$$;
