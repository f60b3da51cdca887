-- The DLQ to look at: by fingerprint (event type, context, error class, handler), at any size.

-- An error is kept as `ErrorClass: handler: message`; what is no such text has no handler. The same expressions stand
-- in the index below. Every failed row has an error: that it is asked for here is what lets the index be used.
create view core.dead_letters with (security_invoker = true) as
    select
        outbox.id, outbox.event_type, outbox.event_version, outbox.source, outbox.target, outbox.workspace_id,
        outbox.idempotency_key, outbox.generation, outbox.channel, outbox.attempts, outbox.last_error,
        left(split_part(outbox.last_error, ':', 1), 120) as error_class,
        left(substring(
            outbox.last_error from '^[^:]*: ([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+): '
        ), 200) as handler_name,
        outbox.first_failed_at, outbox.claimed_at as failed_at, outbox.claimed_by, outbox.created_at,
        jsonb_array_length(outbox.failure_history) as replays
    from core.outbox
    where outbox.status = 'failed' and outbox.deleted_at is null and outbox.last_error is not null;
alter view core.dead_letters owner to spectral_owner;
grant select on core.dead_letters to spectral_operator, spectral_readonly;

-- Groups are found by stepping from one to the next, and each is listed, oldest or newest first, from its own range.
-- Only failing costs an entry. Its condition says one thing more than that of outbox_failed_idx, for a planner without
-- statistics takes either for a list of the newest failures, and from this one it would have to sort them all.
-- Locks: core.outbox, against writers, while it is built.
create index outbox_fingerprint_idx on core.outbox (
    event_type,
    coalesce(target, ''),
    left(split_part(last_error, ':', 1), 120),
    coalesce(left(substring(last_error from '^[^:]*: ([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+): '), 200), ''),
    first_failed_at,
    id
) where status = 'failed' and deleted_at is null and last_error is not null;

-- What was done to an event, and what was done last of a kind.
create index audit_event_ids_idx on core.audit using gin (event_ids);
create index audit_action_idx on core.audit (action, id);

comment on view core.dead_letters is 'The DLQ: failed and not discarded, with the error taken apart.';
