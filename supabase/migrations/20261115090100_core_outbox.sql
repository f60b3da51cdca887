-- core.outbox: every event of every context, through its whole life (pending -> in_flight -> delivered | failed).
-- The DLQ is the failed part of this table; there is no second one.

-- Time-ordered ids for producers that do not bring their own: neighbours in time are neighbours in the index.
-- The first 48 bits are the milliseconds, the version nibble is 7, the rest stays random (RFC 9562).
create function core.uuid7() returns uuid
    language sql volatile parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select encode(
        -- gen_random_uuid() wrote version 4 (0100); two more bits make it 7 (0111).
        set_bit(set_bit(stamped.bytes, 52, 1), 53, 1), 'hex'
    )::uuid
    from (
        select
            substr(
                int8send((extract(epoch from clock_timestamp()) * 1000)::bigint), 3
            )
            || substr(uuid_send(gen_random_uuid()), 7) as bytes
    ) as stamped
$$;
alter function core.uuid7() owner to spectral_owner;
revoke execute on function core.uuid7() from public;

create table core.outbox (
    -- what happened: never changes after the insert
    id               uuid        not null default core.uuid7(),
    event_type       text        not null,
    event_version    integer     not null default 1,
    occurred_at      timestamptz not null default clock_timestamp(),
    source           text        not null,
    target           text,
    content_class    text        not null default 'event',
    workspace_id     uuid,
    payload          jsonb       not null default '{}',
    idempotency_key  text        not null,
    trace_context    text,
    parent_id        uuid,
    created_at       timestamptz not null default clock_timestamp(),
    -- where it is routed: changes by replay and hand-over only
    channel          text        not null default 'outbox_default',
    generation       bigint      not null,
    -- how far it got: changed by the functions of this schema only
    status           text        not null default 'pending',
    attempts         integer     not null default 0,
    next_attempt_at  timestamptz not null default clock_timestamp(),
    claim_token      uuid,
    claimed_by       text,
    claimed_at       timestamptz,
    delivered_at     timestamptz,
    last_error       text,
    first_failed_at  timestamptz,
    failure_history  jsonb       not null default '[]',
    deleted_at       timestamptz,

    constraint outbox_pkey primary key (id),

    constraint outbox_event_type_check check (
        length(event_type) <= 200
        and event_type ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$'
    ),
    constraint outbox_event_version_check check (event_version >= 1),
    constraint outbox_source_check check (source ~ '^[a-z][a-z0-9_]{0,62}$'),
    constraint outbox_target_check check (target ~ '^[a-z][a-z0-9_]{0,62}$'),
    -- A new class of content extends this list by drop + add in the migration that first writes it.
    constraint outbox_content_class_check check (content_class in ('event', 'agent_task')),
    constraint outbox_idempotency_key_check check (length(idempotency_key) between 1 and 255),
    constraint outbox_trace_context_check check (
        trace_context ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
    ),
    constraint outbox_generation_check check (generation >= 0),
    -- A channel belongs to its row's generation, and fits the 63 bytes a channel name may have: 11 for the prefix,
    -- 19 for the generation, 1 for the underscore, 32 for the class.
    constraint outbox_channel_check check (
        channel = 'outbox_default'
        or channel = 'outbox_gen_' || generation
        or (
            starts_with(channel, 'outbox_gen_' || generation || '_')
            and substr(channel, length('outbox_gen_' || generation || '_') + 1) ~ '^[a-z][a-z0-9_]{0,31}$'
        )
    ),
    constraint outbox_payload_object_check check (jsonb_typeof(payload) = 'object'),
    constraint outbox_payload_size_check check (octet_length(payload::text) <= 262144),
    -- The payload itself is level 1, so nothing that can hold more may stand 64 steps below it. Each level takes eight
    -- bytes at least, so a payload below 512 that is not compressed need not be walked.
    constraint outbox_payload_depth_check check (
        (pg_column_size(payload) < 512 and pg_column_compression(payload) is null)
        or not jsonb_path_exists(payload, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")')
    ),

    -- Times that every program can read back: a claim must never fail on one row's date. A century less than the last
    -- year of a Python datetime, for whatever the reader's time zone adds.
    constraint outbox_times_check check (
        occurred_at between '1900-01-01 00:00+00' and '9900-01-01 00:00+00'
        and next_attempt_at between '1900-01-01 00:00+00' and '9900-01-01 00:00+00'
    ),

    constraint outbox_status_check check (status in ('pending', 'in_flight', 'delivered', 'failed')),
    constraint outbox_attempts_check check (attempts >= 0),
    constraint outbox_last_error_check check (octet_length(last_error) <= 4096),
    constraint outbox_failure_history_check check (jsonb_typeof(failure_history) = 'array'),
    -- A claim is whole or absent, and only a row in flight has one. claimed_by and claimed_at outlive the claim.
    constraint outbox_claim_check check (
        (status = 'in_flight') = (claim_token is not null)
        and (status <> 'in_flight' or (claimed_by is not null and claimed_at is not null))
    ),
    constraint outbox_delivered_check check ((status = 'delivered') = (delivered_at is not null)),
    constraint outbox_failed_check check (
        status <> 'failed' or (last_error is not null and first_failed_at is not null)
    ),
    -- What is still to be delivered cannot be put away.
    constraint outbox_deleted_check check (deleted_at is null or status in ('delivered', 'failed')),
    constraint outbox_parent_check check (parent_id is null or (target is not null and parent_id <> id))
) with (
    -- Every event is rewritten twice (claimed, settled), and its lease may be renewed: room on its own page keeps the
    -- versions together and lets a renewal, which touches no indexed column, be a heap-only update.
    fillfactor = 75,
    -- Two dead versions per event: with the default of 20 % a table of millions would be vacuumed once in a million
    -- events, while claiming walks over the dead entries of the pending index.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    -- The share of pending rows swings from none to all within minutes; the planner should know.
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000,
    -- A vacuum that is throttled below the rate of dying rows never catches up.
    autovacuum_vacuum_cost_limit = 2000,
    -- Large payloads live in the toast table, which dies by the sweep alone and is as large as the payloads.
    toast.autovacuum_vacuum_scale_factor = 0.05
);
alter table core.outbox owner to spectral_owner;

-- The claim: for one generation, channel and context, earliest due first. Fan out reads it too (target is null), and
-- the first entry that is not due yet is when the timer has to ring.
create index outbox_pending_idx on core.outbox (generation, channel, target, next_attempt_at, id)
    where status = 'pending' and deleted_at is null;

-- The reaper looks at every row in flight, and there are only as many as workers can hold. It is keyed by a column
-- that a renewal does not touch, so that renewing a lease can be a heap-only update.
create index outbox_in_flight_idx on core.outbox (claimed_by) where status = 'in_flight';

-- The DLQ, newest failure first.
create index outbox_failed_idx on core.outbox (first_failed_at desc, id)
    where status = 'failed' and deleted_at is null;

-- At most one child for each parent and context, and the way from a broadcast to its children.
create unique index outbox_child_key on core.outbox (parent_id, target) where parent_id is not null;

-- Frozen for ever: publishers compose channel names, the trigger only passes on what the row says.
create function core.outbox_notify() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify(new.channel, new.id::text);
    return null;
end
$$;
alter function core.outbox_notify() owner to spectral_owner;
revoke execute on function core.outbox_notify() from public;

create trigger outbox_notify after insert on core.outbox
    for each row execute function core.outbox_notify();

-- A plain INSERT may leave out the key (it is the event's id then), may bring a trace context that is none (it is
-- dropped: a broken trace must not cost an event), and cannot jump the queue by being due before it was written.
create function core.outbox_complete() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    new.idempotency_key := coalesce(new.idempotency_key, new.id::text);
    if new.trace_context !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' then
        new.trace_context := null;
    end if;
    new.next_attempt_at := greatest(new.next_attempt_at, new.created_at);
    return new;
end
$$;
alter function core.outbox_complete() owner to spectral_owner;
revoke execute on function core.outbox_complete() from public;

create trigger outbox_complete before insert on core.outbox
    for each row
    when (
        new.idempotency_key is null
        or new.trace_context !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
        or new.next_attempt_at < new.created_at - interval '1 minute'
    )
    execute function core.outbox_complete();

comment on table core.outbox is 'Every event through its whole life. DLQ: status = ''failed'' and deleted_at is null.';
comment on column core.outbox.generation is 'The deployment that published it; only workers of that generation run it.';
comment on column core.outbox.next_attempt_at is 'Not claimed before this: publish delay or retry backoff.';
comment on column core.outbox.claim_token is 'The fence: every write after the claim names it.';
comment on column core.outbox.claimed_at is 'When the lease was taken or renewed; of a failed row, when it failed.';
comment on column core.outbox.parent_id is 'The broadcast this row is one context''s share of.';
comment on column core.outbox.failure_history is 'Cycles that ended in the DLQ and were replayed; append-only.';
