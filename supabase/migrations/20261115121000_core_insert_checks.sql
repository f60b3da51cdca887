-- The rules of core.outbox, checked by one function at the insert and one at the update.
--
-- Postgres reads and plans every CHECK constraint and every WHEN clause of a table anew for each statement: with fifteen
-- of one and seven of the other, an insert of one event took three times as long as the insert itself, a claim or an
-- acknowledgement of one six times. A function's expressions are planned once for a session. So the same rules stand in
-- functions: what breaks one is refused with the same SQLSTATE and the same constraint name as before, whoever writes
-- and by whatever path. What never changes after the insert (outbox_immutable) is checked at the insert alone.
-- The class of content stays a constraint: new classes are added to it by drop + add.
-- Locks: core.outbox, exclusively, for a moment.

alter table core.outbox
    drop constraint outbox_event_type_check,
    drop constraint outbox_event_version_check,
    drop constraint outbox_source_check,
    drop constraint outbox_target_check,
    drop constraint outbox_idempotency_key_check,
    drop constraint outbox_trace_context_check,
    drop constraint outbox_generation_check,
    drop constraint outbox_channel_check,
    drop constraint outbox_payload_object_check,
    drop constraint outbox_payload_size_check,
    drop constraint outbox_payload_depth_check,
    drop constraint outbox_times_check,
    drop constraint outbox_status_check,
    drop constraint outbox_attempts_check,
    drop constraint outbox_last_error_check,
    drop constraint outbox_failure_history_check,
    drop constraint outbox_claim_check,
    drop constraint outbox_delivered_check,
    drop constraint outbox_failed_check,
    drop constraint outbox_deleted_check,
    drop constraint outbox_parent_check;

drop trigger outbox_complete on core.outbox;
drop trigger outbox_status_transition on core.outbox;
drop trigger outbox_attempts_transition on core.outbox;
drop trigger outbox_claim_transition on core.outbox;
drop trigger outbox_generation_transition on core.outbox;
drop trigger outbox_history_transition on core.outbox;
drop trigger outbox_end_transition on core.outbox;

-- A plain INSERT may leave out the key (it is the event's id then), may bring a trace context that is none (it is
-- dropped: a broken trace must not cost an event), and cannot jump the queue by being due before it was written.
-- A rule that is null, for a null column, is not broken, as in a CHECK; NOT NULL is said by the columns.
create or replace function core.outbox_complete() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_broken text;
begin
    if new.idempotency_key is null then
        new.idempotency_key := new.id::text;
    end if;
    if new.trace_context !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' then
        new.trace_context := null;
    end if;
    if new.next_attempt_at < new.created_at - interval '1 minute' then
        new.next_attempt_at := new.created_at;
    end if;

    v_broken := case
        when length(new.event_type) > 200
            or new.event_type !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$'
            then 'outbox_event_type_check'
        when new.event_version < 1 then 'outbox_event_version_check'
        when new.source !~ '^[a-z][a-z0-9_]{0,62}$' then 'outbox_source_check'
        when new.target !~ '^[a-z][a-z0-9_]{0,62}$' then 'outbox_target_check'
        when length(new.idempotency_key) not between 1 and 255 then 'outbox_idempotency_key_check'
        when new.parent_id is not null and (new.target is null or new.parent_id = new.id) then 'outbox_parent_check'
        when new.generation < 0 then 'outbox_generation_check'
        -- A channel belongs to its row's generation, and fits the 63 bytes a channel name may have: 11 for the prefix,
        -- 19 for the generation, 1 for the underscore, 32 for the class.
        when new.channel <> 'outbox_gen_' || new.generation
            and new.channel <> 'outbox_default'
            and not (
                starts_with(new.channel, 'outbox_gen_' || new.generation || '_')
                and substr(new.channel, length('outbox_gen_' || new.generation || '_') + 1) ~ '^[a-z][a-z0-9_]{0,31}$'
            )
            then 'outbox_channel_check'
        -- Times that every program can read back: a claim must never fail on one row's date. A century less than the
        -- last year of a Python datetime, for whatever the reader's time zone adds.
        when new.occurred_at not between '1900-01-01 00:00+00' and '9900-01-01 00:00+00'
            or new.next_attempt_at not between '1900-01-01 00:00+00' and '9900-01-01 00:00+00'
            then 'outbox_times_check'
        when jsonb_typeof(new.payload) <> 'object' then 'outbox_payload_object_check'
        when octet_length(new.payload::text) > 262144 then 'outbox_payload_size_check'
        -- The payload itself is level 1, so nothing that can hold more may stand 64 steps below it. Each level takes
        -- eight bytes at least, so a payload below 512 that is not compressed need not be walked.
        when (pg_column_size(new.payload) >= 512 or pg_column_compression(new.payload) is not null)
            and jsonb_path_exists(
                new.payload, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")'
            )
            then 'outbox_payload_depth_check'
    end;
    if v_broken is null
        and (
            new.status <> 'pending' or new.attempts <> 0 or new.claim_token is not null
            or new.delivered_at is not null or new.last_error is not null or new.deleted_at is not null
            or new.failure_history <> '[]'
        )
    then
        -- Not as publishers write it: it comes from elsewhere, and may be in any state that is one.
        v_broken := case
            when new.status not in ('pending', 'in_flight', 'delivered', 'failed') then 'outbox_status_check'
            when new.attempts < 0 then 'outbox_attempts_check'
            when (new.status = 'in_flight') <> (new.claim_token is not null)
                or (new.status = 'in_flight' and (new.claimed_by is null or new.claimed_at is null))
                then 'outbox_claim_check'
            when new.deleted_at is not null and new.status not in ('delivered', 'failed') then 'outbox_deleted_check'
            when (new.status = 'delivered') <> (new.delivered_at is not null) then 'outbox_delivered_check'
            when new.status = 'failed' and (new.last_error is null or new.first_failed_at is null)
                then 'outbox_failed_check'
            when jsonb_typeof(new.failure_history) <> 'array' then 'outbox_failure_history_check'
            when octet_length(new.last_error) > 4096 then 'outbox_last_error_check'
        end;
    end if;
    if v_broken is not null then
        raise exception 'new row for relation "outbox" violates check constraint "%"', v_broken
            using errcode = 'check_violation', schema = 'core', table = 'outbox', constraint = v_broken;
    end if;
    return new;
end
$$;

create trigger outbox_complete before insert on core.outbox
    for each row execute function core.outbox_complete();

-- The state machine: whoever writes, and by whatever path, a row takes only these steps.
--
--   pending   -> in_flight               claim
--   pending   -> delivered               fan out (broadcasts only)
--   pending   -> failed                  nobody handles it (NoHandlerError)
--   in_flight -> delivered | failed      settle, reap
--   in_flight -> pending                 settle (retry), release, reap
--   failed    -> pending                 replay, which adds exactly one entry to the history
create function core.outbox_check_update() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_broken text;
begin
    v_broken := case
        -- Attempts are given back by release and replay alone: that is what brings a poison pill to the DLQ.
        when not case
            when old.status = 'failed' and new.status = 'pending' then new.attempts = 0
            when old.status = 'in_flight' and new.status = 'pending' then new.attempts >= old.attempts - 1
            else new.attempts >= old.attempts
        end then 'outbox_attempts_transition'
        -- A claim ends; it is never taken over in flight.
        when new.claim_token <> old.claim_token then 'outbox_claim_transition'
        -- Delivered is for ever, its moment included; only a discard, which is of a failed row, may be taken back. A
        -- tombstone is set now, once: its age decides when the row is deleted.
        when (old.delivered_at is not null and new.delivered_at is distinct from old.delivered_at)
            or (old.deleted_at is not null and new.deleted_at is null and old.status <> 'failed')
            or new.deleted_at <> old.deleted_at
            or (
                old.deleted_at is null
                and new.deleted_at not between clock_timestamp() - interval '1 h' and clock_timestamp() + interval '1 h'
            )
            then 'outbox_end_transition'
        -- A row leaves its generation by replay (failed -> pending) or by hand-over (while pending).
        when (new.generation <> old.generation or new.channel <> old.channel)
            and not (old.status in ('failed', 'pending') and new.status = 'pending')
            then 'outbox_generation_transition'
        -- The history of earlier cycles only grows, by replay.
        when new.failure_history <> old.failure_history
            and not (
                old.status = 'failed' and new.status = 'pending'
                and new.failure_history - (-1) = old.failure_history
            )
            then 'outbox_history_transition'
        when not case old.status
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
        end then 'outbox_status_transition'
    end;
    if v_broken is not null then
        raise exception 'core.outbox % may not go from % to % like this (%)', old.id, old.status, new.status, v_broken
            using errcode = 'check_violation',
                  table = 'outbox', schema = 'core', constraint = v_broken,
                  hint = 'Status is changed by core.outbox_claim, _settle, _release, _reap, _fan_out, _fail_unhandled '
                         'and _replay only.';
    end if;

    v_broken := case
        when new.status not in ('pending', 'in_flight', 'delivered', 'failed') then 'outbox_status_check'
        when new.attempts < 0 then 'outbox_attempts_check'
        when (new.generation <> old.generation or new.channel <> old.channel)
            and (
                new.generation < 0
                or (
                    new.channel <> 'outbox_gen_' || new.generation
                    and new.channel <> 'outbox_default'
                    and not (
                        starts_with(new.channel, 'outbox_gen_' || new.generation || '_')
                        and substr(new.channel, length('outbox_gen_' || new.generation || '_') + 1)
                            ~ '^[a-z][a-z0-9_]{0,31}$'
                    )
                )
            )
            then case when new.generation < 0 then 'outbox_generation_check' else 'outbox_channel_check' end
        when (new.status = 'in_flight') <> (new.claim_token is not null)
            or (new.status = 'in_flight' and (new.claimed_by is null or new.claimed_at is null))
            then 'outbox_claim_check'
        when new.deleted_at is not null and new.status not in ('delivered', 'failed') then 'outbox_deleted_check'
        when (new.status = 'delivered') <> (new.delivered_at is not null) then 'outbox_delivered_check'
        when new.status = 'failed' and (new.last_error is null or new.first_failed_at is null)
            then 'outbox_failed_check'
        when octet_length(new.last_error) > 4096 then 'outbox_last_error_check'
        when new.next_attempt_at not between '1900-01-01 00:00+00' and '9900-01-01 00:00+00' then 'outbox_times_check'
    end;
    if v_broken is not null then
        raise exception 'new row for relation "outbox" violates check constraint "%"', v_broken
            using errcode = 'check_violation', schema = 'core', table = 'outbox', constraint = v_broken;
    end if;
    return new;
end
$$;
alter function core.outbox_check_update() owner to spectral_owner;
revoke execute on function core.outbox_check_update() from public;

create trigger outbox_check_update before update on core.outbox
    for each row execute function core.outbox_check_update();

drop function core.outbox_refuse_transition();
