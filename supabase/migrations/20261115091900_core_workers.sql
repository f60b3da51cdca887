-- core.workers: who is at work. A worker signs in when it starts and out when it ends; whether it lives is not written
-- here but seen by its liveness lock, so nothing has to be kept fresh and a crash needs no cleaning up.

create table core.workers (
    name         text        not null,
    generation   bigint      not null,
    generations  bigint[]    not null, -- those whose rows it runs, its own among them
    contexts     text[]      not null,
    channels     text[]      not null,
    host         text        not null,
    pid          integer     not null,
    version      text        not null,
    signed_in_at timestamptz not null default clock_timestamp(),
    missed_at    timestamptz, -- when another one that signed in first saw it gone

    constraint workers_pkey primary key (name),
    constraint workers_name_check check (length(name) between 1 and 500),
    constraint workers_generations_check check (generation = any (generations)),
    constraint workers_host_check check (length(host) <= 255),
    constraint workers_version_check check (length(version) <= 60)
);
alter table core.workers owner to spectral_owner;

-- Whether somebody holds this worker's liveness lock.
create function core.worker_lives(p_name text) returns boolean
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from pg_locks as lock
        where lock.locktype = 'advisory'
          and lock.objsubid = 1
          and lock.granted
          and lock.database = (select db.oid from pg_database as db where db.datname = current_database())
          and ((lock.classid::bigint << 32) | lock.objid::bigint) = core.worker_lock_key(p_name)
    )
$$;
alter function core.worker_lives(text) owner to spectral_owner;
revoke execute on function core.worker_lives(text) from public;
grant execute on function core.worker_lives(text) to spectral_operator, spectral_readonly;

-- Signs a worker in, again after every reconnect; the first of its generations is its own. Those that are gone without
-- having signed out are noted, and struck off a day later: that they are missing should be seen.
create function core.worker_sign_in(
    p_name text,
    p_generations bigint[],
    p_contexts text[],
    p_channels text[],
    p_host text,
    p_pid integer,
    p_version text
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_living bigint[];
begin
    -- Whole, or not at all: it is by its name that a worker is seen to live.
    if p_name is null or length(p_name) not between 1 and 500 or p_generations[1] is null then
        raise exception 'a worker signs in with a name of at most 500 characters and with its generation'
            using errcode = 'invalid_parameter_value';
    end if;
    insert into core.workers as known (name, generation, generations, contexts, channels, host, pid, version)
    values (
        p_name, p_generations[1], p_generations, coalesce(p_contexts, '{}'), coalesce(p_channels, '{}'),
        left(coalesce(p_host, ''), 255), coalesce(p_pid, 0), left(coalesce(p_version, ''), 60)
    )
    on conflict on constraint workers_pkey do update
    set generation = excluded.generation, generations = excluded.generations, contexts = excluded.contexts,
        channels = excluded.channels, host = excluded.host, pid = excluded.pid, version = excluded.version,
        missed_at = null,
        -- another process of that name has only just come
        signed_in_at = case
            when (known.host, known.pid) = (excluded.host, excluded.pid) then known.signed_in_at
            else excluded.signed_in_at
        end;

    select coalesce(array_agg((lock.classid::bigint << 32) | lock.objid::bigint), '{}')
    into v_living
    from pg_locks as lock
    where lock.locktype = 'advisory'
      and lock.objsubid = 1
      and lock.granted
      and lock.database = (select db.oid from pg_database as db where db.datname = current_database());
    update core.workers as missing
    set missed_at = v_now
    where missing.name in (
        select known.name
        from core.workers as known
        where known.missed_at is null
          and known.name <> p_name
          and core.worker_lock_key(known.name) <> all (v_living)
        order by known.name
        limit 1000
        for update skip locked
    );
    delete from core.workers as missing
    where missing.name in (
        select known.name
        from core.workers as known
        where known.missed_at < v_now - interval '1 day'
          and core.worker_lock_key(known.name) <> all (v_living)
        order by known.name
        limit 1000
        for update skip locked
    );
end
$$;
alter function core.worker_sign_in(text, bigint[], text[], text[], text, integer, text) owner to spectral_owner;
revoke execute on function core.worker_sign_in(text, bigint[], text[], text[], text, integer, text) from public;
grant execute on function core.worker_sign_in(text, bigint[], text[], text[], text, integer, text) to spectral_worker;

-- Signs a worker out.
create function core.worker_sign_out(p_name text) returns void
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    delete from core.workers where workers.name = p_name
$$;
alter function core.worker_sign_out(text) owner to spectral_owner;
revoke execute on function core.worker_sign_out(text) from public;
grant execute on function core.worker_sign_out(text) to spectral_worker;

grant select on core.workers to spectral_operator, spectral_readonly;
-- worker_lives calls it
grant execute on function core.worker_lock_key(text) to spectral_readonly;

comment on table core.workers is 'Workers that have signed in and not out; core.worker_lives(name) says which live.';
