-- Fan out: split a broadcast into one row for each subscribed context, each with attempts, DLQ and replay of its own.

-- The id of a context's share: the same from whoever computes it, and as old as its parent, so that both lie close
-- together in the index. The parent's 48 bits of time, version 8, then a hash of parent and context.
create function core.outbox_child_id(p_parent_id uuid, p_context text) returns uuid
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select (
        substr(replace(p_parent_id::text, '-', ''), 1, 12)
        || '8' || substr(hash.hex, 1, 3)
        || 'a' || substr(hash.hex, 4, 15)
    )::uuid
    from (
        select encode(
            sha256(convert_to(p_parent_id::text || '/' || p_context, 'UTF8')), 'hex'
        ) as hex
    ) as hash
$$;
alter function core.outbox_child_id(uuid, text) owner to spectral_owner;
revoke execute on function core.outbox_child_id(uuid, text) from public;

-- Splits due broadcasts of these generations and channels; answers (parent, child, context), with the last two null for
-- a broadcast that nobody subscribes to. Parent and children change in one step.
-- Locks: the parents, FOR UPDATE SKIP LOCKED.
create function core.outbox_fan_out(
    p_generations bigint[],
    p_channels text[],
    p_limit integer default 100
) returns table (parent_id uuid, child_id uuid, context text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    -- The few rows found are looked up one by one; a join of another kind would read the whole primary key.
    set enable_hashjoin = off
    set enable_mergejoin = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    return query
    with broadcast as materialized (
        select due.*
        from (select distinct given.generation from unnest(p_generations) as given (generation)) as accepted
        cross join (select distinct given.channel from unnest(p_channels) as given (channel)) as heard
        cross join lateral (
            select outbox.*
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = accepted.generation
              and outbox.channel = heard.channel
              and outbox.target is null
              and outbox.next_attempt_at <= v_now
            -- the target is null in all of them; naming it lets the index's own order be used
            order by outbox.target, outbox.next_attempt_at, outbox.id
            limit p_limit
            for update skip locked
        ) as due
    ),
    share as materialized (
        select distinct broadcast.id as parent_id, subscription.context
        from broadcast
        join core.subscriptions as subscription
          on subscription.generation = broadcast.generation
         and subscription.event_type = broadcast.event_type
    ),
    child as (
        insert into core.outbox (
            id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
            idempotency_key, trace_context, parent_id, channel, generation
        )
        select
            -- An id that somebody has taken, by chance or on purpose, must not hold up the other broadcasts; that a
            -- context gets one child and no more is outbox_child_key's business.
            case
                when exists (
                    select from core.outbox as taken
                    where taken.id = core.outbox_child_id(broadcast.id, share.context)
                ) then core.uuid7()
                else core.outbox_child_id(broadcast.id, share.context)
            end,
            broadcast.event_type, broadcast.event_version,
            broadcast.occurred_at, broadcast.source, share.context, broadcast.content_class, broadcast.workspace_id,
            broadcast.payload, broadcast.idempotency_key, broadcast.trace_context, broadcast.id,
            broadcast.channel, broadcast.generation
        from share
        join broadcast on broadcast.id = share.parent_id
        order by broadcast.next_attempt_at, broadcast.id, share.context
        returning outbox.id, outbox.parent_id, outbox.target
    ),
    parent as (
        update core.outbox
        set status = 'delivered', delivered_at = v_now
        from broadcast
        where outbox.id = broadcast.id
        returning outbox.id
    )
    select parent.id, child.id, child.target
    from parent
    left join child on child.parent_id = parent.id
    order by parent.id, child.target;
end
$$;
alter function core.outbox_fan_out(bigint[], text[], integer) owner to spectral_owner;
revoke execute on function core.outbox_fan_out(bigint[], text[], integer) from public;
