-- Relays are counted by the broker they send to: one for another broker is none at all when workers wait for this one.

-- The advisory lock that relay processes for one broker share while they run, beside the one they all share.
create function core.relay_crew_key(p_broker text) returns bigint
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select hashtextextended('spectral.relay.' || p_broker, 0)
$$;
alter function core.relay_crew_key(text) owner to spectral_owner;
revoke execute on function core.relay_crew_key(text) from public;
grant execute on function core.relay_crew_key(text) to spectral_worker;

-- How many relay processes run for each broker.
create function core.relay_crew() returns table (broker text, relays bigint)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select
        known.broker,
        (
            select count(*)
            from pg_locks as lock
            where lock.locktype = 'advisory'
              and lock.objsubid = 1
              and lock.granted
              and lock.database = (select db.oid from pg_database as db where db.datname = current_database())
              and ((lock.classid::bigint << 32) | lock.objid::bigint) = core.relay_crew_key(known.broker)
        )
    from (values ('nats'), ('redis')) as known (broker)
$$;
alter function core.relay_crew() owner to spectral_owner;
revoke execute on function core.relay_crew() from public;
grant execute on function core.relay_crew() to spectral_worker, spectral_operator, spectral_readonly;
