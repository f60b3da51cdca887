-- Subscribe: a worker that starts says which generation it is and which handlers it has.

-- Records the subscriptions of one generation, and the generation itself if it is new (the first one of a database is
-- live at once: there is nothing yet that it could take over from).
--
-- All handlers of one context for one event type run in the same workers, for whoever claims a row settles it. So a
-- worker that lacks a handler which is on record for a type it has is told which, and nothing is recorded. With
-- p_replace everything of its contexts that it lacks, whatever the type, is struck off instead (a handler that was
-- renamed or removed): that is for workers that have all of their contexts' handlers.
-- Locks: core.deployments, against other subscribers and whoever promotes or retires, until the end of the transaction.
create function core.outbox_subscribe(
    p_generation bigint,
    p_contexts text[],
    p_event_types text[],
    p_handler_names text[],
    p_max_attempts integer[],
    p_replace boolean default false
) returns table (context text, event_type text, handler_name text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_status text;
begin
    perform core.require_parallel(
        cardinality(p_contexts), cardinality(p_event_types), cardinality(p_handler_names), cardinality(p_max_attempts)
    );
    lock table core.deployments in share row exclusive mode;

    select deployment.status into v_status from core.deployments as deployment
    where deployment.generation = p_generation;
    if v_status = 'retired' then
        raise exception 'generation % is retired', p_generation
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Start the worker with a generation that is not, or hand its rows over to one.';
    end if;
    if v_status is null then
        insert into core.deployments (generation, status, promoted_at)
        select
            p_generation,
            case when first.is_first then 'live' else 'allocated' end,
            case when first.is_first then clock_timestamp() end
        from (select not exists (select from core.deployments) as is_first) as first;
    end if;

    return query
    select known.context, known.event_type, known.handler_name
    from core.subscriptions as known
    where p_replace is not true
      and known.generation = p_generation
      and (known.context, known.event_type) in (
          select given.context, given.event_type from unnest(p_contexts, p_event_types) as given (context, event_type)
      )
      and (known.context, known.event_type, known.handler_name) not in (
          select given.context, given.event_type, given.handler_name
          from unnest(p_contexts, p_event_types, p_handler_names) as given (context, event_type, handler_name)
      )
    order by known.context, known.event_type, known.handler_name;
    if found then
        return;
    end if;

    if p_replace then
        delete from core.subscriptions as known
        where known.generation = p_generation
          and known.context = any (p_contexts)
          and (known.context, known.event_type, known.handler_name) not in (
              select given.context, given.event_type, given.handler_name
              from unnest(p_contexts, p_event_types, p_handler_names) as given (context, event_type, handler_name)
          );
    end if;
    insert into core.subscriptions as known (generation, context, event_type, handler_name, max_attempts)
    select p_generation, given.context, given.event_type, given.handler_name, given.max_attempts
    from unnest(p_contexts, p_event_types, p_handler_names, p_max_attempts)
        as given (context, event_type, handler_name, max_attempts)
    order by given.context, given.event_type, given.handler_name
    on conflict on constraint subscriptions_pkey do update
    set max_attempts = excluded.max_attempts
    where known.max_attempts <> excluded.max_attempts;
end
$$;
alter function core.outbox_subscribe(bigint, text[], text[], text[], integer[], boolean) owner to spectral_owner;
revoke execute on function core.outbox_subscribe(bigint, text[], text[], text[], integer[], boolean) from public;
grant execute on function core.outbox_subscribe(bigint, text[], text[], text[], integer[], boolean) to spectral_worker;
