-- What never changes after the insert is checked at the insert, once.
--
-- A CHECK constraint is evaluated again for every update of its row, whatever the update touches: an event is updated
-- twice (claimed, settled), and measuring its payload and matching its names again took longer than the update itself.
-- The same conditions stand in the WHEN clause of a trigger: what is allowed costs no function call, and what is not is
-- refused with the same SQLSTATE and the same constraint name as before. These columns cannot be updated
-- (outbox_refuse_rewriting), so nothing can become wrong later. A bad trace context never reaches the table: the
-- trigger outbox_complete has dropped it.
-- Locks: core.outbox, exclusively, for a moment.

alter table core.outbox
    drop constraint outbox_event_type_check,
    drop constraint outbox_source_check,
    drop constraint outbox_target_check,
    drop constraint outbox_trace_context_check,
    drop constraint outbox_payload_object_check,
    drop constraint outbox_payload_size_check,
    drop constraint outbox_payload_depth_check;

-- Says which of them it was; called only for a row that breaks one.
create function core.outbox_refuse_insert() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_constraint text;
begin
    v_constraint := case
        when not (
            length(new.event_type) <= 200
            and new.event_type ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$'
        ) then 'outbox_event_type_check'
        when new.source !~ '^[a-z][a-z0-9_]{0,62}$' then 'outbox_source_check'
        when new.target !~ '^[a-z][a-z0-9_]{0,62}$' then 'outbox_target_check'
        when jsonb_typeof(new.payload) <> 'object' then 'outbox_payload_object_check'
        when octet_length(new.payload::text) > 262144 then 'outbox_payload_size_check'
        else 'outbox_payload_depth_check'
    end;
    raise exception 'new row for relation "outbox" violates check constraint "%"', v_constraint
        using errcode = 'check_violation', schema = 'core', table = 'outbox', constraint = v_constraint;
end
$$;
alter function core.outbox_refuse_insert() owner to spectral_owner;
revoke execute on function core.outbox_refuse_insert() from public;

-- After outbox_complete, by the alphabet. A condition that is null (a null column) is none, as in a CHECK.
create trigger outbox_refuse_insert before insert on core.outbox
    for each row
    when (not (
        length(new.event_type) <= 200
        and new.event_type ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$'
        and new.source ~ '^[a-z][a-z0-9_]{0,62}$'
        and (new.target is null or new.target ~ '^[a-z][a-z0-9_]{0,62}$')
        and jsonb_typeof(new.payload) = 'object'
        and octet_length(new.payload::text) <= 262144
        -- The payload itself is level 1, so nothing that can hold more may stand 64 steps below it. Each level takes
        -- eight bytes at least, so a payload below 512 that is not compressed need not be walked.
        and (
            (pg_column_size(new.payload) < 512 and pg_column_compression(new.payload) is null)
            or not jsonb_path_exists(
                new.payload, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")'
            )
        )
    ))
    execute function core.outbox_refuse_insert();
