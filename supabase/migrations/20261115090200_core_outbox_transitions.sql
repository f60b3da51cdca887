-- The state machine, enforced on the table itself: whoever writes, and by whatever path, a row takes only these steps.
--
--   pending   -> in_flight               claim
--   pending   -> delivered               fan out (broadcasts only)
--   pending   -> failed                  nobody handles it (NoHandlerError)
--   in_flight -> delivered | failed      settle, reap
--   in_flight -> pending                 settle (retry), release, reap
--   failed    -> pending                 replay, which adds exactly one entry to the history
--
-- The conditions stand in WHEN clauses: an update that is allowed costs no function call.

create function core.outbox_refuse_transition() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'core.outbox % may not go from % to % like this (trigger %)',
        old.id, old.status, new.status, tg_name
        using errcode = 'check_violation',
              table = 'outbox', schema = 'core', constraint = tg_name,
              hint = 'Status is changed by core.outbox_claim, _settle, _release, _reap, _fan_out, _fail_unhandled and '
                     '_replay only.';
end
$$;
alter function core.outbox_refuse_transition() owner to spectral_owner;
revoke execute on function core.outbox_refuse_transition() from public;

create trigger outbox_status_transition before update of status, target, last_error, failure_history on core.outbox
    for each row
    when (not case old.status
        when 'pending' then
            new.status in ('pending', 'in_flight')
            or (new.status = 'delivered' and old.target is null)
            or (new.status = 'failed' and new.last_error like 'NoHandlerError:%')
        when 'in_flight' then
            true
        when 'failed' then
            new.status = 'failed'
            or (
                new.status = 'pending'
                and jsonb_array_length(new.failure_history) = jsonb_array_length(old.failure_history) + 1
            )
        else
            new.status = old.status
    end)
    execute function core.outbox_refuse_transition();

-- Attempts are given back by release and replay alone: that is what brings a poison pill to the DLQ.
create trigger outbox_attempts_transition before update of attempts, status on core.outbox
    for each row
    when (not case
        when old.status = 'failed' and new.status = 'pending' then new.attempts = 0
        when old.status = 'in_flight' and new.status = 'pending' then new.attempts >= old.attempts - 1
        else new.attempts >= old.attempts
    end)
    execute function core.outbox_refuse_transition();

-- A claim ends; it is never taken over in flight.
create trigger outbox_claim_transition before update of claim_token on core.outbox
    for each row
    when (old.claim_token is not null and new.claim_token is not null and new.claim_token <> old.claim_token)
    execute function core.outbox_refuse_transition();

-- A row leaves its generation by replay (failed -> pending) or by hand-over (while pending).
create trigger outbox_generation_transition before update of generation, channel on core.outbox
    for each row
    when (
        (new.generation <> old.generation or new.channel <> old.channel)
        and not (old.status in ('failed', 'pending') and new.status = 'pending')
    )
    execute function core.outbox_refuse_transition();

-- The history of earlier cycles only grows, by replay.
create trigger outbox_history_transition before update of failure_history on core.outbox
    for each row
    when (
        new.failure_history is distinct from old.failure_history
        and not (
            old.status = 'failed' and new.status = 'pending'
            and new.failure_history - (-1) = old.failure_history
        )
    )
    execute function core.outbox_refuse_transition();

-- Delivered is for ever, its moment included; only a discard, which is of a failed row, may be taken back. A tombstone
-- is set now, once: its age decides when the row is deleted.
create trigger outbox_end_transition before update of delivered_at, deleted_at on core.outbox
    for each row
    when (
        (old.delivered_at is not null and new.delivered_at is distinct from old.delivered_at)
        or (old.deleted_at is not null and new.deleted_at is null and old.status <> 'failed')
        or (old.deleted_at is not null and new.deleted_at <> old.deleted_at)
        or (
            old.deleted_at is null
            and new.deleted_at not between clock_timestamp() - interval '1 h' and clock_timestamp() + interval '1 h'
        )
    )
    execute function core.outbox_refuse_transition();

-- What happened, happened.
create function core.outbox_refuse_rewriting() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'core.outbox %: what happened cannot be rewritten', old.id
        using errcode = 'check_violation',
              table = 'outbox', schema = 'core', constraint = tg_name,
              hint = 'Publish another event that corrects this one.';
end
$$;
alter function core.outbox_refuse_rewriting() owner to spectral_owner;
revoke execute on function core.outbox_refuse_rewriting() from public;

create trigger outbox_immutable before update of
    id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
    idempotency_key, trace_context, parent_id, created_at
    on core.outbox
    for each row execute function core.outbox_refuse_rewriting();
