-- Heaps cost less: what a worker does to hundreds of rows at once is looked up, checked and written together.
--
-- What is answered, refused and kept stays the same; only the order in which a claim answers its rows is left open.

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
-- The others are in no particular order; their due_at and id say which comes first.
-- waited: for how many seconds the row had been due. replays: how many cycles of it have ended in the DLQ. event_id is
-- null where it is the row's own id.
--
-- Without p_handler_types it is there for workers that do not know of them.
--
-- Locks: the rows it takes, FOR UPDATE SKIP LOCKED, until the end of the transaction, which should be short and may be
-- committed without waiting for the disk: a claim lost in a crash is just pending again.
create or replace function core.outbox_claim_from(
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
    v_found_keys text[];
    v_found_types text[];
    v_keys text[] := '{}';
    v_types text[] := '{}';
    v_is_any_known boolean := true;
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

        select
            array_agg(line.id), array_agg(line.suspect), max(line.next_attempt_at),
            array_agg(line.idempotency_key), array_agg(line.event_type)
        into v_found, v_suspects, v_last, v_found_keys, v_found_types
        from (
            select
                outbox.id, outbox.next_attempt_at, outbox.idempotency_key, outbox.event_type,
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
        v_keys := v_keys || v_found_keys;
        v_types := v_types || v_found_types;
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

    -- Hardly ever is a key known, so those of many rows are looked for together first: to begin a search for each row of
    -- the answer takes longer than the search. By index, each key by itself: limit 1 keeps the planner from reading the
    -- whole log.
    if cardinality(v_keys) >= 8 then
        v_is_any_known := exists (
            select
            from unnest(v_keys, v_types) as due (idempotency_key, event_type)
            join unnest(p_handler_names, p_handler_types) as asked (handler_name, event_type)
                on asked.event_type is null or asked.event_type = due.event_type
            cross join lateral (
                select
                from core.event_handled
                where event_handled.handler_name = asked.handler_name
                  and event_handled.idempotency_key = due.idempotency_key
                limit 1
            ) as known
        );
    end if;

    -- Straight from the update, in no particular order: to keep them all and to sort them takes a tenth of the claim.
    return query
    update core.outbox as claimed
    set status = 'in_flight',
        attempts = claimed.attempts + 1,
        claim_token = v_token,
        claimed_by = p_worker,
        claimed_at = v_now
    where claimed.id = any (v_chosen)
    returning
        claimed.id, null::uuid, claimed.parent_id, claimed.event_type, claimed.event_version,
        claimed.occurred_at, claimed.source, claimed.workspace_id, claimed.payload::text,
        claimed.idempotency_key, claimed.trace_context, claimed.content_class, claimed.channel, claimed.generation,
        claimed.attempts, claimed.next_attempt_at,
        extract(epoch from v_now - claimed.next_attempt_at)::double precision,
        coalesce(claimed.attempts > 1 and claimed.last_error like 'WorkerLostError:%', false),
        jsonb_array_length(claimed.failure_history),
        case
            when v_is_any_known then array(
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
            else '{}'
        end;
end
$$;

-- The names of handlers are checked where they come in, once for a call, and not for each record that is written with
-- one: the same name goes with every row of a heap. What else is in a record is copied from a row that was checked.
create function core.require_handler_names(p_names text[]) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (
        select
        from (select distinct unnest(p_names)) as given (name)
        where length(given.name) > 200
           or given.name !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$'
    ) then
        raise exception 'new row for relation "event_handled" violates check constraint "event_handled_handler_name_check"'
            using errcode = 'check_violation', schema = 'core', table = 'event_handled',
                  constraint = 'event_handled_handler_name_check';
    end if;
end
$$;
alter function core.require_handler_names(text[]) owner to spectral_owner;
revoke execute on function core.require_handler_names(text[]) from public;

-- Deliver alike: rows of one claim for which the same plain handlers took effect, or none. As core.outbox_deliver, which
-- stays for workers that know no other: without a token for each row and without a second list of rows, there is nothing
-- to be joined. Answers the rows whose claim no longer stood, of which nothing is written.
-- Locks: the rows, in the order of their ids; then the keys, in key order, waiting for whoever holds one uncommitted.
create function core.outbox_deliver_alike(
    p_token uuid,
    p_ids uuid[],
    p_handler_names text[]
) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    -- Through the index rows are found, and locked, in the order of their ids; a bitmap has them in that of their pages.
    set enable_bitmapscan = off
    set jit = off
    -- A key may be held uncommitted by a handler of minutes: the worker comes again.
    set lock_timeout = '2s'
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_delivered uuid[];
begin
    perform core.require_handler_names(p_handler_names);

    with delivered as (
        update core.outbox
        set status = 'delivered', delivered_at = v_now, claim_token = null
        where outbox.id = any (p_ids)
          and outbox.claim_token = p_token
        returning outbox.id, outbox.idempotency_key, outbox.content_class
    ),
    handled as (
        insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)
        select taken.handler_name, delivered.idempotency_key, delivered.id, delivered.content_class
        from delivered
        cross join unnest(p_handler_names) as taken (handler_name)
        order by delivered.idempotency_key, taken.handler_name, delivered.id
        on conflict do nothing
    )
    select coalesce(array_agg(delivered.id), '{}')
    into v_delivered
    from delivered;
    if cardinality(v_delivered) <> cardinality(p_ids) then
        return query
        select given.id
        from unnest(p_ids) as given (id)
        where given.id <> all (v_delivered);
    end if;
end
$$;
alter function core.outbox_deliver_alike(uuid, uuid[], text[]) owner to spectral_owner;
revoke execute on function core.outbox_deliver_alike(uuid, uuid[], text[]) from public;
grant execute on function core.outbox_deliver_alike(uuid, uuid[], text[]) to spectral_worker;

-- The two updates that every event goes through are let pass by the trigger's condition, without a call: it is planned
-- for each statement, which takes 15 us, and evaluated for each row, which takes a tenth of what the call does. All others
-- go through the function, which still knows these two, for tables whose triggers were copied before.
-- Locks: core.outbox, against everybody, for a moment.
drop trigger outbox_check_update on core.outbox;
create trigger outbox_check_update before update on core.outbox
    for each row
    when ((
        new.attempts >= old.attempts
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
    ) is not true) -- whatever is null is looked at
    execute function core.outbox_check_update();
