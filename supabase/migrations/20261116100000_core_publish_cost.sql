-- What a publish costs: the functions that run for every row inserted, made cheaper. What they promise is unchanged.
--
-- Nearly every row breaks no rule and needs nothing completed. Preparing an expression takes longer than evaluating it,
-- and is done once for each transaction: so one expression says that a row is fine, and only what it does not pass is
-- looked at rule by rule. A bounded repetition ({0,62}) makes a regular expression ten times as slow as a length beside
-- an unbounded one.
-- The bell looks for a lease first. Whoever finds one need not ask for the mode, for leases are given and left standing
-- in mode bell alone.
-- A worker that is full takes its lease as soon as publishers are seen to wait for each other.
-- Locks: core.bell, against those who change the mode, for a moment.

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
    -- Whatever is not true here, null too, is looked at below. It may leave out what is rare; it must not let pass what
    -- a rule refuses.
    if (
        length(new.event_type) <= 200
        and new.event_type ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$'
        and new.event_version >= 1
        and length(new.source) <= 63
        and new.source ~ '^[a-z][a-z0-9_]*$'
        and (new.target is null or (length(new.target) <= 63 and new.target ~ '^[a-z][a-z0-9_]*$'))
        and (new.parent_id is null or (new.target is not null and new.parent_id <> new.id))
        and length(new.idempotency_key) between 1 and 255
        and new.generation >= 0
        and (
            new.trace_context is null
            or (
                new.trace_context like '0_-________________________________-________________-__'
                and new.trace_context ~ '^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$'
                and new.trace_context not like '%-0000000000000000%'
            )
        )
        and new.next_attempt_at >= new.created_at
        and least(new.occurred_at, new.created_at) >= '1900-01-01 00:00+00'
        and greatest(new.occurred_at, new.next_attempt_at) <= '9900-01-01 00:00+00'
        and jsonb_typeof(new.payload) = 'object'
        and octet_length(new.payload::text) <= 262144
        and (
            (pg_column_size(new.payload) < 512 and pg_column_compression(new.payload) is null)
            or not jsonb_path_exists(new.payload, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")')
        )
        and new.status = 'pending'
        and new.attempts = 0
        and new.claim_token is null
        and new.delivered_at is null
        and new.last_error is null
        and new.deleted_at is null
        and new.failure_history = '[]'
    ) is not true then
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
            when length(new.source) > 63 or new.source !~ '^[a-z][a-z0-9_]*$' then 'outbox_source_check'
            when length(new.target) > 63 or new.target !~ '^[a-z][a-z0-9_]*$' then 'outbox_target_check'
            when length(new.idempotency_key) not between 1 and 255 then 'outbox_idempotency_key_check'
            when new.parent_id is not null and (new.target is null or new.parent_id = new.id) then 'outbox_parent_check'
            when new.generation < 0 then 'outbox_generation_check'
            -- Times that every program can read back: a claim must never fail on one row's date. A century less than
            -- the last year of a Python datetime, for whatever the reader's time zone adds.
            when new.occurred_at not between '1900-01-01 00:00+00' and '9900-01-01 00:00+00'
                or new.next_attempt_at not between '1900-01-01 00:00+00' and '9900-01-01 00:00+00'
                then 'outbox_times_check'
            when jsonb_typeof(new.payload) <> 'object' then 'outbox_payload_object_check'
            when octet_length(new.payload::text) > 262144 then 'outbox_payload_size_check'
            -- The payload itself is level 1, so nothing that can hold more may stand 64 steps below it. Each level
            -- takes eight bytes at least, so a payload below 512 that is not compressed need not be walked.
            when (pg_column_size(new.payload) >= 512 or pg_column_compression(new.payload) is not null)
                and jsonb_path_exists(
                    new.payload, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")'
                )
                then 'outbox_payload_depth_check'
            -- What follows is never so as publishers write it: it comes from elsewhere, in any state that is one.
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
    -- A channel belongs to its row's generation, and fits the 63 bytes a channel name may have: 11 for the prefix, 19
    -- for the generation, 1 for the underscore, 32 for the class.
    if new.channel <> 'outbox_gen_' || new.generation then
        v_broken := coalesce(v_broken, case
            when new.channel <> 'outbox_default'
                and not (
                    starts_with(new.channel, 'outbox_gen_' || new.generation || '_')
                    and length(new.channel) <= length('outbox_gen_' || new.generation || '_') + 32
                    and substr(new.channel, length('outbox_gen_' || new.generation || '_') + 1) ~ '^[a-z][a-z0-9_]*$'
                )
                then 'outbox_channel_check'
        end);
    end if;
    if v_broken is not null then
        raise exception 'new row for relation "outbox" violates check constraint "%"', v_broken
            using errcode = 'check_violation', schema = 'core', table = 'outbox', constraint = v_broken;
    end if;
    return new;
end
$$;

-- Leases end with the mode that they are for, whoever changes it and by whatever path: publishers who find one look no
-- further. Locks: core.bell_leases, against workers about to renew theirs; they read the mode afterwards, and get none.
create function core.bell_end_leases() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from core.bell where bell.singleton and bell.mode = 'bell') then
        lock table core.bell_leases in share row exclusive mode;
        update core.bell_leases as lease
        set awake_until = clock_timestamp()
        where lease.awake_until > clock_timestamp();
    end if;
    return null;
end
$$;
alter function core.bell_end_leases() owner to spectral_owner;
revoke execute on function core.bell_end_leases() from public;

create trigger bell_end_leases after insert or update or delete or truncate on core.bell
    for each statement execute function core.bell_end_leases();

-- Whether the trigger has to ring for this row. One ring for each channel and context is enough for a transaction, and
-- who has stayed silent once may go on: the lock is held, so whoever was awake cannot have fallen asleep unseen. The
-- memory is a setting of the transaction: a savepoint that is rolled back takes it along, as it does the ring and the
-- lock. Every publish comes here: one function, one statement that reads a table, and as few expressions as can be.
-- Locks: the lock of silent publishers (core.bell_lock_key), shared, if it is to be had at once, until the end of the
-- transaction.
create or replace function core.outbox_bell_needed(p_channel text, p_target text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    v_context text;
    v_now timestamptz;
    v_silent boolean;
    v_mode text;
    v_known text;
begin
    if strpos(
        current_setting('spectral.bell_known', true), ' ' || p_channel || '/' || coalesce(p_target, '*') || ' '
    ) > 0 then
        return false;
    end if;
    v_context := coalesce(p_target, '*');
    -- A snapshot that was taken before the lock may show a lease that has been withdrawn since.
    if current_setting('transaction_isolation') = 'read committed'
        and pg_try_advisory_xact_lock_shared(hashtextextended('spectral.bell.' || p_channel || '/' || v_context, 0))
    then
        v_now := clock_timestamp();
        select true
        into v_silent
        from core.bell_leases as lease
        where lease.channel = p_channel
          and lease.context = v_context
          and lease.awake_until > v_now;
    end if;
    if v_silent is null then
        select bell.mode into v_mode from core.bell where bell.singleton;
        if v_mode is distinct from 'bell' and v_mode is distinct from 'off' then
            return true;
        end if;
        v_silent := v_mode = 'off';
    end if;
    v_known := set_config(
        'spectral.bell_known',
        concat(current_setting('spectral.bell_known', true), ' ', p_channel, '/', v_context, ' '),
        true
    );
    return not v_silent;
end
$$;

-- A worker that has no room for what it knows of needs no ringing either, for it looks again when it has. Renews its
-- leases as core.bell_awake does, if so many rows come in that publishers would hinder each other, 250 a second;
-- answers whether. Where a flush takes long, publishers who notify never come to so many: if some are seen to wait for
-- each other, or have been silent for it so far, 50 are enough. What it cannot take is for the others: they are woken
-- with every renewal.
create or replace function core.bell_hold(
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
    v_held boolean := exists (
        select
        from core.bell_leases as lease
        where lease.worker = p_worker
          and lease.channel = any (p_channels)
          and lease.context = any (p_contexts)
          and lease.awake_until > v_now
    );
    v_enough integer := case
        when v_held or exists (
            -- what NOTIFY locks: the databases, and none of them
            select
            from pg_locks as waiting
            where waiting.locktype = 'object'
              and waiting.classid = 'pg_database'::regclass
              and waiting.objid = 0
              and not waiting.granted
        ) then 10
        else 50
    end;
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
            offset v_enough - 1
            limit 1
        ) as last
    ) then
        return false;
    end if;
    perform core.bell_awake(p_worker, p_channels, p_contexts, p_event_types, p_for);
    -- Until now publishers have woken everybody; whoever notified along with its first lease would have to wait in line
    -- with them, and they for the lease.
    if v_held then
        for v_channel in select distinct given.channel from unnest(p_channels) as given (channel) loop
            perform core.bell_ring(v_channel);
        end loop;
    end if;
    return true;
end
$$;
