-- Generations in the hands of an operator: allocate, promote (also back), drain, retire, hand over. Each leaves an
-- entry in core.audit. All of them take the same lock on core.deployments, so that two operators act one after the
-- other.

-- The status of a generation, or an error that says there is none.
create function core.deployment_status(p_generation bigint) returns text
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_status text;
begin
    select deployment.status into v_status from core.deployments as deployment
    where deployment.generation = p_generation;
    if v_status is null then
        raise exception 'there is no generation %', coalesce(p_generation::text, 'null')
            using errcode = 'no_data_found', hint = 'See them all: select * from core.deployments.';
    end if;
    return v_status;
end
$$;
alter function core.deployment_status(bigint) owner to spectral_owner;
revoke execute on function core.deployment_status(bigint) from public;

-- Allocates a generation, with the subscriptions of its release if they are given, before any worker of it runs: then
-- broadcasts reach it, and rows that wait for it are not taken for unhandled. Without a number it takes the next one.
-- Allocating again what is still only allocated brings its label up to date, and the subscriptions of the contexts that
-- are given: what they lack is struck off. Answers the generation.
create function core.deployment_allocate(
    p_generation bigint default null,
    p_label text default null,
    p_contexts text[] default '{}',
    p_event_types text[] default '{}',
    p_handler_names text[] default '{}',
    p_max_attempts integer[] default '{}',
    p_by text default null,
    p_reason text default null
) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_generation bigint;
    v_highest bigint;
    v_status text;
begin
    perform core.require_parallel(
        cardinality(p_contexts), cardinality(p_event_types), cardinality(p_handler_names), cardinality(p_max_attempts)
    );
    lock table core.deployments in share row exclusive mode;
    select max(deployment.generation) into v_highest from core.deployments as deployment;
    v_generation := coalesce(p_generation, v_highest + 1, 1);
    if v_generation < 0 then
        raise exception 'a generation is a number from 0, not %', v_generation
            using errcode = 'invalid_parameter_value', hint = 'Leave out the number to take the next one.';
    end if;

    select deployment.status into v_status from core.deployments as deployment
    where deployment.generation = v_generation;
    if v_status <> 'allocated' then
        raise exception 'generation % is % already', v_generation, v_status
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Allocate the next one: leave out the number.';
    elsif v_status is null and v_generation < v_highest then
        raise exception 'generation % is below %, the highest so far', v_generation, v_highest
            using errcode = 'invalid_parameter_value',
                  hint = 'Generations grow with every release; leave out the number to take the next one.';
    elsif v_status is null then
        insert into core.deployments (generation, label) values (v_generation, p_label);
    elsif p_label is not null then
        update core.deployments as deployment set label = p_label where deployment.generation = v_generation;
    end if;

    if cardinality(p_contexts) > 0 then
        perform core.outbox_subscribe(
            v_generation, p_contexts, p_event_types, p_handler_names, p_max_attempts, true
        );
    end if;
    insert into core.audit (action, actor, reason, affected, detail)
    values (
        'allocate', left(coalesce(nullif(p_by, ''), session_user), 200), left(p_reason, 2000),
        coalesce(cardinality(p_contexts), 0),
        jsonb_strip_nulls(jsonb_build_object('generation', v_generation, 'label', p_label))
    );
    return v_generation;
end
$$;
alter function core.deployment_allocate(bigint, text, text[], text[], text[], integer[], text, text)
    owner to spectral_owner;
revoke execute on function core.deployment_allocate(bigint, text, text[], text[], text[], integer[], text, text)
    from public;
grant execute on function core.deployment_allocate(bigint, text, text[], text[], text[], integer[], text, text)
    to spectral_operator;

-- Makes a generation the live one; the one that was starts draining. An earlier one that is draining may be promoted
-- again: that is a rollback. Answers the generation that was live before; promoting the live one changes nothing.
create function core.deployment_promote(p_generation bigint, p_by text default null, p_reason text default null)
    returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_status text;
    v_before bigint;
begin
    lock table core.deployments in share row exclusive mode;
    v_status := core.deployment_status(p_generation);
    select deployment.generation into v_before from core.deployments as deployment where deployment.status = 'live';
    if v_status = 'retired' then
        raise exception 'generation % is retired', p_generation
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'What is retired stays so: allocate a new generation for the same release.';
    elsif v_status = 'live' then
        return v_before;
    end if;

    update core.deployments as deployment
    set status = 'draining', drained_at = clock_timestamp()
    where deployment.generation = v_before;
    update core.deployments as deployment
    set status = 'live', promoted_at = clock_timestamp(), drained_at = null
    where deployment.generation = p_generation;
    insert into core.audit (action, actor, reason, affected, detail)
    values (
        case when p_generation < v_before then 'rollback' else 'promote' end,
        left(coalesce(nullif(p_by, ''), session_user), 200), left(p_reason, 2000),
        1, jsonb_build_object('generation', p_generation, 'before', v_before)
    );
    return v_before;
end
$$;
alter function core.deployment_promote(bigint, text, text) owner to spectral_owner;
revoke execute on function core.deployment_promote(bigint, text, text) from public;
grant execute on function core.deployment_promote(bigint, text, text) to spectral_operator;

-- Says that a generation is on its way out: nothing new is expected of it, its workers finish what there is. Promoting
-- another one does this by itself. Of the live one it leaves none live: whoever publishes without naming a generation
-- is refused until one is promoted.
create function core.deployment_drain(p_generation bigint, p_by text default null, p_reason text default null)
    returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_status text;
begin
    lock table core.deployments in share row exclusive mode;
    v_status := core.deployment_status(p_generation);
    if v_status = 'retired' then
        raise exception 'generation % is retired', p_generation
            using errcode = 'object_not_in_prerequisite_state', hint = 'There is nothing left of it to drain.';
    elsif v_status = 'draining' then
        return;
    end if;
    update core.deployments as deployment
    set status = 'draining', drained_at = clock_timestamp()
    where deployment.generation = p_generation;
    insert into core.audit (action, actor, reason, affected, detail)
    values (
        'drain', left(coalesce(nullif(p_by, ''), session_user), 200), left(p_reason, 2000),
        1, jsonb_build_object('generation', p_generation, 'before', v_status)
    );
end
$$;
alter function core.deployment_drain(bigint, text, text) owner to spectral_owner;
revoke execute on function core.deployment_drain(bigint, text, text) from public;
grant execute on function core.deployment_drain(bigint, text, text) to spectral_operator;

-- What keeps a generation from being retired: its rows that are not at their end, by context, type and status. Counts
-- at most p_cap rows of each state, so that a huge backlog is answered for at once. Whoever may not see all rows is
-- told of those it may.
create function core.deployment_blockers(p_generation bigint, p_cap integer default 10000)
    returns table (status text, context text, event_type text, rows bigint)
    language plpgsql stable security invoker
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
begin
    return query
    select blocking.status, blocking.context, blocking.event_type, count(*)
    from (
        (
            select outbox.status, outbox.target as context, outbox.event_type
            from core.outbox
            where outbox.status = 'pending' and outbox.deleted_at is null and outbox.generation = p_generation
            limit p_cap
        )
        union all
        (
            select outbox.status, outbox.target, outbox.event_type
            from core.outbox
            where outbox.status = 'in_flight' and outbox.generation = p_generation
            limit p_cap
        )
    ) as blocking
    group by blocking.status, blocking.context, blocking.event_type
    order by count(*) desc, blocking.status, blocking.context, blocking.event_type;
end
$$;
alter function core.deployment_blockers(bigint, integer) owner to spectral_owner;
revoke execute on function core.deployment_blockers(bigint, integer) from public;
grant execute on function core.deployment_blockers(bigint, integer) to spectral_operator, spectral_readonly;

-- Retires a generation: no worker of it starts any more, nothing is replayed or handed over into it. Refused for the
-- live one, and while rows of it wait or are being handled. Rows that a forgotten publisher stamps with it afterwards
-- wait; hand them over.
-- Locks: core.deployments; its row, behind every replay and hand-over into it.
create function core.deployment_retire(p_generation bigint, p_by text default null, p_reason text default null)
    returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_status text;
    v_blocking bigint;
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'a generation cannot be retired in a transaction that does not see what others have committed'
            using errcode = 'object_not_in_prerequisite_state', hint = 'Begin it with: isolation level read committed.';
    end if;
    lock table core.deployments in share row exclusive mode;
    -- Whoever is moving rows into it holds its row FOR SHARE: wait for them before looking for what is left.
    perform from core.deployments as deployment where deployment.generation = p_generation for no key update;
    v_status := core.deployment_status(p_generation);
    if v_status = 'retired' then
        return;
    elsif v_status = 'live' then
        raise exception 'generation % is live', p_generation
            using errcode = 'object_not_in_prerequisite_state', hint = 'Promote another one first.';
    end if;
    select sum(blocker.rows) into v_blocking from core.deployment_blockers(p_generation) as blocker;
    if v_blocking > 0 then
        raise exception 'generation % still has % rows that are not delivered', p_generation,
            case when v_blocking >= 10000 then '10,000 or more' else v_blocking::text end
            using errcode = 'object_not_in_prerequisite_state',
                  hint = format(
                      'See which: select * from core.deployment_blockers(%s). Let its workers finish, or hand them '
                      'over.',
                      p_generation
                  );
    end if;
    update core.deployments as deployment
    set status = 'retired', retired_at = clock_timestamp()
    where deployment.generation = p_generation;
    insert into core.audit (action, actor, reason, affected, detail)
    values (
        'retire', left(coalesce(nullif(p_by, ''), session_user), 200), left(p_reason, 2000),
        1, jsonb_build_object('generation', p_generation, 'before', v_status)
    );
end
$$;
alter function core.deployment_retire(bigint, text, text) owner to spectral_owner;
revoke execute on function core.deployment_retire(bigint, text, text) from public;
grant execute on function core.deployment_retire(bigint, text, text) to spectral_operator;

-- Hands waiting rows of one generation over to another, p_limit at a time, and wakes the channels they are on now: ask
-- again until it answers 0. With p_context those of one context only, otherwise all of them and broadcasts too.
-- Attempts and keys stay. Rows being handled are not touched: their worker finishes them, and what it gives back waits
-- again. Refused for the live one, whose events keep coming.
-- Locks: both deployments, FOR SHARE, so that neither is retired or promoted meanwhile; the rows, FOR UPDATE SKIP LOCKED.
create function core.outbox_hand_over(
    p_from bigint,
    p_to bigint,
    p_context text default null,
    p_limit integer default 1000,
    p_by text default null,
    p_reason text default null
) returns integer
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_status text;
    v_channel text := '';
    v_following text;
    v_found uuid[];
    v_moved uuid[] := '{}';
begin
    -- in one order, so that two operators cannot block each other
    perform from core.deployments as deployment
    where deployment.generation in (p_from, p_to)
    order by deployment.generation
    for share;
    select deployment.status into v_status from core.deployments as deployment
    where deployment.generation = p_to;
    if v_status is null or v_status = 'retired' then
        raise exception 'generation % is %', coalesce(p_to::text, 'null'), coalesce(v_status, 'unknown')
            using errcode = 'invalid_parameter_value',
                  hint = 'Hand over to a generation that has workers: select * from core.live_generation.';
    elsif p_from is null or p_from = p_to or p_limit is null or p_limit < 1 then
        raise exception 'a hand-over goes from one generation to another, at least one row at a time'
            using errcode = 'invalid_parameter_value';
    elsif exists (
        select from core.deployments as deployment
        where deployment.generation = p_from and deployment.status = 'live'
    ) then
        raise exception 'generation % is live', p_from
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Its events are for its own workers; promote another one first.';
    end if;

    -- One channel after the other: there the rows of a context are neighbours in the index, and nobody else's are read.
    while cardinality(v_moved) < p_limit loop
        select outbox.channel into v_following
        from core.outbox
        where outbox.status = 'pending'
          and outbox.deleted_at is null
          and outbox.generation = p_from
          and outbox.channel > v_channel
        order by outbox.generation, outbox.channel
        limit 1;
        exit when v_following is null;
        v_channel := v_following;

        if p_context is null then
            select coalesce(array_agg(waiting.id), '{}')
            into v_found
            from (
                select outbox.id
                from core.outbox
                where outbox.status = 'pending'
                  and outbox.deleted_at is null
                  and outbox.generation = p_from
                  and outbox.channel = v_channel
                order by outbox.target, outbox.next_attempt_at, outbox.id
                limit p_limit - cardinality(v_moved)
                for update skip locked
            ) as waiting;
        else
            select coalesce(array_agg(waiting.id), '{}')
            into v_found
            from (
                select outbox.id
                from core.outbox
                where outbox.status = 'pending'
                  and outbox.deleted_at is null
                  and outbox.generation = p_from
                  and outbox.channel = v_channel
                  and outbox.target = p_context
                order by outbox.next_attempt_at, outbox.id
                limit p_limit - cardinality(v_moved)
                for update skip locked
            ) as waiting;
        end if;
        v_moved := v_moved || v_found;
    end loop;

    with moved as (
        update core.outbox
        set generation = p_to,
            channel = regexp_replace(outbox.channel, '^outbox_(default$|gen_[0-9]+)', 'outbox_gen_' || p_to)
        where outbox.id = any (v_moved)
        returning outbox.id, outbox.channel
    ),
    woken as materialized (
        select core.outbox_wake(knock.channel, knock.id::text)
        from (
            select distinct on (moved.channel) moved.channel, moved.id from moved order by moved.channel, moved.id
        ) as knock
    )
    select coalesce(array_agg(moved.id order by moved.id), '{}')
    into v_moved
    from moved
    where (select count(*) from woken) >= 0;

    if cardinality(v_moved) > 0 then
        insert into core.audit (action, actor, reason, affected, event_ids, detail)
        values (
            'hand_over', left(coalesce(nullif(p_by, ''), session_user), 200), left(p_reason, 2000),
            cardinality(v_moved), v_moved,
            jsonb_strip_nulls(jsonb_build_object('generation', p_to, 'before', p_from, 'context', p_context))
        );
    end if;
    return cardinality(v_moved);
end
$$;
alter function core.outbox_hand_over(bigint, bigint, text, integer, text, text) owner to spectral_owner;
revoke execute on function core.outbox_hand_over(bigint, bigint, text, integer, text, text) from public;
grant execute on function core.outbox_hand_over(bigint, bigint, text, integer, text, text) to spectral_operator;
