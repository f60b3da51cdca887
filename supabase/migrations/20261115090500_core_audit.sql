-- core.audit: who changed the course of events, what, why and how many. Append-only, for everybody.

create table core.audit (
    id            bigint      not null generated always as identity,
    recorded_at   timestamptz not null default clock_timestamp(),
    action        text        not null,
    actor         text        not null, -- whom the caller says it acts for
    session_role  text        not null default session_user, -- whom the server knows it to be
    reason        text,
    affected      integer     not null,
    event_ids     uuid[]      not null default '{}',
    detail        jsonb       not null default '{}',

    constraint audit_pkey primary key (id),
    constraint audit_action_check check (action ~ '^[a-z][a-z_]{0,62}$'),
    constraint audit_actor_check check (length(actor) between 1 and 200),
    constraint audit_reason_check check (length(reason) <= 2000),
    constraint audit_affected_check check (affected >= 0)
);
alter table core.audit owner to spectral_owner;

create function core.audit_refuse_change() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'core.audit is append-only: % refused', tg_op
        using errcode = 'insufficient_privilege', table = 'audit', schema = 'core';
end
$$;
alter function core.audit_refuse_change() owner to spectral_owner;
revoke execute on function core.audit_refuse_change() from public;

create trigger audit_append_only before update or delete or truncate on core.audit
    for each statement execute function core.audit_refuse_change();

-- A discard leaves its entry however it is done: core.outbox_discard, which runs as the owner, writes one that says who
-- and why; a plain UPDATE at 3 am gets one for each row here, with the role the server knows.
create function core.audit_discard() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into core.audit (action, actor, affected, event_ids)
    values (
        case when new.deleted_at is null then 'undo_discard' else 'discard' end,
        session_user, 1, array[new.id]
    );
    return null;
end
$$;
alter function core.audit_discard() owner to spectral_owner;
revoke execute on function core.audit_discard() from public;

create trigger outbox_audit_discard after update of deleted_at on core.outbox
    for each row
    when (
        new.status = 'failed'
        and (old.deleted_at is null) <> (new.deleted_at is null)
        and current_user <> 'spectral_owner'
    )
    execute function core.audit_discard();

comment on table core.audit is 'Who replayed, discarded or moved what, when and why. Append-only.';
