-- Publish for producers that are not Python: psql, Supabase RPC, other languages. Joins the caller's transaction like
-- any function does. EXECUTE on these is all a producer needs; a plain INSERT with the publisher role works as well.

-- The workspace this session acts for: `set local spectral.workspace_id`, or the claim of a Supabase token. Null: none,
-- which is for services; a user's token that names no workspace is refused.
create function core.current_workspace() returns uuid
    language plpgsql stable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_claims jsonb := nullif(current_setting('request.jwt.claims', true), '');
    v_workspace uuid := coalesce(
        nullif(current_setting('spectral.workspace_id', true), ''), v_claims ->> 'workspace_id'
    );
begin
    if v_workspace is null and v_claims is not null and v_claims ->> 'role' is distinct from 'service_role' then
        raise exception 'the token names no workspace'
            using errcode = 'insufficient_privilege', hint = 'Add a workspace_id claim to the token.';
    end if;
    return v_workspace;
end
$$;
alter function core.current_workspace() owner to spectral_owner;
revoke execute on function core.current_workspace() from public;

-- The channel of a generation and, if given, of a processing class such as hot or cold.
create function core.outbox_channel(p_generation bigint, p_class text default null) returns text
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select 'outbox_gen_' || p_generation || coalesce('_' || p_class, '')
$$;
alter function core.outbox_channel(bigint, text) owner to spectral_owner;
revoke execute on function core.outbox_channel(bigint, text) from public;

-- Publishes many events, given as a JSON array of envelopes with the keys of the columns (event_type and source are
-- required; event_id, payload, target, ... as in core.outbox). Answers the ids in the order given.
-- p_generation null: the live one. Locks: none beyond the rows it inserts.
create function core.outbox_publish_many(
    p_events jsonb,
    p_generation bigint default null,
    p_class text default null,
    p_delay interval default null
) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_generation bigint := coalesce(p_generation, (select live.generation from core.live_generation as live));
    v_workspace uuid := core.current_workspace();
begin
    if jsonb_typeof(p_events) is distinct from 'array' or exists (
        select
        from jsonb_array_elements(p_events) as event
        where jsonb_typeof(event) <> 'object'
    ) then
        raise exception 'events must be a JSON array of objects' using errcode = 'invalid_parameter_value';
    end if;
    if exists (
        select
        from jsonb_array_elements(p_events) as event
        cross join jsonb_object_keys(event) as key
        where key not in (
            'event_id', 'event_type', 'event_version', 'occurred_at', 'source', 'target', 'content_class',
            'workspace_id', 'payload', 'idempotency_key', 'trace_context'
        )
    ) then
        raise exception 'an event has a key that is none of an envelope''s'
            using errcode = 'invalid_parameter_value',
                  hint = 'Known are event_id, event_type, event_version, occurred_at, source, target, content_class, '
                         'workspace_id, payload, idempotency_key, trace_context.';
    end if;
    if p_delay < interval '0' then
        raise exception 'a delay cannot be negative' using errcode = 'invalid_parameter_value';
    end if;
    if v_generation is null then
        raise exception 'no generation given and none is live'
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass p_generation, or make a generation live in core.deployments.';
    end if;
    if v_workspace is not null and exists (
        select
        from jsonb_to_recordset(p_events) as event (workspace_id uuid)
        where event.workspace_id <> v_workspace
    ) then
        raise exception 'this session may publish for its own workspace only'
            using errcode = 'insufficient_privilege',
                  hint = 'Its workspace is set by spectral.workspace_id or the token''s workspace_id claim.';
    end if;

    return query
    with event as materialized (
        select
            row_number() over () as position,
            coalesce(given.event_id, core.uuid7()) as id,
            given.*
        from jsonb_to_recordset(p_events) as given (
            event_id uuid, event_type text, event_version integer, occurred_at timestamptz, source text, target text,
            content_class text, workspace_id uuid, payload jsonb, idempotency_key text, trace_context text
        )
    ),
    published as (
        insert into core.outbox (
            id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
            workspace_id, payload, idempotency_key, trace_context, next_attempt_at
        )
        select
            event.id, event.event_type, coalesce(event.event_version, 1),
            coalesce(event.occurred_at, clock_timestamp()), event.source, event.target,
            coalesce(event.content_class, 'event'), core.outbox_channel(v_generation, p_class), v_generation,
            coalesce(event.workspace_id, v_workspace), coalesce(event.payload, '{}'),
            coalesce(event.idempotency_key, event.id::text), event.trace_context,
            clock_timestamp() + coalesce(p_delay, interval '0')
        from event
        order by event.position
        returning outbox.id
    )
    select event.id
    from event
    join published on published.id = event.id
    order by event.position;
end
$$;
alter function core.outbox_publish_many(jsonb, bigint, text, interval) owner to spectral_owner;
revoke execute on function core.outbox_publish_many(jsonb, bigint, text, interval) from public;

-- Publishes one event and answers its id.
create function core.outbox_publish(
    p_event_type text,
    p_source text,
    p_payload jsonb default '{}',
    p_target text default null,
    p_workspace_id uuid default null,
    p_idempotency_key text default null,
    p_event_id uuid default null,
    p_event_version integer default 1,
    p_occurred_at timestamptz default null,
    p_trace_context text default null,
    p_generation bigint default null,
    p_class text default null,
    p_delay interval default null
) returns uuid
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    select core.outbox_publish_many(
        jsonb_build_array(jsonb_build_object(
            'event_id', p_event_id, 'event_type', p_event_type, 'event_version', p_event_version,
            'occurred_at', p_occurred_at, 'source', p_source, 'target', p_target, 'workspace_id', p_workspace_id,
            'payload', p_payload, 'idempotency_key', p_idempotency_key, 'trace_context', p_trace_context
        )),
        p_generation, p_class, p_delay
    )
$$;
alter function core.outbox_publish(
    text, text, jsonb, text, uuid, text, uuid, integer, timestamptz, text, bigint, text, interval
) owner to spectral_owner;
revoke execute on function core.outbox_publish(
    text, text, jsonb, text, uuid, text, uuid, integer, timestamptz, text, bigint, text, interval
) from public;
