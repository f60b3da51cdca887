-- Replay and discard: what an operator may do with the DLQ. Both leave an entry in core.audit.

-- Locks those of the rows that are in the DLQ, and answers them. Rows in another state are neither locked nor waited
-- for: a handler may be at work on them. By primary key only, whatever the planner believes of the DLQ's size.
create function core.outbox_lock_failed(p_event_ids uuid[]) returns uuid[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
declare
    v_candidates uuid[];
    v_locked uuid[];
begin
    with seen as materialized (
        select outbox.id, outbox.status
        from core.outbox
        where outbox.id = any (p_event_ids)
    )
    select array_agg(seen.id) into v_candidates from seen where seen.status = 'failed';

    -- in one order, so that two operators cannot block each other
    with locked as materialized (
        select outbox.id, outbox.status, outbox.deleted_at
        from core.outbox
        where outbox.id = any (v_candidates)
        order by outbox.id
        for update
    )
    select coalesce(array_agg(locked.id order by locked.id), '{}')
    into v_locked
    from locked
    where locked.status = 'failed' and locked.deleted_at is null;
    return v_locked;
end
$$;
alter function core.outbox_lock_failed(uuid[]) owner to spectral_owner;
revoke execute on function core.outbox_lock_failed(uuid[]) from public;

-- Replays many failed rows into a generation: the finished cycle moves into the history, the row starts anew under the
-- same id and key, on the channel of its new generation (its class is kept), and that channel is woken.
-- Answers every id asked for, with the cycle that was closed or the reason it was refused.
-- Locks: the deployment, FOR SHARE, so that it is not retired meanwhile; the rows, FOR UPDATE, in id order.
create function core.outbox_replay_many(
    p_event_ids uuid[],
    p_new_generation bigint,
    p_replayed_by text default null,
    p_reason text default null
) returns table (id uuid, cycle integer, refusal text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_generation_status text;
    v_replayed uuid[];
    v_asked uuid[] := (
        select coalesce(array_agg(distinct asked.id), '{}')
        from unnest(p_event_ids) as asked (id)
    );
begin
    select deployment.status
    into v_generation_status
    from core.deployments as deployment
    where deployment.generation = p_new_generation
    for share;
    if v_generation_status is null or v_generation_status = 'retired' then
        raise exception 'generation % is %', coalesce(p_new_generation::text, 'null'),
            coalesce(v_generation_status, 'unknown')
            using errcode = 'invalid_parameter_value',
                  hint = 'Replay into a generation that has workers: select * from core.live_generation.';
    end if;

    v_replayed := core.outbox_lock_failed(v_asked);
    with replayed as (
        update core.outbox
        set failure_history = outbox.failure_history || jsonb_build_array(jsonb_build_object(
                'cycle', jsonb_array_length(outbox.failure_history) + 1,
                'attempts', outbox.attempts,
                'last_error', outbox.last_error,
                'first_failed_at', outbox.first_failed_at,
                'failed_at', outbox.claimed_at,
                'replayed_at', v_now,
                'replayed_by', p_replayed_by
            )),
            generation = p_new_generation,
            channel = regexp_replace(
                outbox.channel, '^outbox_(default$|gen_[0-9]+)', 'outbox_gen_' || p_new_generation
            ),
            status = 'pending',
            attempts = 0,
            next_attempt_at = v_now,
            last_error = null,
            first_failed_at = null,
            claimed_by = null,
            claimed_at = null
        where outbox.id = any (v_replayed)
        returning outbox.id, outbox.channel
    ),
    woken as materialized (
        select pg_notify(knock.channel, knock.id::text)
        from (
            select distinct on (replayed.channel) replayed.channel, replayed.id
            from replayed
            order by replayed.channel, replayed.id
        ) as knock
    )
    select coalesce(array_agg(replayed.id order by replayed.id), '{}')
    into v_replayed
    from replayed
    where (select count(*) from woken) >= 0;

    if cardinality(v_replayed) > 0 then
        insert into core.audit (action, actor, reason, affected, event_ids, detail)
        values (
            'replay', left(coalesce(nullif(p_replayed_by, ''), session_user), 200), left(p_reason, 2000),
            cardinality(v_replayed), v_replayed,
            jsonb_build_object('generation', p_new_generation)
        );
    end if;

    return query
    select
        asked.id,
        case when asked.id = any (v_replayed) then jsonb_array_length(outbox.failure_history) end,
        case
            when asked.id = any (v_replayed) then null
            when outbox.id is null then 'unknown'
            when outbox.deleted_at is not null then 'discarded'
            else outbox.status
        end
    from unnest(v_asked) as asked (id)
    left join core.outbox on outbox.id = asked.id
    order by asked.id;
end
$$;
alter function core.outbox_replay_many(uuid[], bigint, text, text) owner to spectral_owner;
revoke execute on function core.outbox_replay_many(uuid[], bigint, text, text) from public;

-- Replays one failed row and answers the number of the cycle that was closed; anything else is an error that says why.
create function core.outbox_replay(
    p_event_id uuid,
    p_new_generation bigint,
    p_replayed_by text default null
) returns integer
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_cycle integer;
    v_refusal text;
begin
    select replayed.cycle, replayed.refusal
    into v_cycle, v_refusal
    from core.outbox_replay_many(array[p_event_id], p_new_generation, p_replayed_by) as replayed;

    if v_refusal = 'unknown' or v_cycle is null and v_refusal is null then
        raise exception 'there is no event %', coalesce(p_event_id::text, 'null') using errcode = 'no_data_found';
    elsif v_refusal is not null then
        raise exception 'event % is %, only failed events can be replayed', p_event_id, v_refusal
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    return v_cycle;
end
$$;
alter function core.outbox_replay(uuid, bigint, text) owner to spectral_owner;
revoke execute on function core.outbox_replay(uuid, bigint, text) from public;

-- Discards failed rows: they leave the DLQ, and the table when the retention sweep comes; the history stays till then.
-- Answers every id asked for; refusal is null for those discarded. Locks: the rows, FOR UPDATE, in id order.
create function core.outbox_discard(
    p_event_ids uuid[],
    p_discarded_by text default null,
    p_reason text default null
) returns table (id uuid, refusal text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
declare
    v_discarded uuid[];
    v_asked uuid[] := (
        select coalesce(array_agg(distinct asked.id), '{}')
        from unnest(p_event_ids) as asked (id)
    );
begin
    v_discarded := core.outbox_lock_failed(v_asked);
    update core.outbox
    set deleted_at = clock_timestamp()
    where outbox.id = any (v_discarded);

    if cardinality(v_discarded) > 0 then
        insert into core.audit (action, actor, reason, affected, event_ids)
        values (
            'discard', left(coalesce(nullif(p_discarded_by, ''), session_user), 200), left(p_reason, 2000),
            cardinality(v_discarded), v_discarded
        );
    end if;

    return query
    select
        asked.id,
        case
            when asked.id = any (v_discarded) then null
            when outbox.id is null then 'unknown'
            when outbox.deleted_at is not null then 'discarded'
            else outbox.status
        end
    from unnest(v_asked) as asked (id)
    left join core.outbox on outbox.id = asked.id
    order by asked.id;
end
$$;
alter function core.outbox_discard(uuid[], text, text) owner to spectral_owner;
revoke execute on function core.outbox_discard(uuid[], text, text) from public;
