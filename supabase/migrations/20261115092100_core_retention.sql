-- Retention: what is over is put away first (deleted_at) and deleted after a grace. Never what is still to be
-- delivered, and never what failed and was not discarded. Ages are measured by the database's clock from when a row
-- ended.
--
-- A sweep walks a table block by block, reading each once: no index has to be kept for it on the way of every event.
-- One sweeper at a time, elected by a lease in the row below, which only these functions write.

create table core.sweeper (
    singleton        boolean     not null default true,
    name             text,
    renewed_at       timestamptz,
    started_at       timestamptz,
    -- what the sweep under way has done so far
    outbox_put_away  bigint      not null default 0,
    outbox_deleted   bigint      not null default 0,
    handled_put_away bigint      not null default 0,
    handled_deleted  bigint      not null default 0,
    finished_at      timestamptz,
    result           jsonb       not null default '{}', -- of the sweep that finished last

    constraint sweeper_pkey primary key (singleton),
    constraint sweeper_singleton_check check (singleton),
    constraint sweeper_name_check check (length(name) between 1 and 200),
    constraint sweeper_result_check check (jsonb_typeof(result) = 'object')
);
alter table core.sweeper owner to spectral_owner;
insert into core.sweeper default values;
grant select on core.sweeper to spectral_operator, spectral_retention, spectral_readonly;

-- Rows whose key is not their own id. The others are found by their id.
-- Locks: core.outbox, against writers, while it is built.
create index outbox_key_idx on core.outbox (idempotency_key) where idempotency_key <> id::text;

-- Whether any row with this key is left: then a handler's record of it has to stay, or the key would take effect again.
create function core.outbox_key_lives(p_key text) returns boolean
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
begin
    if exists (
        select from core.outbox
        where outbox.idempotency_key = p_key and outbox.idempotency_key <> outbox.id::text
    ) then
        return true;
    end if;
    return p_key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
        and exists (select from core.outbox where outbox.id = p_key::uuid and outbox.idempotency_key = p_key);
end
$$;
alter function core.outbox_key_lives(text) owner to spectral_owner;
revoke execute on function core.outbox_key_lives(text) from public;
-- for the trigger below, which runs as whoever deletes
grant execute on function core.outbox_key_lives(text) to spectral_retention;

-- A record of a living key is not deleted, however it is tried. The sweep asks for no such record, but an event may
-- have been published since it looked: then it goes on without.
create function core.event_handled_refuse_delete() returns trigger
    language plpgsql security invoker
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not core.outbox_key_lives(old.idempotency_key) then
        return old;
    elsif current_user = 'spectral_owner' then
        return null;
    end if;
    raise exception 'the record of % for a key of which there is still an event cannot be deleted', old.handler_name
        using errcode = 'object_not_in_prerequisite_state',
              table = 'event_handled', schema = 'core', constraint = tg_name,
              hint = 'Sweep the outbox first: spectral retention run.';
end
$$;
alter function core.event_handled_refuse_delete() owner to spectral_owner;
revoke execute on function core.event_handled_refuse_delete() from public;

-- Locks: core.event_handled, against writers, while it is created.
create trigger event_handled_outlives before delete on core.event_handled
    for each row execute function core.event_handled_refuse_delete();

-- One entry in core.audit for what a sweep has done, not one for each of its thousand steps: at its end, or when
-- another sweeper takes over from one that has gone.
create function core.sweep_record(p_complete boolean) returns void
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into core.audit (action, actor, affected, detail)
    select
        'sweep', sweeper.name, least(done.total, 2147483647)::integer,
        jsonb_build_object(
            'complete', p_complete,
            'outbox', jsonb_build_object('put_away', sweeper.outbox_put_away, 'deleted', sweeper.outbox_deleted),
            'event_handled',
            jsonb_build_object('put_away', sweeper.handled_put_away, 'deleted', sweeper.handled_deleted)
        )
    from core.sweeper
    cross join lateral (
        select
            sweeper.outbox_put_away + sweeper.outbox_deleted + sweeper.handled_put_away + sweeper.handled_deleted
                as total
    ) as done
    where sweeper.name is not null and done.total > 0
$$;
alter function core.sweep_record(boolean) owner to spectral_owner;
revoke execute on function core.sweep_record(boolean) from public;

-- Becomes the sweeper, or stays it: answers false while another one is at work. A sweeper that has not been heard of
-- for p_lease is taken for gone. Locks: the row of core.sweeper, behind the step that a sweeper at work is taking.
create function core.sweep_begin(p_sweeper text, p_lease interval default interval '2 minutes') returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
    v_renewed_at timestamptz;
begin
    if p_sweeper is null or length(p_sweeper) not between 1 and 200 or p_lease is null or p_lease < interval '0' then
        raise exception 'a sweeper has a name of at most 200 characters, and a lease that is not negative'
            using errcode = 'invalid_parameter_value';
    end if;
    select sweeper.name, sweeper.renewed_at into v_name, v_renewed_at from core.sweeper for update;
    if v_name <> p_sweeper then
        if v_renewed_at >= clock_timestamp() - p_lease then
            return false;
        end if;
        perform core.sweep_record(false);
    end if;
    if v_name is distinct from p_sweeper then
        update core.sweeper
        set name = p_sweeper, started_at = clock_timestamp(),
            outbox_put_away = 0, outbox_deleted = 0, handled_put_away = 0, handled_deleted = 0;
    end if;
    perform core.sweep_renew(p_sweeper);
    return true;
end
$$;
alter function core.sweep_begin(text, interval) owner to spectral_owner;
revoke execute on function core.sweep_begin(text, interval) from public;
grant execute on function core.sweep_begin(text, interval) to spectral_retention;

-- Renews the sweeper's lease, or fails: whoever was taken for gone must not go on.
create function core.sweep_renew(p_sweeper text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update core.sweeper set renewed_at = clock_timestamp() where sweeper.name = p_sweeper;
    if not found then
        raise exception '% is not the sweeper, or no longer', coalesce(quote_literal(left(p_sweeper, 200)), 'null')
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Become it by core.sweep_begin; see who is: select name, renewed_at from core.sweeper.';
    end if;
end
$$;
alter function core.sweep_renew(text) owner to spectral_owner;
revoke execute on function core.sweep_renew(text) from public;

create function core.require_sweep_range(
    p_from_block bigint, p_to_block bigint, p_active interval, p_grace interval, p_limit integer
) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if p_from_block is null or p_to_block is null or p_from_block < 0 or p_to_block not between 0 and 4294967295 then
        raise exception 'a sweep goes from one block of the table up to another'
            using errcode = 'invalid_parameter_value';
    end if;
    if p_active is null or p_grace is null or p_active < interval '0' or p_grace < interval '0'
        or p_limit is null or p_limit < 1
    then
        raise exception 'a sweep needs times that are not negative, and a limit of at least 1'
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
alter function core.require_sweep_range(bigint, bigint, interval, interval, integer) owner to spectral_owner;
revoke execute on function core.require_sweep_range(bigint, bigint, interval, interval, integer) from public;

-- Sweeps the outbox from one block up to another, at most p_limit rows of each step: delivered rows older than p_active
-- are put away, rows put away for longer than p_grace (discarded ones too) are deleted. Ask again while more is true. A
-- dry run only counts, all that there is in the range.
-- Locks: the row of core.sweeper; the rows, FOR UPDATE SKIP LOCKED, in the order in which they lie: what somebody works
-- on is swept the next time.
create function core.sweep_outbox(
    p_sweeper text,
    p_from_block bigint,
    p_to_block bigint,
    p_active interval,
    p_grace interval,
    p_limit integer default 5000,
    p_dry_run boolean default false
) returns table (put_away bigint, deleted bigint, more boolean)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    -- A plan made while the table had one page must not read all of it for every range when it has many.
    set enable_seqscan = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_from tid;
    v_to tid;
    v_over tid[];
    v_old tid[];
begin
    perform core.require_sweep_range(p_from_block, p_to_block, p_active, p_grace, p_limit);
    v_from := format('(%s,0)', p_from_block)::tid;
    v_to := format('(%s,0)', p_to_block)::tid;
    if p_dry_run is not false then
        return query
        select
            count(*) filter (where outbox.deleted_at is null),
            count(*) filter (where outbox.deleted_at is not null),
            false
        from core.outbox
        where outbox.ctid >= v_from and outbox.ctid < v_to
          and (
              (outbox.status = 'delivered' and outbox.deleted_at is null and outbox.delivered_at < v_now - p_active)
              or (outbox.status in ('delivered', 'failed') and outbox.deleted_at < v_now - p_grace)
          );
        return;
    end if;
    perform core.sweep_renew(p_sweeper);

    -- By where they lie: rows that are locked stay there.
    select coalesce(array_agg(gone.ctid), '{}') into v_over
    from (
        select outbox.ctid
        from core.outbox
        where outbox.ctid >= v_from and outbox.ctid < v_to
          and outbox.status in ('delivered', 'failed')
          and outbox.deleted_at < v_now - p_grace
        limit p_limit
        for update skip locked
    ) as gone;
    delete from core.outbox
    where outbox.ctid = any (v_over)
      and outbox.status in ('delivered', 'failed')
      and outbox.deleted_at < v_now - p_grace;

    select coalesce(array_agg(past.ctid), '{}') into v_old
    from (
        select outbox.ctid
        from core.outbox
        where outbox.ctid >= v_from and outbox.ctid < v_to
          and outbox.status = 'delivered'
          and outbox.deleted_at is null
          and outbox.delivered_at < v_now - p_active
        limit p_limit
        for update skip locked
    ) as past;
    update core.outbox
    set deleted_at = v_now
    where outbox.ctid = any (v_old)
      and outbox.status = 'delivered'
      and outbox.deleted_at is null;

    update core.sweeper
    set outbox_put_away = sweeper.outbox_put_away + cardinality(v_old),
        outbox_deleted = sweeper.outbox_deleted + cardinality(v_over);
    return query
    select
        cardinality(v_old)::bigint, cardinality(v_over)::bigint,
        cardinality(v_old) = p_limit or cardinality(v_over) = p_limit;
end
$$;
alter function core.sweep_outbox(text, bigint, bigint, interval, interval, integer, boolean) owner to spectral_owner;
revoke execute on function core.sweep_outbox(text, bigint, bigint, interval, interval, integer, boolean) from public;
grant execute on function core.sweep_outbox(text, bigint, bigint, interval, interval, integer, boolean)
    to spectral_retention;

-- The same for the dedup log: records older than p_active are put away, those put away for longer than p_grace are
-- deleted. A record stays as it is while any row of the outbox has its key, whatever its age.
-- Locks: as core.sweep_outbox, on core.event_handled.
create function core.sweep_handled(
    p_sweeper text,
    p_from_block bigint,
    p_to_block bigint,
    p_active interval,
    p_grace interval,
    p_limit integer default 5000,
    p_dry_run boolean default false
) returns table (put_away bigint, deleted bigint, more boolean)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_from tid;
    v_to tid;
    v_over tid[];
    v_old tid[];
    v_deleted bigint;
begin
    perform core.require_sweep_range(p_from_block, p_to_block, p_active, p_grace, p_limit);
    v_from := format('(%s,0)', p_from_block)::tid;
    v_to := format('(%s,0)', p_to_block)::tid;
    if p_dry_run is not false then
        return query
        select
            count(*) filter (where handled.deleted_at is null),
            count(*) filter (where handled.deleted_at is not null),
            false
        from core.event_handled as handled
        where handled.ctid >= v_from and handled.ctid < v_to
          and (
              (handled.deleted_at is null and handled.handled_at < v_now - p_active)
              or handled.deleted_at < v_now - p_grace
          )
          and not core.outbox_key_lives(handled.idempotency_key);
        return;
    end if;
    perform core.sweep_renew(p_sweeper);

    select coalesce(array_agg(gone.ctid), '{}') into v_over
    from (
        select handled.ctid
        from core.event_handled as handled
        where handled.ctid >= v_from and handled.ctid < v_to
          and handled.deleted_at < v_now - p_grace
          and not core.outbox_key_lives(handled.idempotency_key)
        limit p_limit
        for update skip locked
    ) as gone;
    delete from core.event_handled as handled
    where handled.ctid = any (v_over)
      and handled.deleted_at < v_now - p_grace;
    get diagnostics v_deleted = row_count;

    select coalesce(array_agg(past.ctid), '{}') into v_old
    from (
        select handled.ctid
        from core.event_handled as handled
        where handled.ctid >= v_from and handled.ctid < v_to
          and handled.deleted_at is null
          and handled.handled_at < v_now - p_active
          and not core.outbox_key_lives(handled.idempotency_key)
        limit p_limit
        for update skip locked
    ) as past;
    update core.event_handled as handled
    set deleted_at = v_now
    where handled.ctid = any (v_old)
      and handled.deleted_at is null;

    update core.sweeper
    set handled_put_away = sweeper.handled_put_away + cardinality(v_old),
        handled_deleted = sweeper.handled_deleted + v_deleted;
    return query
    select
        cardinality(v_old)::bigint, v_deleted, cardinality(v_old) = p_limit or cardinality(v_over) = p_limit;
end
$$;
alter function core.sweep_handled(text, bigint, bigint, interval, interval, integer, boolean) owner to spectral_owner;
revoke execute on function core.sweep_handled(text, bigint, bigint, interval, interval, integer, boolean) from public;
grant execute on function core.sweep_handled(text, bigint, bigint, interval, interval, integer, boolean)
    to spectral_retention;

-- Ends a sweep: the next one may begin. p_result is kept, and the time, for whoever asks when it last ran; what it has
-- done, if anything, is entered in core.audit. A sweep that stopped early says so: {"complete": false}.
create function core.sweep_finish(p_sweeper text, p_result jsonb default '{}') returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform core.sweep_renew(p_sweeper);
    perform core.sweep_record(p_result -> 'complete' is distinct from 'false'::jsonb);
    update core.sweeper
    set name = null, renewed_at = null, finished_at = clock_timestamp(), result = coalesce(p_result, '{}')
    where sweeper.name = p_sweeper;
end
$$;
alter function core.sweep_finish(text, jsonb) owner to spectral_owner;
revoke execute on function core.sweep_finish(text, jsonb) from public;
grant execute on function core.sweep_finish(text, jsonb) to spectral_retention;

comment on table core.sweeper is 'One row: who sweeps now, and how the last sweep ended.';
