-- The relay: a broker hands out which row, in which of its lives; the outbox stays the truth.
--
-- A relay process sends references to rows that are due; a worker that receives some asks for exactly those rows, and
-- gets those of which the reference still tells the truth. Whatever is lost, doubled or late on the way costs time and
-- nothing else: what was sent and is still pending after a while is sent again, or claimed without having been received.

-- Nullable and in no index: to stamp a row is a heap-only update, and adding the column rewrites nothing.
-- Locks: core.outbox, against everybody, for a moment.
alter table core.outbox add column relayed_at timestamptz;
comment on column core.outbox.relayed_at is 'When a reference to this row was last sent to a broker, in this life of it.';

-- What is pending again, or elsewhere, has to be sent again: its message was used up by the claim, or names the wrong
-- lane.
create function core.outbox_unsent() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    new.relayed_at := null;
    return new;
end
$$;
alter function core.outbox_unsent() owner to spectral_owner;
revoke execute on function core.outbox_unsent() from public;

create trigger outbox_unsent before update of status, generation, channel on core.outbox
    for each row
    when (
        new.relayed_at is not null
        and new.status = 'pending'
        and (old.status <> 'pending' or new.generation <> old.generation or new.channel <> old.channel)
    )
    execute function core.outbox_unsent();

-- From where workers take their rows. One row.
create table core.relay (
    singleton    boolean     not null default true,
    mode         text        not null default 'postgres',
    id           uuid        not null default gen_random_uuid(), -- names on a broker begin with a part of it
    switched_at  timestamptz not null default clock_timestamp(),
    switched_by  text        not null default 'migration',
    reason       text,

    constraint relay_pkey primary key (singleton),
    constraint relay_singleton_check check (singleton),
    constraint relay_mode_check check (mode in ('postgres', 'nats', 'redis')),
    constraint relay_switched_by_check check (length(switched_by) between 1 and 200),
    constraint relay_reason_check check (length(reason) <= 2000)
);
alter table core.relay owner to spectral_owner;
grant select on core.relay to spectral_operator, spectral_readonly, spectral_worker;
insert into core.relay default values;

comment on table core.relay is 'From where workers take their rows: postgres, or references from a broker. One row.';

-- The advisory lock that relay processes share while they run, each on a connection of its own: by its holders they are
-- counted, and the server drops it in the moment a process is gone.
create function core.relay_lock_key() returns bigint
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select hashtextextended('spectral.relay', 0)
$$;
alter function core.relay_lock_key() owner to spectral_owner;
revoke execute on function core.relay_lock_key() from public;
grant execute on function core.relay_lock_key() to spectral_worker;

-- The mode, and with what all names on a broker begin. Not the id alone: a copy of the database that was made by
-- CREATE DATABASE or by a dump would take the messages of the original.
create function core.relay_mode() returns table (mode text, prefix text)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select relay.mode, 'spectral_' || substr(md5(relay.id::text || '/' || db.oid), 1, 8)
    from core.relay
    cross join pg_database as db
    where relay.singleton
      and db.datname = current_database()
$$;
alter function core.relay_mode() owner to spectral_owner;
revoke execute on function core.relay_mode() from public;
grant execute on function core.relay_mode() to spectral_worker, spectral_operator, spectral_readonly;

-- The same, with who switched when and why, and how many relay processes run.
create function core.relay_state() returns table (
    mode text, prefix text, switched_at timestamptz, switched_by text, reason text, relays bigint
)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select
        known.mode, known.prefix, relay.switched_at, relay.switched_by, relay.reason,
        (
            select count(*)
            from pg_locks as lock
            where lock.locktype = 'advisory'
              and lock.objsubid = 1
              and lock.granted
              and lock.database = (select db.oid from pg_database as db where db.datname = current_database())
              and ((lock.classid::bigint << 32) | lock.objid::bigint) = core.relay_lock_key()
        )
    from core.relay
    cross join core.relay_mode() as known
    where relay.singleton
$$;
alter function core.relay_state() owner to spectral_owner;
revoke execute on function core.relay_state() from public;
grant execute on function core.relay_state() to spectral_worker, spectral_operator, spectral_readonly;

-- Switches from where workers take their rows, and wakes all of them; answers whether that is a change. Both ways work
-- under load: what is on its way stays valid, and whoever does not know yet claims no row twice. A reason is required.
-- Locks: the one row of core.relay, until the end of the transaction.
create function core.relay_switch(p_mode text, p_actor text, p_reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_actor text := left(coalesce(nullif(p_actor, ''), session_user), 200);
    v_before text;
    v_channel text;
begin
    if p_mode is null or p_mode not in ('postgres', 'nats', 'redis') then
        raise exception '% is no mode of the relay', coalesce(quote_literal(left(p_mode, 80)), 'null')
            using errcode = 'invalid_parameter_value', hint = 'It is one of: postgres, nats, redis.';
    end if;
    if btrim(coalesce(p_reason, '')) = '' then
        raise exception 'the relay is not switched without a reason' using errcode = 'invalid_parameter_value';
    end if;
    select relay.mode into v_before from core.relay where relay.singleton for update;
    if v_before = p_mode then
        return false;
    end if;
    insert into core.relay as relay (mode, switched_by, reason)
    values (p_mode, v_actor, left(p_reason, 2000))
    on conflict on constraint relay_pkey do update
    set mode = excluded.mode, switched_at = clock_timestamp(), switched_by = excluded.switched_by,
        reason = excluded.reason;
    insert into core.audit (action, actor, reason, affected, detail)
    values ('relay_switch', v_actor, left(p_reason, 2000), 0, jsonb_build_object('from', v_before, 'to', p_mode));
    for v_channel in
        select 'outbox_default'
        union
        select 'outbox_gen_' || deployment.generation
        from core.deployments as deployment
        where deployment.status <> 'retired'
        union
        select heard.channel
        from core.workers as worker
        cross join lateral unnest(worker.channels) as heard (channel)
        where heard.channel ~ '^outbox_gen_[0-9]{1,19}_[a-z][a-z0-9_]{0,31}$'
    loop
        perform core.outbox_wake(v_channel, '');
    end loop;
    return true;
end
$$;
alter function core.relay_switch(text, text, text) owner to spectral_owner;
revoke execute on function core.relay_switch(text, text, text) from public;
grant execute on function core.relay_switch(text, text, text) to spectral_operator;

-- What a relay has to look at: each generation, channel and context on which something waits, unless the generation is
-- retired; without a context: broadcasts to be split. due: whether something is due, sent or not; next_due: how long
-- until the next row is. While the brake of a context is pulled nothing of it is due. A few steps of the index for each,
-- however many rows there are; p_lanes at most, beginning behind the one that is named. Where it answers so many there
-- may be others: ask again, behind the last of them. Locks: none.
create function core.outbox_relay_lanes(
    p_lanes integer default 200, p_generation bigint default -1, p_channel text default '', p_context text default null
) returns table (
    generation bigint, channel text, context text, due boolean, next_due interval
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_braked text[] := array(select brakes.context from core.brakes);
    v_generation bigint := p_generation;
    v_channel text := p_channel;
    v_context text := p_context;
    v_found integer := 0;
    v_is_here boolean;
    v_first timestamptz;
    v_next timestamptz;
begin
    if '*' = any (v_braked) then
        return;
    end if;
    while v_found < p_lanes loop
        -- The next context of this generation and channel; behind the last one, its broadcasts.
        v_is_here := false;
        if v_context is not null then
            select outbox.target
            into v_context
            from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and outbox.generation = v_generation and outbox.channel = v_channel and outbox.target > v_context
            order by outbox.target
            limit 1;
            v_is_here := found;
            if not v_is_here then
                perform
                from core.outbox
                where outbox.status = 'pending' and outbox.deleted_at is null
                  and outbox.generation = v_generation and outbox.channel = v_channel and outbox.target is null
                limit 1;
                v_is_here := found;
            end if;
        end if;
        -- Or else the first of the next channel or generation.
        if not v_is_here then
            select outbox.generation, outbox.channel, outbox.target
            into v_generation, v_channel, v_context
            from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and (outbox.generation, outbox.channel) > (v_generation, v_channel)
            order by outbox.generation, outbox.channel, outbox.target
            limit 1;
            exit when not found;
        end if;
        if exists (
            select from core.deployments as deployment
            where deployment.generation = v_generation and deployment.status = 'retired'
        ) then
            exit when v_generation = 9223372036854775807;
            v_generation := v_generation + 1;
            v_channel := '';
            v_context := null;
            continue;
        end if;

        v_first := null;
        v_next := null;
        if v_context is null then
            select outbox.next_attempt_at
            into v_first
            from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and outbox.generation = v_generation and outbox.channel = v_channel and outbox.target is null
            order by outbox.target, outbox.next_attempt_at
            limit 1;
        elsif v_context <> all (v_braked) then
            select outbox.next_attempt_at
            into v_first
            from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null
              and outbox.generation = v_generation and outbox.channel = v_channel and outbox.target = v_context
            order by outbox.next_attempt_at
            limit 1;
            if v_first <= v_now then
                select outbox.next_attempt_at
                into v_next
                from core.outbox
                where outbox.status = 'pending' and outbox.deleted_at is null
                  and outbox.generation = v_generation and outbox.channel = v_channel and outbox.target = v_context
                  and outbox.next_attempt_at > v_now
                order by outbox.next_attempt_at
                limit 1;
            end if;
        end if;
        generation := v_generation;
        channel := v_channel;
        context := v_context;
        due := coalesce(v_first <= v_now, false);
        next_due := case when due then v_next else v_first end - v_now;
        return next;
        v_found := v_found + 1;
    end loop;
end
$$;
alter function core.outbox_relay_lanes(integer, bigint, text, text) owner to spectral_owner;
revoke execute on function core.outbox_relay_lanes(integer, bigint, text, text) from public;
grant execute on function core.outbox_relay_lanes(integer, bigint, text, text) to spectral_worker;

-- Takes rows of one lane to be sent, and stamps them: those that were not sent in this life of theirs, or not since the
-- last switch, and those that were sent longer ago than p_lost and are still pending. Commit before sending: what is stamped and never sent is taken
-- again by p_lost. Answers nothing at all while the brake is pulled, or while p_broker is not where workers take from.
--
-- p_from: start at this due time, as in core.outbox_claim_from; rows that were sent are walked over until they are
-- claimed. The first row of the answer has no id: its relayed_at is the stamp of all rows, its due_at where the next call
-- may start: null if it has looked at all that is due; its attempts how many of the rows had been sent before.
--
-- Locks: the rows it takes, FOR UPDATE SKIP LOCKED, until the end of the transaction, which should be this call and may
-- be committed without waiting for the disk.
create function core.outbox_relay(
    p_broker text,
    p_generation bigint,
    p_channel text,
    p_context text,
    p_limit integer,
    p_from timestamptz,
    p_lost interval
) returns table (
    id uuid, event_id uuid, event_type text, replays integer, attempts integer, trace_context text,
    due_at timestamptz, relayed_at timestamptz
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    -- As the claim: the partial index in its own order, whatever the statistics say.
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_switched_at timestamptz;
    v_chosen uuid[];
    v_last timestamptz;
    v_resent integer;
begin
    if p_limit is null or p_limit < 1 or p_lost is null or p_lost <= interval '0' then
        raise exception 'to relay needs a limit of at least 1, and a time after which a message is taken for lost'
            using errcode = 'invalid_parameter_value';
    end if;
    select relay.switched_at into v_switched_at from core.relay where relay.singleton and relay.mode = p_broker;
    if not found or exists (select from core.brakes where brakes.context in (p_context, '*')) then
        return;
    end if;

    select coalesce(array_agg(line.id), '{}'), max(line.next_attempt_at), count(line.relayed_at)
    into v_chosen, v_last, v_resent
    from (
        select outbox.id, outbox.next_attempt_at, outbox.relayed_at
        from core.outbox
        where outbox.status = 'pending'
          and outbox.deleted_at is null
          and outbox.generation = p_generation
          and outbox.channel = p_channel
          and outbox.target = p_context
          and outbox.next_attempt_at <= v_now
          and outbox.next_attempt_at >= coalesce(p_from, '-infinity')
          and (
              outbox.relayed_at is null
              or outbox.relayed_at < outbox.next_attempt_at
              or outbox.relayed_at < v_switched_at -- to another broker, from which nobody takes any more
              or outbox.relayed_at < v_now - p_lost
          )
        order by outbox.next_attempt_at, outbox.id
        limit p_limit
        for update skip locked
    ) as line;

    relayed_at := v_now;
    attempts := v_resent;
    due_at := case when cardinality(v_chosen) >= p_limit then v_last end;
    return next;

    return query
    with sent as (
        update core.outbox
        set relayed_at = v_now
        where outbox.id = any (v_chosen)
        returning
            outbox.id, outbox.parent_id, outbox.event_type, outbox.failure_history, outbox.attempts,
            outbox.trace_context, outbox.next_attempt_at, outbox.relayed_at
    )
    select
        sent.id, coalesce(sent.parent_id, sent.id), sent.event_type, jsonb_array_length(sent.failure_history),
        sent.attempts, sent.trace_context, sent.next_attempt_at, sent.relayed_at
    from sent
    order by sent.next_attempt_at, sent.id;
end
$$;
alter function core.outbox_relay(text, bigint, text, text, integer, timestamptz, interval) owner to spectral_owner;
revoke execute on function core.outbox_relay(text, bigint, text, text, integer, timestamptz, interval) from public;
grant execute on function core.outbox_relay(text, bigint, text, text, integer, timestamptz, interval)
    to spectral_worker;

-- These rows were taken to be sent and the broker refused them: they are unsent again. p_relayed_at is the stamp they
-- were given; one that has another by now is left alone.
-- Locks: the rows, FOR UPDATE SKIP LOCKED: one that somebody claims in this moment needs no message.
create function core.outbox_unrelay(p_ids uuid[], p_relayed_at timestamptz) returns integer
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_free uuid[];
begin
    select coalesce(array_agg(free.id), '{}')
    into v_free
    from (
        select outbox.id
        from core.outbox
        where outbox.id = any (p_ids)
          and outbox.status = 'pending'
          and outbox.relayed_at = p_relayed_at
        order by outbox.id
        limit cardinality(p_ids)
        for update skip locked
    ) as free;
    update core.outbox set relayed_at = null where outbox.id = any (v_free);
    return cardinality(v_free);
end
$$;
alter function core.outbox_unrelay(uuid[], timestamptz) owner to spectral_owner;
revoke execute on function core.outbox_unrelay(uuid[], timestamptz) from public;
grant execute on function core.outbox_unrelay(uuid[], timestamptz) to spectral_worker;

-- Claims exactly these rows: those that are still pending and due, of this context and of these generations and
-- channels, in the life that the reference names: so many times replayed, so many times attempted. p_ids, p_replays and
-- p_attempts are parallel. Everything else is void: somebody has it, or had it, or its message is of an earlier life.
--
-- Answers as core.outbox_claim_from does, and nothing at all while the brake of the context is pulled. A suspect, a row
-- whose last worker was lost, is handed out alone, if it comes first. The first row of the answer has no id, and lists in
-- `handled` the ids that could have been claimed and were left: beside a suspect, or suspects themselves.
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
alter function core.outbox_claim_these(text, text, bigint[], text[], uuid[], integer[], integer[], text[])
    owner to spectral_owner;
revoke execute on function core.outbox_claim_these(text, text, bigint[], text[], uuid[], integer[], integer[], text[])
    from public;
grant execute on function core.outbox_claim_these(text, text, bigint[], text[], uuid[], integer[], integer[], text[])
    to spectral_worker;

-- Claims what has been due for longer than p_late, whoever has sent it and wherever its message is: for workers that
-- receive references, so that a relay that is gone costs time and nothing else. Answers as core.outbox_claim_these. Looks
-- at the first 50,000 rows of each generation and channel.
-- Locks: as core.outbox_claim_these.
create function core.outbox_claim_late(
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
    v_line record;
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
        for v_found in
            select outbox.id, outbox.attempts, jsonb_array_length(outbox.failure_history) as replays
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = v_line.generation
              and outbox.channel = v_line.channel
              and outbox.target = p_context
              and outbox.next_attempt_at <= coalesce(v_until, v_late)
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
    return query
    select *
    from core.outbox_claim_these(
        p_worker, p_context, p_generations, p_channels, v_ids, v_replays, v_attempts, p_handler_names
    );
end
$$;
alter function core.outbox_claim_late(text, text, bigint[], text[], text[], integer, interval, text[])
    owner to spectral_owner;
revoke execute on function core.outbox_claim_late(text, text, bigint[], text[], text[], integer, interval, text[])
    from public;
grant execute on function core.outbox_claim_late(text, text, bigint[], text[], text[], integer, interval, text[])
    to spectral_worker;

-- How the relay keeps up, for each generation, channel and context on which something waits: rows that are due and were
-- not sent, those that were sent and nobody has claimed, and for how long the oldest of each has waited. Counts, among the
-- first rows that are due, no further than twice p_cap. Bounded and harmless as the other insights.
create function core.insight_relay(p_now timestamptz, p_cap integer, p_lanes integer) returns table (
    generation bigint, channel text, context text,
    unsent bigint, oldest_unsent interval, sent bigint, oldest_sent interval
)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
    select
        lane.generation, lane.channel, lane.context,
        counted.unsent, counted.oldest_unsent, counted.sent, counted.oldest_sent
    from core.insight_lanes(p_now, 1, p_lanes) as lane
    cross join lateral (
        select
            count(*) filter (where not first.was_sent) as unsent,
            p_now - min(first.next_attempt_at) filter (where not first.was_sent) as oldest_unsent,
            count(*) filter (where first.was_sent) as sent,
            p_now - min(first.relayed_at) filter (where first.was_sent) as oldest_sent
        from (
            select
                outbox.next_attempt_at, outbox.relayed_at,
                coalesce(outbox.relayed_at >= outbox.next_attempt_at, false) as was_sent
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = lane.generation
              and outbox.channel = lane.channel
              and outbox.target = lane.context
              and outbox.next_attempt_at <= p_now
            order by outbox.next_attempt_at, outbox.id
            limit 2 * least(p_cap, 10001)
        ) as first
    ) as counted
    where lane.context is not null
$$;
alter function core.insight_relay(timestamptz, integer, integer) owner to spectral_owner;
revoke execute on function core.insight_relay(timestamptz, integer, integer) from public;
grant execute on function core.insight_relay(timestamptz, integer, integer)
    to spectral_worker, spectral_operator, spectral_readonly;
