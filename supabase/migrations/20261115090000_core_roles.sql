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
        exception when duplicate_object or unique_violation then
            null;
        end;
    end loop;

    -- A migrating role that is no superuser (managed Postgres) must be able to hand objects to the owner.
    if not pg_has_role(current_user, 'spectral_owner', 'member') then
        execute format('grant spectral_owner to %I', current_user);
    end if;
end
$roles$;

create schema if not exists core;
alter schema core owner to spectral_owner;
revoke all on schema core from public;

grant usage on schema core
    to spectral_publisher, spectral_worker, spectral_operator, spectral_retention, spectral_readonly;

comment on schema core is 'The event substrate: outbox, dedup log, deployments, and the functions that alone change them.';
