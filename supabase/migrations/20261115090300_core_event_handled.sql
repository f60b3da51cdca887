-- core.event_handled: one row for each (handler, idempotency key) that took effect. Its primary key is the gate that
-- makes a handler's writes happen once; nobody but the retention sweep deletes from it.

create table core.event_handled (
    handler_name     text        not null,
    idempotency_key  text        not null,
    event_id         uuid        not null, -- the outbox row; no foreign key, the record outlives the row
    content_class    text        not null default 'event',
    handled_at       timestamptz not null default clock_timestamp(),
    deleted_at       timestamptz,

    constraint event_handled_pkey primary key (handler_name, idempotency_key),
    constraint event_handled_handler_name_check check (
        length(handler_name) <= 200 and handler_name ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$'
    ),
    constraint event_handled_idempotency_key_check check (length(idempotency_key) between 1 and 255),
    constraint event_handled_content_class_check check (content_class in ('event', 'agent_task'))
) with (
    -- Only inserted into until the sweep comes: the pages may be full, but without dead rows nothing but this setting
    -- makes autovacuum visit them, and unvisited pages cost the key lookups a heap fetch and, one day, a freeze storm.
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05
);
alter table core.event_handled owner to spectral_owner;

comment on table core.event_handled is 'The dedup log: what each handler has already taken effect for.';
