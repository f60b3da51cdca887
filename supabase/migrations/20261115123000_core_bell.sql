-- The bell: publishers stay silent while a worker is awake.
--
-- NOTIFY takes a lock of the whole server from before the commit until its flush: publishers that notify commit one at a
-- time. So the trigger rings only when somebody may be asleep. A worker that is busy says so by a short lease and polls;
-- a publisher that trusts the lease holds a shared lock until it has committed; a worker that falls asleep withdraws its
-- lease and waits until nobody holds that lock, so that its last look sees everything nobody rang for.

-- How publishers ring: bell, as above; always, for every row; off, never: every worker finds its rows by polling.
create table core.bell (
    singleton   boolean     not null default true,
    mode        text        not null default 'bell',
    changed_at  timestamptz not null default clock_timestamp(),
    changed_by  text        not null default 'migration',
    reason      text,

    constraint bell_pkey primary key (singleton),
    constraint bell_singleton_check check (singleton),
    constraint bell_mode_check check (mode in ('bell', 'always', 'off')),
    constraint bell_changed_by_check check (length(changed_by) between 1 and 200),
    constraint bell_reason_check check (length(reason) <= 2000)
);
alter table core.bell owner to spectral_owner;
grant select on core.bell to spectral_operator, spectral_readonly, spectral_worker;
insert into core.bell default values;

comment on table core.bell is 'Whether publishers notify: bell (only while nobody is awake), always, or off. One row.';

-- Who is awake, and until when. Unlogged: a server that has crashed knows of nobody, so everybody rings. A row that has
-- expired is a promise that somebody may have trusted; it is taken away when nobody can any more.
create unlogged table core.bell_leases (
    channel      text        not null,
    context      text        not null, -- '*': broadcasts, which any worker of the channel splits
    worker       text        not null,
    awake_until  timestamptz not null,

    constraint bell_leases_pkey primary key (channel, context, worker)
) with (
    -- Every busy worker rewrites its few rows several times a second.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
alter table core.bell_leases owner to spectral_owner;
grant select on core.bell_leases to spectral_operator, spectral_readonly, spectral_worker;

-- What publishers read. A snapshot that is kept open keeps all old versions of these rows alive; by their times, a
-- publisher meets those of the last second only. That is worth more than renewals that touch no index.
create index bell_leases_awake_idx on core.bell_leases (channel, context, awake_until);

comment on table core.bell_leases is 'Workers that poll for now: nobody has to ring for them.';

-- The lock that publishers who stay silent share.
create function core.bell_lock_key(p_channel text, p_context text) returns bigint
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select hashtextextended('spectral.bell.' || p_channel || '/' || p_context, 0)
$$;
alter function core.bell_lock_key(text, text) owner to spectral_owner;
revoke execute on function core.bell_lock_key(text, text) from public;

-- Whether the trigger has to ring for this row. One ring for each channel and context is enough for a transaction, and
-- who has stayed silent once may go on: the lock is held, so whoever was awake cannot have fallen asleep unseen. The
-- memory is a setting of the transaction: a savepoint that is rolled back takes it along, as it does the ring and the
-- lock. Every publish comes here: one function, and as few settings of its own as it can do with.
-- Locks: the lock of silent publishers, shared, if it is to be had at once, until the end of the transaction.
create function core.outbox_bell_needed(p_channel text, p_target text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    v_about text := ' ' || p_channel || '/' || coalesce(p_target, '*') || ' ';
    v_known text := coalesce(current_setting('spectral.bell_known', true), '');
    v_now timestamptz;
    v_locked boolean;
    v_mode text;
    v_awake boolean;
begin
    if position(v_about in v_known) > 0 then
        return false;
    end if;
    -- A snapshot that was taken before the lock may show a lease that has been withdrawn since.
    v_locked := current_setting('transaction_isolation') = 'read committed'
        and pg_try_advisory_xact_lock_shared(core.bell_lock_key(p_channel, coalesce(p_target, '*')));
    v_now := clock_timestamp();
    select bell.mode, exists (
        select
        from core.bell_leases as lease
        where lease.channel = p_channel
          and lease.context = coalesce(p_target, '*')
          and lease.awake_until > v_now
    )
    into v_mode, v_awake
    from core.bell
    where bell.singleton;
    if v_mode is distinct from 'bell' then
        if v_mode is distinct from 'off' then
            return true;
        end if;
        v_locked := true;
        v_awake := true;
    end if;
    perform set_config('spectral.bell_known', v_known || v_about, true);
    return not (v_locked and v_awake);
end
$$;
alter function core.outbox_bell_needed(text, text) owner to spectral_owner;
revoke execute on function core.outbox_bell_needed(text, text) from public;
-- The condition of a trigger runs as whoever inserts.
grant execute on function core.outbox_bell_needed(text, text) to spectral_publisher;

drop trigger outbox_notify on core.outbox;
create trigger outbox_notify after insert on core.outbox
    for each row
    when (core.outbox_bell_needed(new.channel, new.target))
    execute function core.outbox_notify();

-- A worker is awake for so long: it polls its channels for these contexts. p_contexts and p_event_types are parallel,
-- what it has handlers for; a null type is every type. No lease is given where others have types of the context that it
-- has not, nor for outbox_default, whose rows are of any generation: there, somebody else may have to be woken.
create function core.bell_awake(
    p_worker text, p_channels text[], p_contexts text[], p_event_types text[], p_for interval
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set jit = off
as $$
begin
    perform core.require_parallel(cardinality(p_contexts), cardinality(p_event_types));
    if coalesce(p_worker, '') = '' or p_for is null or p_for > interval '10 seconds' then
        raise exception 'a lease needs a worker''s name, and lasts ten seconds at most'
            using errcode = 'invalid_parameter_value';
    end if;
    insert into core.bell_leases as lease (channel, context, worker, awake_until)
    select heard.channel, served.context, p_worker, clock_timestamp() + p_for
    from core.bell
    cross join (
        select distinct given.channel, substring(given.channel from '^outbox_gen_([0-9]+)')::bigint as generation
        from unnest(p_channels) as given (channel)
    ) as heard
    cross join (
        select distinct given.context from unnest(p_contexts || '{*}'::text[]) as given (context)
    ) as served
    where bell.singleton
      and bell.mode = 'bell'
      and heard.generation is not null
      and not exists (
          select
          from core.subscriptions as known
          where known.generation = heard.generation
            and known.context = served.context
            and not exists (
                select
                from unnest(p_contexts, p_event_types) as mine (context, event_type)
                where mine.context = known.context
                  and (mine.event_type is null or mine.event_type = known.event_type)
            )
      )
    order by heard.channel, served.context
    on conflict on constraint bell_leases_pkey do update
    set awake_until = excluded.awake_until;
end
$$;
alter function core.bell_awake(text, text[], text[], text[], interval) owner to spectral_owner;
revoke execute on function core.bell_awake(text, text[], text[], text[], interval) from public;
grant execute on function core.bell_awake(text, text[], text[], text[], interval) to spectral_worker;

-- A worker that has no room for what it knows of needs no ringing either, for it looks again when it has. Renews its
-- leases as core.bell_awake does, if so many rows come in that publishers would hinder each other, 250 a second; answers
-- whether. What it cannot take is for the others: they are woken.
create function core.bell_hold(
    p_worker text, p_channels text[], p_contexts text[], p_event_types text[], p_for interval
) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_channel text;
begin
    if not exists (
        select
        from (
            select distinct given.channel, substring(given.channel from '^outbox_gen_([0-9]+)')::bigint as generation
            from unnest(p_channels) as given (channel)
        ) as heard
        cross join (select distinct given.context from unnest(p_contexts) as given (context)) as served
        cross join lateral (
            select outbox.id
            from core.outbox
            where outbox.status = 'pending'
              and outbox.deleted_at is null
              and outbox.generation = heard.generation
              and outbox.channel = heard.channel
              and outbox.target = served.context
              and outbox.next_attempt_at <= v_now
              and outbox.next_attempt_at > v_now - interval '0.2 s'
            order by outbox.next_attempt_at desc, outbox.id desc
            offset 49
            limit 1
        ) as fiftieth
    ) then
        return false;
    end if;
    perform core.bell_awake(p_worker, p_channels, p_contexts, p_event_types, p_for);
    for v_channel in select distinct given.channel from unnest(p_channels) as given (channel) loop
        perform core.bell_ring(v_channel);
    end loop;
    return true;
end
$$;
alter function core.bell_hold(text, text[], text[], text[], interval) owner to spectral_owner;
revoke execute on function core.bell_hold(text, text[], text[], text[], interval) from public;
grant execute on function core.bell_hold(text, text[], text[], text[], interval) to spectral_worker;

-- A worker withdraws its leases; answers whether it had any. They stay, expired, until core.bell_quiet says so, for
-- publishers who have seen them may not have committed yet. Commit it before that.
create function core.bell_asleep(p_worker text, p_channels text[], p_contexts text[]) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    update core.bell_leases as lease
    set awake_until = clock_timestamp()
    where lease.worker = p_worker
      and lease.channel = any (p_channels)
      and lease.context = any (p_contexts || '{*}'::text[]);
    return found;
end
$$;
alter function core.bell_asleep(text, text[], text[]) owner to spectral_owner;
revoke execute on function core.bell_asleep(text, text[], text[]) from public;
grant execute on function core.bell_asleep(text, text[], text[]) to spectral_worker;

-- Whether nobody is left who has stayed silent and not yet committed. If so, the worker's withdrawn leases are taken
-- away, and the others of its channels are woken: from here on they see themselves to what it has promised to see to.
-- After that it has to look once more before it waits. Locks: those of silent publishers, exclusively, as far as they
-- are to be had at once, until the end of the transaction, which should be this call.
create function core.bell_quiet(p_worker text, p_channels text[], p_contexts text[]) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    v_each record;
    v_channel text;
begin
    for v_each in
        select heard.channel, served.context
        from (select distinct given.channel from unnest(p_channels) as given (channel)) as heard
        cross join (
            select distinct given.context from unnest(p_contexts || '{*}'::text[]) as given (context)
        ) as served
        order by heard.channel, served.context
    loop
        if not pg_try_advisory_xact_lock(core.bell_lock_key(v_each.channel, v_each.context)) then
            return false;
        end if;
    end loop;
    for v_channel in
        with taken as (
            delete from core.bell_leases as lease
            where lease.worker = p_worker
              and lease.channel = any (p_channels)
              and lease.context = any (p_contexts || '{*}'::text[])
            returning lease.channel
        )
        select distinct taken.channel from taken order by taken.channel
    loop
        perform core.bell_ring(v_channel);
    end loop;
    return true;
end
$$;
alter function core.bell_quiet(text, text[], text[]) owner to spectral_owner;
revoke execute on function core.bell_quiet(text, text[], text[]) from public;
grant execute on function core.bell_quiet(text, text[], text[]) to spectral_worker;

-- Wakes the workers of a channel: for a busy one that finds more than it can take. Not at a queue that is all but full,
-- and not while the bell is off.
create function core.bell_ring(p_channel text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if p_channel !~ '^outbox_(default|gen_[0-9]+(_[a-z0-9_]+)?)$' then
        raise exception '% is no channel', coalesce(quote_literal(left(p_channel, 80)), 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if not exists (select from core.bell where bell.singleton and bell.mode = 'off') then
        perform core.outbox_wake(p_channel, '');
    end if;
end
$$;
alter function core.bell_ring(text) owner to spectral_owner;
revoke execute on function core.bell_ring(text) from public;
grant execute on function core.bell_ring(text) to spectral_worker;

-- Takes over from workers that said they were awake and have not been heard of since, dead or stuck: when nobody is left
-- who trusted them, their leases are taken away and their channels are woken. Answers how many leases that were; comes
-- back to the others the next time. Locks: as core.bell_quiet, and the leases, FOR UPDATE SKIP LOCKED.
create function core.bell_mend(p_after interval default interval '2 seconds', p_limit integer default 100)
    returns integer
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_lease record;
    v_mended integer := 0;
begin
    for v_lease in
        select lease.channel, lease.context, lease.worker
        from core.bell_leases as lease
        where lease.awake_until < clock_timestamp() - p_after
        order by lease.channel, lease.context, lease.worker
        limit p_limit
        for update skip locked
    loop
        if pg_try_advisory_xact_lock(core.bell_lock_key(v_lease.channel, v_lease.context)) then
            delete from core.bell_leases as lease
            where lease.channel = v_lease.channel
              and lease.context = v_lease.context
              and lease.worker = v_lease.worker;
            perform core.bell_ring(v_lease.channel);
            v_mended := v_mended + 1;
        end if;
    end loop;
    return v_mended;
end
$$;
alter function core.bell_mend(interval, integer) owner to spectral_owner;
revoke execute on function core.bell_mend(interval, integer) from public;
grant execute on function core.bell_mend(interval, integer) to spectral_worker;

-- Sets how publishers ring; answers whether that is a change. Works for every transaction that inserts from now on. A
-- reason is required: off costs every quiet worker its promptness, and whoever finds it has to know why.
create function core.bell_set(p_mode text, p_by text, p_reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_by text := left(coalesce(nullif(p_by, ''), session_user), 200);
    v_before text;
begin
    if p_mode is null or p_mode not in ('bell', 'always', 'off') then
        raise exception '% is no mode of the bell', coalesce(quote_literal(left(p_mode, 80)), 'null')
            using errcode = 'invalid_parameter_value', hint = 'It is one of: bell, always, off.';
    end if;
    if btrim(coalesce(p_reason, '')) = '' then
        raise exception 'the bell is not changed without a reason' using errcode = 'invalid_parameter_value';
    end if;
    select bell.mode into v_before from core.bell where bell.singleton for update;
    if v_before = p_mode then
        return false;
    end if;
    insert into core.bell as bell (mode, changed_by, reason)
    values (p_mode, v_by, left(p_reason, 2000))
    on conflict on constraint bell_pkey do update
    set mode = excluded.mode, changed_at = clock_timestamp(), changed_by = excluded.changed_by, reason = excluded.reason;
    insert into core.audit (action, actor, reason, affected, detail)
    values ('bell', v_by, left(p_reason, 2000), 0, jsonb_build_object('from', v_before, 'to', p_mode));
    return true;
end
$$;
alter function core.bell_set(text, text, text) owner to spectral_owner;
revoke execute on function core.bell_set(text, text, text) from public;
grant execute on function core.bell_set(text, text, text) to spectral_operator;
