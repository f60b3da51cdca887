-- The names of handlers are checked once for a call, not once for each record of the dedup log.
--
-- What is refused stays refused, with the same SQLSTATE and constraint name, before anything is written. The functions
-- that write the log are as they were, but that they look at the names they are given.

-- Begin: lock the claimed rows and pass the dedup gate, in the transaction that the handler will write in.
-- A row with several handlers appears once for each. Verdicts: run (the key is yours, run the handler), handled (the
-- key was taken before: do not run), fenced (the claim is no longer yours: stop).
-- The rows of one call stand or fall together: a handler that may fail alone begins inside the savepoint it is rolled
-- back to, in a call of its own, for its key has to go with its writes. Plain handlers, which write nothing here, begin
-- many at once when they settle.
-- Locks: the rows, FOR UPDATE, in id order; then the keys, in key order, waiting for whoever holds one uncommitted.
create or replace function core.outbox_begin(
    p_ids uuid[],
    p_tokens uuid[],
    p_handler_names text[]
) returns table (id uuid, handler_name text, verdict text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_nestloop = off
    set jit = off
    -- A key may be held uncommitted by a handler of minutes: the worker gives the row back and comes again.
    set lock_timeout = '2s'
as $$
begin
    perform core.require_parallel(
        cardinality(p_ids), cardinality(p_tokens), cardinality(p_handler_names)
    );
    perform core.require_handler_names(p_handler_names);
    perform core.require_distinct(array(
        select format('%s %s', given.id, given.handler_name)
        from unnest(p_ids, p_handler_names) as given (id, handler_name)
    ));

    return query
    with asked as materialized (
        select given.id, given.token, given.handler_name
        from unnest(p_ids, p_tokens, p_handler_names) as given (id, token, handler_name)
    ),
    -- the claims that still stand
    held as materialized (
        select outbox.id, outbox.idempotency_key, outbox.content_class
        from core.outbox
        join (select distinct asked.id, asked.token from asked) as claim on claim.id = outbox.id
        where outbox.claim_token = claim.token
          and outbox.id = any (p_ids)
        order by outbox.id
        for update of outbox
    ),
    -- the gate: whoever inserts the key runs the handler
    passed as (
        insert into core.event_handled as handled (handler_name, idempotency_key, event_id, content_class)
        select asked.handler_name, held.idempotency_key, held.id, held.content_class
        from asked
        join held on held.id = asked.id
        order by held.idempotency_key, asked.handler_name, held.id
        on conflict do nothing
        returning handled.handler_name, handled.event_id
    )
    select
        asked.id,
        asked.handler_name,
        case
            when held.id is null then 'fenced'
            when passed.event_id is null then 'handled'
            else 'run'
        end
    from asked
    left join held on held.id = asked.id
    left join passed on passed.event_id = asked.id and passed.handler_name = asked.handler_name;
end
$$;

create or replace function core.outbox_begin_one(p_id uuid, p_token uuid, p_handler_name text) returns text
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    -- A key may be held uncommitted by a handler of minutes: the worker gives the row back and comes again.
    set lock_timeout = '2s'
as $$
declare
    v_row record;
begin
    -- The rule once more, for here it is asked for every row: to call what refuses takes several times as long.
    if length(p_handler_name) > 200 or p_handler_name !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$' then
        perform core.require_handler_names(array[p_handler_name]);
    end if;
    select outbox.idempotency_key, outbox.content_class
    into v_row
    from core.outbox
    where outbox.id = p_id
      and outbox.claim_token = p_token
    for update;
    if not found then
        return 'fenced';
    end if;
    insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)
    values (p_handler_name, v_row.idempotency_key, p_id, v_row.content_class)
    on conflict do nothing;
    return case when found then 'run' else 'handled' end;
end
$$;

create or replace function core.outbox_deliver(
    p_ids uuid[],
    p_tokens uuid[],
    p_handled_ids uuid[],
    p_handler_names text[]
) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    -- Through the index rows are found, and locked, in the order of their ids; a bitmap has them in that of their pages.
    set enable_bitmapscan = off
    set enable_nestloop = off
    set jit = off
    -- A key may be held uncommitted by a handler of minutes: the worker comes again.
    set lock_timeout = '2s'
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    perform core.require_parallel(cardinality(p_ids), cardinality(p_tokens));
    perform core.require_parallel(cardinality(p_handled_ids), cardinality(p_handler_names));
    perform core.require_handler_names(p_handler_names);

    return query
    with given as materialized (
        select asked.id, asked.token from unnest(p_ids, p_tokens) as asked (id, token)
    ),
    delivered as (
        update core.outbox
        set status = 'delivered', delivered_at = v_now, claim_token = null
        from given
        where outbox.id = given.id
          and outbox.id = any (p_ids)
          and outbox.claim_token = given.token
        returning outbox.id, outbox.idempotency_key, outbox.content_class
    ),
    handled as (
        insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)
        select taken.handler_name, delivered.idempotency_key, delivered.id, delivered.content_class
        from unnest(p_handled_ids, p_handler_names) as taken (id, handler_name)
        join delivered on delivered.id = taken.id
        order by delivered.idempotency_key, taken.handler_name, delivered.id
        on conflict do nothing
    )
    select delivered.id from delivered;
end
$$;

create or replace function core.outbox_deliver_together(
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
    perform core.require_handler_names(p_handler_names);

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

-- So the rules, which are a call for each record, are for whoever else writes to the log: of every record that a worker
-- writes they took a sixth of its settlement.
-- Locks: core.event_handled, against everybody, for a moment.
drop trigger event_handled_rules on core.event_handled;
create trigger event_handled_rules before insert or update of handler_name, idempotency_key, content_class
    on core.event_handled
    for each row when (current_user <> 'spectral_owner') execute function core.event_handled_check();
