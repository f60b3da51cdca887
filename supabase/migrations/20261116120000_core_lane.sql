-- The rules of core.event_handled, checked by one function at the insert.
--
-- A lane writes the dedup log one record at a time, and Postgres reads and plans every CHECK constraint of a table anew
-- for each statement: of the gate's time they took half. A function's expressions are planned once for a session, so
-- the same rules stand in a function, as those of core.outbox do: what breaks one is refused with the same SQLSTATE and
-- the same constraint name as before, whoever writes and by whatever path.
-- The class of content too: a new class is added to the constraint of core.outbox by drop + add, and here by replacing
-- the function.
-- Locks: core.event_handled, exclusively, for a moment.

alter table core.event_handled
    drop constraint event_handled_handler_name_check,
    drop constraint event_handled_idempotency_key_check,
    drop constraint event_handled_content_class_check;

-- A twin that is being filled has to stay what its table is, or all that was copied would be copied again.
do $$
begin
    if to_regclass('core.event_handled_hashed') is not null then
        alter table core.event_handled_hashed
            drop constraint if exists event_handled_handler_name_check,
            drop constraint if exists event_handled_idempotency_key_check,
            drop constraint if exists event_handled_content_class_check;
    end if;
end
$$;

-- A rule that is null, for a null column, is not broken, as in a CHECK; NOT NULL is said by the columns.
create function core.event_handled_check() returns trigger
    language plpgsql security invoker
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_broken text;
begin
    v_broken := case
        when length(new.handler_name) > 200
            or new.handler_name !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$'
            then 'event_handled_handler_name_check'
        when length(new.idempotency_key) not between 1 and 255 then 'event_handled_idempotency_key_check'
        when new.content_class not in ('event', 'agent_task') then 'event_handled_content_class_check'
    end;
    if v_broken is not null then
        raise exception 'new row for relation "event_handled" violates check constraint "%"', v_broken
            using errcode = 'check_violation', schema = 'core', table = 'event_handled', constraint = v_broken;
    end if;
    return new;
end
$$;
alter function core.event_handled_check() owner to spectral_owner;
revoke execute on function core.event_handled_check() from public;

-- Locks: core.event_handled, against writers, while it is created.
create trigger event_handled_rules before insert or update of handler_name, idempotency_key, content_class
    on core.event_handled
    for each row execute function core.event_handled_check();
