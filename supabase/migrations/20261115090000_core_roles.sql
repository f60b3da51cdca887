-- Who may do what: an owner that nobody logs in as, and five groups that login roles are made members of.
--
-- Roles belong to the whole server, not to one database, so this file has to bear being applied to several databases
-- at once: a role that another database's migration creates in the same instant is as good as one found.

do $roles$
declare
    v_role name;
begin
    foreach v_role in array array[
        'spectral_owner', 'spectral_publisher', 'spectral_worker',
        'spectral_operator', 'spectral_retention', 'spectral_readonly'
    ]::name[] loop
        begin
            if not exists (select from pg_roles where rolname = v_role) then
                execute format('create role %I nologin', v_role);
            end if;
        exception
            when duplicate_object or unique_violation then
                null;
            when insufficient_privilege then
                -- The runner shows the first line of an error, so what to do stands in it.
                raise exception 'role % may not create roles; have a superuser run: %',
                    current_user, format('alter role %I createrole', current_user)
                    using errcode = 'insufficient_privilege';
        end;
    end loop;

    -- A migrating role that is no superuser (managed Postgres) must be able to hand objects to the owner and to work on
    -- them afterwards. Since Postgres 16 creating a role gives its creator neither, only the right to grant it.
    if not pg_has_role(current_user, 'spectral_owner', 'usage')
        or not pg_has_role(
            current_user, 'spectral_owner',
            case when current_setting('server_version_num')::integer >= 160000 then 'set' else 'member' end
        )
    then
        begin
            execute format('grant spectral_owner to %I', current_user);
        exception when insufficient_privilege then
            raise exception 'another role created spectral_owner on this server; have it or a superuser run: %',
                format('grant spectral_owner to %I', current_user)
                using errcode = 'insufficient_privilege';
        end;
    end if;
end
$roles$;

create schema if not exists core;
alter schema core owner to spectral_owner;
revoke all on schema core from public;

grant usage on schema core
    to spectral_publisher, spectral_worker, spectral_operator, spectral_retention, spectral_readonly;

comment on schema core is 'The event substrate: outbox, dedup log, deployments, and the functions that change them.';
