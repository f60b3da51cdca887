-- Transactional rows that pass the gate together, and are delivered together or not at all.
--
-- A lane asked the server before each handler: a savepoint, the row's lock and its dedup key, for every single event. Of
-- handlers that keep to plain statements and do not fail, as most do most of the time, a group needs none of that: it is
-- asked once, and if anything at all goes wrong, nothing of it is kept and its rows are run again one after the other.

-- The gate of a group: locks the rows, and answers whether all of them may be run: every claim stands, and no handler has
-- handled its row. If not, roll back, and ask for each.
--
-- p_handler_names: the one handler of each row. The first row's key is written at once: a commit before that row is
-- settled is then refused (core.event_handled_require_settled), whoever ends the transaction. The other keys are written
-- by core.outbox_deliver_together.
--
-- Locks: the rows, FOR UPDATE, in the order of their ids, until the end of the transaction.
create function core.outbox_begin_together(
    p_ids uuid[],
    p_tokens uuid[],
    p_handler_names text[]
) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    -- Through the index rows are found, and locked, in the order of their ids; a bitmap has them in that of their pages.
    set enable_bitmapscan = off
    set enable_nestloop = off
    set jit = off
    -- A key may be held uncommitted by a handler of minutes: the worker asks for each row, and comes again.
    set lock_timeout = '2s'
as $$
declare
    v_held bigint;
    v_handled boolean;
begin
    perform core.require_parallel(cardinality(p_ids), cardinality(p_tokens), cardinality(p_handler_names));

    with held as materialized (
        select outbox.idempotency_key, claim.handler_name
        from core.outbox
        join unnest(p_ids, p_tokens, p_handler_names) as claim (id, token, handler_name) on claim.id = outbox.id
        where outbox.claim_token = claim.token
          and outbox.id = any (p_ids)
        order by outbox.id
        for update of outbox
    )
    select
        count(*),
        -- not joined: each is looked up in the index
        bool_or(exists (
            select
            from core.event_handled as known
            where known.handler_name = held.handler_name
              and known.idempotency_key = held.idempotency_key
        ))
    into v_held, v_handled
    from held;

    return v_held = cardinality(p_ids)
        and not coalesce(v_handled, false)
        and core.outbox_begin_one(p_ids[1], p_tokens[1], p_handler_names[1]) = 'run';
end
$$;
alter function core.outbox_begin_together(uuid[], uuid[], text[]) owner to spectral_owner;
revoke execute on function core.outbox_begin_together(uuid[], uuid[], text[]) from public;
grant execute on function core.outbox_begin_together(uuid[], uuid[], text[]) to spectral_worker;

-- As core.outbox_deliver, for the rows of core.outbox_begin_together whose handlers have run, the first of them among
-- these: fails unless every claim still stands and every other key is new. What they wrote might be written twice
-- otherwise.
create function core.outbox_deliver_together(
    p_ids uuid[],
    p_tokens uuid[],
    p_handler_names text[]
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    -- As above.
    set enable_bitmapscan = off
    set enable_nestloop = off
    set jit = off
    set lock_timeout = '2s'
as $$
declare
    v_guarded text := current_setting('spectral.guarded', true);
    v_now timestamptz := clock_timestamp();
    v_delivered bigint;
    v_handled bigint;
begin
    perform core.require_parallel(cardinality(p_ids), cardinality(p_tokens), cardinality(p_handler_names));

    -- The rows of these keys are settled here: there is nothing to look for at the commit.
    perform set_config('spectral.guarded', 'off', true);
    with given as materialized (
        select asked.id, asked.token, asked.handler_name
        from unnest(p_ids, p_tokens, p_handler_names) as asked (id, token, handler_name)
    ),
    delivered as (
        update core.outbox
        set status = 'delivered', delivered_at = v_now, claim_token = null
        from given
        where outbox.id = given.id
          and outbox.id = any (p_ids)
          and outbox.claim_token = given.token
        returning outbox.id, outbox.idempotency_key, outbox.content_class, given.handler_name
    ),
    handled as (
        insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)
        select delivered.handler_name, delivered.idempotency_key, delivered.id, delivered.content_class
        from delivered
        order by delivered.idempotency_key, delivered.handler_name, delivered.id
        on conflict do nothing
        returning 1
    )
    select (select count(*) from delivered), (select count(*) from handled)
    into v_delivered, v_handled;
    perform set_config('spectral.guarded', coalesce(v_guarded, ''), true);

    if v_delivered <> cardinality(p_ids) or v_handled <> greatest(cardinality(p_ids) - 1, 0) then
        raise exception 'of % rows % are still claimed, and beside that of the first % keys are new',
            cardinality(p_ids), v_delivered, v_handled
            using errcode = 'serialization_failure',
                  hint = 'Roll back, and begin each row by itself: core.outbox_begin_one.';
    end if;
end
$$;
alter function core.outbox_deliver_together(uuid[], uuid[], text[]) owner to spectral_owner;
revoke execute on function core.outbox_deliver_together(uuid[], uuid[], text[]) from public;
grant execute on function core.outbox_deliver_together(uuid[], uuid[], text[]) to spectral_worker;
