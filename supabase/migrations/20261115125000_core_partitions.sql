-- Partitions: the outbox by the month in which a row was created, the dedup log by the hash of its key.
--
-- Nothing is partitioned by this file. `spectral partitions enable` takes the steps below on a living table: it builds
-- an empty partitioned table beside the one in use, and exchanges them in one short transaction, by which the table in
-- use becomes the first partition. No row is copied. Every other function of the schema names core.outbox and no
-- partition, and works the same on both layouts.
--
-- Whoever converts is a member of spectral_owner, for indexes have to be built outside of any function. The way back,
-- and what is to be done every day, are for operators and sweepers.
--
-- A row's id stays unique within each partition by an index of the partition's own; between months a trigger sees to it
-- (outbox_refuse_known). That a broadcast has one child for each context is kept by the lock on it and by its status.

-- Whoever changes the layout holds this lock, so that there is one at a time.
create function core.partitions_lock_key() returns bigint
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select hashtextextended('spectral.partitions', 0)
$$;
alter function core.partitions_lock_key() owner to spectral_owner;
revoke execute on function core.partitions_lock_key() from public;
grant execute on function core.partitions_lock_key() to spectral_operator, spectral_retention;

-- The leaves of a table: its partitions with their bounds; of a plain table, itself.
create function core.partition_leaves(p_table regclass) returns table (
    relation regclass, name text, kind text, lower_bound timestamptz, upper_bound timestamptz
)
    language sql stable
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    set datestyle = 'ISO'
as $$
    select
        leaf.oid::regclass, leaf.relname::text,
        case
            when root.relkind = 'r' then 'plain'
            when bound.expression = 'DEFAULT' then 'default'
            when bound.expression like 'FOR VALUES WITH%' then 'hash'
            when bound.expression like 'FOR VALUES FROM (MINVALUE)%' then 'before'
            else 'month'
        end,
        substring(bound.expression from 'FROM \(''([^'']+)''\)')::timestamptz,
        substring(bound.expression from 'TO \(''([^'']+)''\)')::timestamptz
    from pg_class as root
    left join pg_inherits as child on root.relkind = 'p' and child.inhparent = root.oid
    join pg_class as leaf on leaf.oid = coalesce(child.inhrelid, root.oid) and leaf.relkind = 'r'
    cross join lateral (select pg_get_expr(leaf.relpartbound, leaf.oid) as expression) as bound
    where root.oid = p_table
$$;
alter function core.partition_leaves(regclass) owner to spectral_owner;
revoke execute on function core.partition_leaves(regclass) from public;

-- The partitions of the outbox; none on the plain layout. Rows are estimated; of those that are not over, which keep a
-- partition from being dropped, 10,001 of each kind are counted at most. Locks nothing.
create function core.outbox_partitions() returns table (
    name text, kind text, lower_bound timestamptz, upper_bound timestamptz, estimated_rows bigint, bytes bigint,
    unfinished bigint, failed bigint
)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_leaf record;
begin
    for v_leaf in
        select leaf.*, greatest(class.reltuples, 0)::bigint as rows
        from core.partition_leaves('core.outbox') as leaf
        join pg_class as class on class.oid = leaf.relation
        where leaf.kind <> 'plain'
        order by leaf.kind = 'default', leaf.upper_bound
    loop
        name := v_leaf.name;
        kind := v_leaf.kind;
        lower_bound := v_leaf.lower_bound;
        upper_bound := v_leaf.upper_bound;
        estimated_rows := v_leaf.rows;
        bytes := pg_total_relation_size(v_leaf.relation);
        execute format(
            'select (select count(*) from ('
            '    (select from %1$s where status = ''pending'' and deleted_at is null limit 10001)'
            '    union all (select from %1$s where status = ''in_flight'' limit 10001)'
            ') as counted),'
            ' (select count(*) from ('
            '    select from %1$s where status = ''failed'' and deleted_at is null limit 10001'
            ') as counted)',
            v_leaf.relation
        ) into unfinished, failed;
        unfinished := least(unfinished, 10001);
        if kind = 'default' then
            -- Its rows are counted: whether there is one at all is what everybody wants to know.
            execute format('select count(*) from (select from %s limit 10001) as counted', v_leaf.relation)
            into estimated_rows;
        end if;
        return next;
    end loop;
end
$$;
alter function core.outbox_partitions() owner to spectral_owner;
revoke execute on function core.outbox_partitions() from public;
grant execute on function core.outbox_partitions()
    to spectral_worker, spectral_operator, spectral_retention, spectral_readonly;

-- How far a conversion is. bound_until: from then on the table in use takes no event any more, for it has promised so.
create function core.partitions_state() returns table (
    now timestamptz, partitioned boolean, dedup_partitioned boolean, prepared boolean, indexed boolean, bound boolean,
    boundary timestamptz, bound_until timestamptz, reversible boolean
)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    set datestyle = 'ISO'
as $$
declare
    v_leaf record;
    v_any boolean;
begin
    now := clock_timestamp();
    partitioned := exists (select from pg_class where oid = 'core.outbox'::regclass and relkind = 'p');
    dedup_partitioned := exists (select from pg_class where oid = 'core.event_handled'::regclass and relkind = 'p');
    -- one that was built for a table that has changed since, or was not finished, is none
    prepared := partitioned or coalesce(
        core.partition_shape('core.outbox') = core.partition_shape(to_regclass('core.outbox_partitioned')), false
    );
    indexed := partitioned or 2 = (
        select count(*) from pg_index as index
        where index.indexrelid in (to_regclass('core.outbox_before_pkey'), to_regclass('core.outbox_before_id_key'))
          and index.indrelid = 'core.outbox'::regclass and index.indisvalid
    );
    select constraint_.convalidated, substring(pg_get_constraintdef(constraint_.oid) from '''([^'']+)''')::timestamptz
    into bound, bound_until
    from pg_constraint as constraint_
    where constraint_.conrelid = 'core.outbox'::regclass and constraint_.conname = 'outbox_before_boundary';
    bound := partitioned or coalesce(bound, false);
    select min(leaf.lower_bound) into boundary
    from core.partition_leaves(
        case when partitioned then 'core.outbox' else to_regclass('core.outbox_partitioned') end
    ) as leaf
    where leaf.kind = 'month';
    reversible := to_regclass('core.outbox_partitioned') is not null or indexed or bound_until is not null;
    if partitioned then
        reversible := exists (select from core.partition_leaves('core.outbox') as leaf where leaf.kind = 'before');
        for v_leaf in
            select leaf.relation from core.partition_leaves('core.outbox') as leaf where leaf.kind <> 'before'
        loop
            execute format('select exists (select from %s)', v_leaf.relation) into v_any;
            reversible := reversible and not v_any;
        end loop;
    end if;
    return next;
end
$$;
alter function core.partitions_state() owner to spectral_owner;
revoke execute on function core.partitions_state() from public;
grant execute on function core.partitions_state()
    to spectral_worker, spectral_operator, spectral_retention, spectral_readonly;

-- An id that another partition has. Called only where that can be: an id that carries its own time (versions 7 and 8)
-- is as old as its row at most, so within its month the partition's own key is enough.
-- `insert ... on conflict do nothing`, as publishers send it, skips the row; every other insert is refused. The same id
-- is the same event, as it is for the key within a month.
create function core.outbox_refuse_known() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set jit = off
as $$
declare
    v_calls text;
    v_statement text;
begin
    if not exists (select from core.outbox where outbox.id = new.id and outbox.tableoid <> tg_relid) then
        return new;
    end if;
    get diagnostics v_calls = pg_context;
    -- A statement of the client's with thousands of rows in its text is read once, not for each of them.
    v_statement := case when strpos(v_calls, E'\n') = 0 then statement_timestamp()::text end;
    if v_statement = current_setting('spectral.ignoring_known', true) then
        return null;
    elsif core.outbox_ignores_known(v_calls, current_query()) then
        perform set_config('spectral.ignoring_known', coalesce(v_statement, ''), true);
        return null;
    end if;
    raise exception 'duplicate key value violates unique constraint "outbox_pkey"'
        using errcode = 'unique_violation', schema = 'core', table = 'outbox', constraint = 'outbox_pkey';
end
$$;
alter function core.outbox_refuse_known() owner to spectral_owner;
revoke execute on function core.outbox_refuse_known() from public;

-- Whether the insert that is being executed says `on conflict do nothing`: p_calls is the stack below the trigger,
-- p_query what the client sent. Of a function, its own statement is looked at; of several statements in one, nobody can
-- tell which it is. Literals and comments are left out: whatever a payload says, it decides nothing. In doubt it does
-- not, and the insert is refused.
create function core.outbox_ignores_known(p_calls text, p_query text) returns boolean
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        regexp_replace(
            case
                when strpos(p_calls, E'\n') = 0 then p_query
                else substring(p_calls from '^[^\n]*?\nSQL statement "(.*?)"\nPL/pgSQL function ')
            end,
            '\ye''([^''\\]|''''|\\.)*''|''([^'']|'''')*''|--[^\n]*|/\*([^*]|\*+[^*/])*\*+/'
            '|\$([a-z_][a-z0-9_]*)?\$[^$]*\$([a-z_][a-z0-9_]*)?\$',
            ' ', 'gi'
        ) ~* '^\s*insert\s+into\s+("core"|core)\.("outbox"|outbox)[\s(][^;]*'
            '\yon\s+conflict\s+do\s+nothing\y[^;]*;?\s*$',
        false
    )
$$;
alter function core.outbox_ignores_known(text, text) owner to spectral_owner;
revoke execute on function core.outbox_ignores_known(text, text) from public;

-- The lowest id that carries this time.
create function core.outbox_id_at(p_time timestamptz) returns uuid
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select (lpad(to_hex(floor(extract(epoch from p_time) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
alter function core.outbox_id_at(timestamptz) owner to spectral_owner;
revoke execute on function core.outbox_id_at(timestamptz) from public;

-- The settings of a table and of its toast table, as WITH takes them. Of a partitioned table: those of its newest leaf.
create function core.partition_storage(p_table regclass) returns text
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    with leaf as (
        select class.oid, class.reloptions, class.reltoastrelid
        from core.partition_leaves(p_table) as each
        join pg_class as class on class.oid = each.relation
        order by each.kind = 'default', each.upper_bound desc nulls last
        limit 1
    ),
    option as (
        select '' as prefix, unnest(leaf.reloptions) as setting from leaf
        union all
        select 'toast.', unnest(toast.reloptions) from leaf join pg_class as toast on toast.oid = leaf.reltoastrelid
    )
    select coalesce(
        'with (' || string_agg(option.prefix || split_part(option.setting, '=', 1) || ' = '
            || quote_literal(substr(option.setting, strpos(option.setting, '=') + 1)), ', ') || ')', '')
    from option
$$;
alter function core.partition_storage(regclass) owner to spectral_owner;
revoke execute on function core.partition_storage(regclass) from public;

-- A partition with everything that is its own: the keys that hold within it, the trigger for ids of other months. Built
-- beside and then attached. p_lower null: the default one.
-- Locks: the parent, against others who change its layout; the default partition, exclusively, for a moment.
create function core.outbox_partition_attach(
    p_parent regclass, p_name text, p_lower timestamptz, p_upper timestamptz, p_like regclass
) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    set lock_timeout = '300ms'
as $$
declare
    v_condition text := '';
begin
    execute format(
        'create table core.%I (like %s including all) %s', p_name, p_parent, core.partition_storage(p_like)
    );
    execute format('create unique index %I on core.%I (id)', p_name || '_id_key', p_name);
    execute format(
        'create unique index %I on core.%I (parent_id, target) where parent_id is not null',
        p_name || '_child_key', p_name
    );
    if p_lower is not null then
        v_condition := format(
            'when (new.id < %L or new.id >= %L or substr(new.id::text, 15, 1) not in (''7'', ''8''))',
            -- publishers' clocks: in the first hour of a month an id may carry a time of the month before
            core.outbox_id_at(p_lower + interval '1 hour'), core.outbox_id_at(p_upper)
        );
    end if;
    execute format(
        'create trigger outbox_known before insert on core.%I for each row %s'
        ' execute function core.outbox_refuse_known()',
        p_name, v_condition
    );
    execute format('alter table core.%I enable row level security', p_name);
    if p_lower is null then
        execute format('alter table %s attach partition core.%I default', p_parent, p_name);
    else
        execute format(
            'alter table %s attach partition core.%I for values from (%L) to (%L)', p_parent, p_name, p_lower, p_upper
        );
    end if;
end
$$;
alter function core.outbox_partition_attach(regclass, text, timestamptz, timestamptz, regclass) owner to spectral_owner;
revoke execute on function core.outbox_partition_attach(regclass, text, timestamptz, timestamptz, regclass) from public;

create function core.partition_month_name(p_month timestamptz) returns text
    language sql stable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select to_char(p_month at time zone 'UTC', '"y"YYYY"m"MM')
$$;
alter function core.partition_month_name(timestamptz) owner to spectral_owner;
revoke execute on function core.partition_month_name(timestamptz) from public;
grant execute on function core.partition_month_name(timestamptz) to spectral_operator, spectral_retention;

create function core.partition_month(p_time timestamptz, p_later integer default 0) returns timestamptz
    language sql stable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select (date_trunc('month', p_time at time zone 'UTC') + make_interval(months => p_later)) at time zone 'UTC'
$$;
alter function core.partition_month(timestamptz, integer) owner to spectral_owner;
revoke execute on function core.partition_month(timestamptz, integer) from public;
grant execute on function core.partition_month(timestamptz, integer) to spectral_operator, spectral_retention;

-- One row for each step that changed the layout.
create function core.partitions_record(p_step text, p_actor text, p_reason text, p_rows bigint, p_detail jsonb)
    returns void
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    insert into core.audit (action, actor, reason, affected, detail)
    values (
        'partitions', left(coalesce(nullif(p_actor, ''), session_user), 200), left(p_reason, 2000),
        least(p_rows, 2147483647)::integer, jsonb_build_object('step', p_step) || p_detail
    )
$$;
alter function core.partitions_record(text, text, text, bigint, jsonb) owner to spectral_owner;
revoke execute on function core.partitions_record(text, text, text, bigint, jsonb) from public;

-- One at a time; whoever comes second is told so at once. What is looked for under a lock must be what is there by
-- then: a transaction with the snapshot of its beginning would drop events that came while it waited.
create function core.partitions_begin() returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'partitions cannot be changed in a transaction that does not see what others have committed'
            using errcode = 'object_not_in_prerequisite_state', hint = 'Begin it with: isolation level read committed.';
    end if;
    if not pg_try_advisory_xact_lock(core.partitions_lock_key()) then
        raise exception 'somebody else is changing the partitions'
            using errcode = 'lock_not_available', hint = 'spectral partitions status';
    end if;
end
$$;
alter function core.partitions_begin() owner to spectral_owner;
revoke execute on function core.partitions_begin() from public;

-- Locks a table against everybody, in two steps: first it and the leaf against vacuum, which yields to whoever waits
-- for it for a second, and nobody else waits behind us; then the table, for a third of a second at most, behind whoever
-- is at work. A leaf is never locked exclusively before its table is: everybody else locks the table first.
create function core.partition_lock(p_table regclass, p_leaf regclass default null) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '5s'
as $$
begin
    if p_leaf is not null then
        execute format('lock table only %s in share update exclusive mode', p_leaf);
    end if;
    execute format('lock table only %s in share update exclusive mode', p_table);
    perform set_config('lock_timeout', '300ms', true);
    execute format('lock table only %s in access exclusive mode', p_table);
end
$$;
alter function core.partition_lock(regclass, regclass) owner to spectral_owner;
revoke execute on function core.partition_lock(regclass, regclass) from public;

-- What a table is, apart from its name and from the keys that differ by layout: columns, checks, triggers, policies,
-- indexes and grants. The exchange is made between two tables that have the same.
create function core.partition_shape(p_table regclass) returns text
    language sql stable
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
as $$
    select string_agg(fact.line, E'\n' order by fact.line)
    from (
        select format(
            'column %s %s %s %s %s', attname, atttypid::regtype, attnotnull, pg_get_expr(adbin, adrelid), (
                select array_agg(entry::text order by entry::text) from unnest(attacl) as entry
            )
        ) as line
        from pg_attribute
        left join pg_attrdef on adrelid = attrelid and adnum = attnum
        where attrelid = p_table and attnum > 0 and not attisdropped
        union all
        select format('check %s %s', conname, pg_get_constraintdef(oid))
        from pg_constraint
        where conrelid = p_table and contype = 'c' and conname <> 'outbox_before_boundary'
        union all
        select format('trigger %s %s', tgenabled, replace(pg_get_triggerdef(oid), ' ON ' || p_table || ' ', ' ON '))
        from pg_trigger
        where tgrelid = p_table and not tgisinternal and tgname <> 'outbox_known'
        union all
        select format(
            'policy %s %s %s %s %s %s', polname, polcmd, polpermissive, polroles::regrole[],
            pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid)
        )
        from pg_policy
        where polrelid = p_table
        union all
        select format('index %s', substring(pg_get_indexdef(indexrelid) from ' USING .*$'))
        from pg_index
        where indrelid = p_table and not indisunique and indisvalid
        union all
        select format('table %s %s %s', relrowsecurity, relforcerowsecurity, (
            select array_agg(entry::text order by entry::text)
            from unnest(coalesce(relacl, acldefault('r', relowner))) as entry
        ))
        from pg_class
        where oid = p_table
    ) as fact
$$;
alter function core.partition_shape(regclass) owner to spectral_owner;
revoke execute on function core.partition_shape(regclass) from public;

-- What the exchange cannot take along: foreign keys to the outbox, publications that name it, and views, rules and
-- functions that hold it by its identity and are not the schema's own views.
create function core.partitions_obstacles() returns setof text
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select format('foreign key %I on %s', conname, conrelid::regclass)
    from pg_constraint
    where confrelid = 'core.outbox'::regclass and contype = 'f'
    union all
    select format('publication %I', publication.pubname)
    from pg_publication_rel as named
    join pg_publication as publication on publication.oid = named.prpubid
    where named.prrelid = 'core.outbox'::regclass
    union all
    select distinct format(
        '%s %s', case class.relkind when 'm' then 'materialized view' else 'view' end, class.oid::regclass
    )
    from pg_depend as depend
    join pg_rewrite as rewrite on rewrite.oid = depend.objid
    join pg_class as class on class.oid = rewrite.ev_class
    where depend.classid = 'pg_rewrite'::regclass and depend.refobjid = 'core.outbox'::regclass
      and not (class.relkind = 'v' and class.relnamespace = 'core'::regnamespace)
    union all
    select distinct format('function %s', depend.objid::regprocedure)
    from pg_depend as depend
    where depend.classid = 'pg_proc'::regclass
      and depend.refobjid in (
          'core.outbox'::regclass, (select reltype from pg_class where oid = 'core.outbox'::regclass),
          (select typarray from pg_type where typrelid = 'core.outbox'::regclass)
      )
    union all
    select format('table %s, which inherits from it', inhrelid::regclass)
    from pg_inherits
    where inhparent = 'core.outbox'::regclass
      and exists (select from pg_class where oid = 'core.outbox'::regclass and relkind = 'r')
$$;
alter function core.partitions_obstacles() owner to spectral_owner;
revoke execute on function core.partitions_obstacles() from public;
grant execute on function core.partitions_obstacles() to spectral_operator;

-- Step 1: the empty partitioned table, its default partition and p_months months from p_boundary on, all beside the
-- table in use. What an earlier try has left is replaced. Grants are not copied: the caller does it.
-- Locks: nothing that anybody uses.
create function core.partitions_prepare(p_boundary timestamptz, p_months integer, p_actor text, p_reason text)
    returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
as $$
declare
    v_each record;
begin
    perform core.partitions_begin();
    if p_boundary is null or p_boundary <> core.partition_month(p_boundary) or p_boundary < clock_timestamp() then
        raise exception 'the boundary is the beginning of a month to come' using errcode = 'invalid_parameter_value';
    end if;
    drop table if exists core.outbox_partitioned;
    create table core.outbox_partitioned (
        like core.outbox including all excluding indexes excluding statistics
    ) partition by range (created_at);
    alter table core.outbox_partitioned drop constraint if exists outbox_before_boundary;
    alter table core.outbox_partitioned add constraint outbox_pkey_next primary key (id, created_at);
    for v_each in
        select class.relname::text as name, substring(pg_get_indexdef(indexrelid) from ' USING .*$') as definition
        from pg_index
        join pg_class as class on class.oid = indexrelid
        where indrelid = 'core.outbox'::regclass and not indisunique and indisvalid
        order by class.relname
    loop
        execute format('create index %I on core.outbox_partitioned', v_each.name || '_next') || v_each.definition;
    end loop;
    perform core.outbox_policies_copy('core.outbox', 'core.outbox_partitioned');
    perform core.outbox_triggers_copy('core.outbox', 'core.outbox_partitioned');
    perform core.outbox_partition_attach('core.outbox_partitioned', 'outbox_default', null, null, 'core.outbox');
    for v_each in
        select core.partition_month(p_boundary, later) as month, core.partition_month(p_boundary, later + 1) as next
        from generate_series(0, p_months - 1) as later
    loop
        perform core.outbox_partition_attach(
            'core.outbox_partitioned', 'outbox_' || core.partition_month_name(v_each.month), v_each.month, v_each.next,
            'core.outbox'
        );
    end loop;
    perform core.partitions_record('prepare', p_actor, p_reason, 0, jsonb_build_object('boundary', p_boundary));
end
$$;
alter function core.partitions_prepare(timestamptz, integer, text, text) owner to spectral_owner;
revoke execute on function core.partitions_prepare(timestamptz, integer, text, text) from public;

create function core.outbox_triggers_copy(p_from regclass, p_to regclass) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_definition text;
begin
    for v_definition in
        select replace(pg_get_triggerdef(oid), ' ON ' || p_from || ' ', ' ON ' || p_to || ' ')
        from pg_trigger
        where tgrelid = p_from and not tgisinternal and tgname <> 'outbox_known'
        order by tgname
    loop
        execute v_definition;
    end loop;
end
$$;
alter function core.outbox_triggers_copy(regclass, regclass) owner to spectral_owner;
revoke execute on function core.outbox_triggers_copy(regclass, regclass) from public;

create function core.outbox_policies_copy(p_from regclass, p_to regclass) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_policy record;
begin
    execute format('alter table %s enable row level security', p_to);
    execute format('alter table %s force row level security', p_to);
    for v_policy in
        select
            polname, polpermissive,
            pg_get_expr(polqual, polrelid) as using_, pg_get_expr(polwithcheck, polrelid) as check_,
            case polcmd
                when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete' else 'all'
            end as command,
            (
                select string_agg(case role when 0 then 'public' else role::regrole::text end, ', ')
                from unnest(polroles) as role
            ) as roles
        from pg_policy
        where polrelid = p_from
    loop
        execute format(
            'create policy %I on %s as %s for %s to %s', v_policy.polname, p_to,
            case when v_policy.polpermissive then 'permissive' else 'restrictive' end, v_policy.command, v_policy.roles
        ) || coalesce(' using (' || v_policy.using_ || ')', '')
            || coalesce(' with check (' || v_policy.check_ || ')', '');
    end loop;
end
$$;
alter function core.outbox_policies_copy(regclass, regclass) owner to spectral_owner;
revoke execute on function core.outbox_policies_copy(regclass, regclass) from public;

-- Step 3 (2 builds indexes, which no function can do without blocking writers): the table in use promises that nothing
-- in it is created from the boundary on. From that moment an event of the time after would be refused, so the boundary
-- is days away and the exchange follows at once; whoever gives up takes the promise back.
-- Locks: core.outbox, exclusively, for a moment.
create function core.partitions_bind() returns timestamptz
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
    set timezone = 'UTC'
as $$
declare
    v_state record;
begin
    perform core.partitions_begin();
    select * into v_state from core.partitions_state();
    if v_state.partitioned or not v_state.prepared or v_state.boundary < clock_timestamp() + interval '2 days' then
        raise exception 'no boundary to bind the outbox to, or it is too near'
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions enable';
    end if;
    perform core.partition_lock('core.outbox');
    alter table core.outbox drop constraint if exists outbox_before_boundary;
    execute format(
        'alter table core.outbox add constraint outbox_before_boundary check (created_at < %L) not valid',
        v_state.boundary
    );
    return v_state.boundary;
end
$$;
alter function core.partitions_bind() owner to spectral_owner;
revoke execute on function core.partitions_bind() from public;

-- Reads every row once, and blocks nobody.
create function core.partitions_validate() returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '5s'
as $$
begin
    perform core.partitions_begin();
    alter table core.outbox validate constraint outbox_before_boundary;
end
$$;
alter function core.partitions_validate() owner to spectral_owner;
revoke execute on function core.partitions_validate() from public;

-- Takes the promise back, unless the exchange was made; answers whether there was one.
-- Locks: core.outbox, exclusively, for a moment.
create function core.partitions_unbind() returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
as $$
begin
    if not exists (
        select from pg_constraint
        where conrelid = 'core.outbox'::regclass and conname = 'outbox_before_boundary'
    ) then
        return false;
    end if;
    perform core.partitions_begin();
    perform core.partition_lock('core.outbox');
    alter table core.outbox drop constraint if exists outbox_before_boundary;
    return true;
end
$$;
alter function core.partitions_unbind() owner to spectral_owner;
revoke execute on function core.partitions_unbind() from public;
grant execute on function core.partitions_unbind() to spectral_operator, spectral_retention;

-- Step 4, the exchange. Locks: core.outbox, exclusively, for as long as the catalog takes: some hundredths of a second.
create function core.partitions_switch(p_actor text, p_reason text) returns text
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
    set timezone = 'UTC'
as $$
declare
    v_state record;
    v_views jsonb;
    v_name text;
    v_obstacle text;
begin
    perform core.partitions_begin();
    perform core.partition_lock('core.outbox');
    select * into v_state from core.partitions_state();
    if v_state.partitioned or not (v_state.prepared and v_state.indexed and v_state.bound)
        or v_state.bound_until is distinct from v_state.boundary
    then
        raise exception 'the outbox is not ready to become a partition'
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions enable';
    end if;
    select string_agg(obstacle, ', ') into v_obstacle from core.partitions_obstacles() as obstacle;
    if v_obstacle is not null then
        raise exception 'the outbox cannot be exchanged while it is held by: %', left(v_obstacle, 500)
            using errcode = 'object_not_in_prerequisite_state', hint = 'Drop them, enable, and create them again.';
    end if;
    v_name := 'outbox_before_' || core.partition_month_name(v_state.boundary);
    v_views := core.outbox_views();
    perform core.partition_triggers_drop('core.outbox');
    alter table core.outbox drop constraint outbox_pkey;
    alter table core.outbox add constraint outbox_before_pkey primary key using index outbox_before_pkey;
    perform core.partition_indexes_rename('core.outbox', '^(outbox_(?!before_).*)$', '\1_before');
    execute format('alter table core.outbox rename to %I', v_name);
    alter table core.outbox_partitioned rename to outbox;
    perform core.partition_indexes_rename('core.outbox', '^(.*)_next$', '\1');
    execute format(
        'alter table core.outbox attach partition core.%I for values from (minvalue) to (%L)', v_name, v_state.boundary
    );
    execute format('alter table core.%I drop constraint outbox_before_boundary', v_name);
    perform core.outbox_views_point(v_views);
    perform core.partitions_record(
        'switch', p_actor, p_reason, 0, jsonb_build_object('boundary', v_state.boundary, 'before', v_name)
    );
    return v_name;
end
$$;
alter function core.partitions_switch(text, text) owner to spectral_owner;
revoke execute on function core.partitions_switch(text, text) from public;

-- The views of the schema that stand on the outbox, to be pointed at whatever has its name afterwards.
create function core.outbox_views() returns jsonb
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
        'name', class.relname, 'options', array_to_string(class.reloptions, ', '),
        'query', pg_get_viewdef(class.oid)
    )), '[]')
    from pg_class as class
    where class.relkind = 'v' and class.relnamespace = 'core'::regnamespace
      and exists (
          select from pg_depend as depend
          join pg_rewrite as rewrite on rewrite.oid = depend.objid and rewrite.ev_class = class.oid
          where depend.classid = 'pg_rewrite'::regclass and depend.refobjid = 'core.outbox'::regclass
      )
$$;
alter function core.outbox_views() owner to spectral_owner;
revoke execute on function core.outbox_views() from public;

create function core.outbox_views_point(p_views jsonb) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_view record;
begin
    for v_view in select * from jsonb_to_recordset(p_views) as view (name text, options text, query text) loop
        execute format(
            'create or replace view core.%I %s as ', v_view.name, coalesce('with (' || v_view.options || ')', '')
        ) || v_view.query;
    end loop;
end
$$;
alter function core.outbox_views_point(jsonb) owner to spectral_owner;
revoke execute on function core.outbox_views_point(jsonb) from public;

create function core.partition_triggers_drop(p_table regclass) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    for v_name in select tgname from pg_trigger where tgrelid = p_table and not tgisinternal loop
        execute format('drop trigger %I on %s', v_name, p_table);
    end loop;
end
$$;
alter function core.partition_triggers_drop(regclass) owner to spectral_owner;
revoke execute on function core.partition_triggers_drop(regclass) from public;

create function core.partition_indexes_rename(p_table regclass, p_pattern text, p_name text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    for v_name in
        select class.relname
        from pg_index
        join pg_class as class on class.oid = indexrelid
        where indrelid = p_table and class.relname ~ p_pattern
    loop
        execute format('alter index core.%I rename to %I', v_name, regexp_replace(v_name, p_pattern, p_name));
    end loop;
end
$$;
alter function core.partition_indexes_rename(regclass, text, text) owner to spectral_owner;
revoke execute on function core.partition_indexes_rename(regclass, text, text) from public;

-- The way back, from wherever the conversion is: what was built beside is dropped, and after the exchange, as long as
-- no row is in another partition, the table from before is what it was. Answers whether there was anything to take
-- back.
-- Locks: core.outbox, exclusively, for a moment.
create function core.partitions_undo(p_actor text, p_reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
    set timezone = 'UTC'
as $$
declare
    v_state record;
begin
    perform core.partitions_begin();
    perform core.partition_lock('core.outbox');
    select * into v_state from core.partitions_state();
    if v_state.partitioned then
        if not v_state.reversible then
            raise exception 'events have been written to partitions of their own: there is no way back'
                using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions status';
        end if;
        perform core.outbox_exchange_back();
    end if;
    drop table if exists core.outbox_partitioned;
    alter table core.outbox drop constraint if exists outbox_before_boundary;
    drop index if exists core.outbox_before_pkey, core.outbox_before_id_key;
    if v_state.reversible then
        perform core.partitions_record(
            'undo', p_actor, p_reason, 0, jsonb_build_object('exchanged', v_state.partitioned)
        );
        return true;
    end if;
    return false;
end
$$;
alter function core.partitions_undo(text, text) owner to spectral_owner;
revoke execute on function core.partitions_undo(text, text) from public;
grant execute on function core.partitions_undo(text, text) to spectral_operator;

create function core.outbox_exchange_back() returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
as $$
declare
    v_views jsonb := core.outbox_views();
    v_before regclass := (
        select leaf.relation from core.partition_leaves('core.outbox') as leaf where leaf.kind = 'before'
    );
begin
    if core.partition_shape('core.outbox') <> core.partition_shape(v_before) then
        raise exception 'the outbox was changed since it was partitioned: there is no way back'
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions status';
    end if;
    execute format('alter table core.outbox detach partition %s', v_before);
    alter table core.outbox rename to outbox_partitioned;
    perform core.partition_indexes_rename('core.outbox_partitioned', '^(.*)$', '\1_next');
    execute format('alter table %s drop constraint outbox_before_pkey', v_before);
    perform core.partition_indexes_rename(v_before, '^(.*)_before$', '\1');
    execute format('alter table %s rename to outbox', v_before);
    alter table core.outbox add constraint outbox_pkey primary key using index outbox_before_id_key;
    perform core.partition_triggers_drop('core.outbox');
    perform core.outbox_triggers_copy('core.outbox_partitioned', 'core.outbox');
    perform core.outbox_views_point(v_views);
end
$$;
alter function core.outbox_exchange_back() owner to spectral_owner;
revoke execute on function core.outbox_exchange_back() from public;

-- The months from this one on that have no partition yet, p_months of them after it at most.
create function core.partitions_missing(p_months integer) returns setof timestamptz
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select core.partition_month(clock_timestamp(), later)
    from generate_series(0, least(p_months, 24)) as later
    where exists (select from pg_class where oid = 'core.outbox'::regclass and relkind = 'p')
      and not exists (
          select from core.partition_leaves('core.outbox') as leaf
          where leaf.upper_bound > core.partition_month(clock_timestamp(), later)
            and coalesce(leaf.lower_bound <= core.partition_month(clock_timestamp(), later), true)
      )
    order by later
$$;
alter function core.partitions_missing(integer) owner to spectral_owner;
revoke execute on function core.partitions_missing(integer) from public;
grant execute on function core.partitions_missing(integer) to spectral_operator, spectral_retention;

-- The partition of one month; answers its name, null if there is one already.
-- Locks: the default partition, exclusively, for a moment: it must have no row of that month, and all of it is read to
-- see that. So if it is large, no month is created until it was mended or swept; events of that month go there
-- meanwhile.
create function core.partition_create(p_month timestamptz, p_actor text) returns text
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := 'outbox_' || core.partition_month_name(p_month);
begin
    perform core.partitions_begin();
    if p_month is null or not exists (select from core.partitions_missing(24) as month where month = p_month) then
        return null;
    end if;
    if pg_relation_size('core.outbox_default') > 128 * 1024 * 1024 then
        raise exception 'core.outbox_default is too large to be read under a lock'
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions status';
    end if;
    perform core.outbox_partition_attach(
        'core.outbox', v_name, p_month, core.partition_month(p_month, 1), 'core.outbox'
    );
    perform core.partitions_record('create', p_actor, null, 0, jsonb_build_object('partition', v_name));
    return v_name;
end
$$;
alter function core.partition_create(timestamptz, text) owner to spectral_owner;
revoke execute on function core.partition_create(timestamptz, text) from public;
grant execute on function core.partition_create(timestamptz, text) to spectral_operator, spectral_retention;

create function core.partition_named(p_name text) returns regclass
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_leaf regclass := (
        select leaf.relation from core.partition_leaves('core.outbox') as leaf
        where leaf.name = p_name and leaf.kind in ('month', 'before')
    );
begin
    if v_leaf is null then
        raise exception 'core.outbox has no partition % that could be dropped',
            coalesce(quote_literal(left(p_name, 63)), 'null')
            using errcode = 'no_data_found', hint = 'spectral partitions status';
    end if;
    return v_leaf;
end
$$;
alter function core.partition_named(text) owner to spectral_owner;
revoke execute on function core.partition_named(text) from public;

-- Looks at every row of a partition: how many there are, and whether all of them have been put away for longer than the
-- grace. A partition whose time is not over has not to be asked about.
create function core.partition_over(p_name text, p_grace interval) returns table (rows bigint, over boolean)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if p_grace is null or p_grace < interval '0' then
        raise exception 'a grace is not negative' using errcode = 'invalid_parameter_value';
    end if;
    return query execute format(
        'select count(*), coalesce(bool_and('
        '    status in (''delivered'', ''failed'') and deleted_at is not null'
        '    and deleted_at < statement_timestamp() - %L::interval'
        '), true) from %s',
        p_grace, core.partition_named(p_name)
    );
end
$$;
alter function core.partition_over(text, interval) owner to spectral_owner;
revoke execute on function core.partition_over(text, interval) from public;
grant execute on function core.partition_over(text, interval) to spectral_operator, spectral_retention;

-- Drops a partition whose time is over (its end, p_active and p_grace ago), if core.partition_over says so; answers how
-- many rows that were, null if it may not be dropped. What can have changed since each row was looked at, a discard
-- taken back or an event of that month published only now, is looked for once more under the lock, in the indexes; and
-- in the audit what was replayed and delivered since.
-- Locks: core.outbox, exclusively, for a moment.
create function core.partition_drop(p_name text, p_active interval, p_grace interval, p_actor text) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
    set enable_seqscan = off
    set jit = off
as $$
declare
    v_leaf record;
    v_rows bigint;
    v_over boolean;
    v_left boolean;
    -- a replay is written down by the transaction that makes it, which may have begun before we look
    v_audited bigint := (
        select entry.id from core.audit as entry
        where entry.action = 'replay' and entry.recorded_at < clock_timestamp() - interval '10 minutes'
        order by entry.id desc
        limit 1
    );
    v_replayed uuid[];
begin
    perform core.partitions_begin();
    if p_active < interval '0' then
        raise exception 'nothing is over before its end' using errcode = 'invalid_parameter_value';
    end if;
    perform core.partition_named(p_name);
    select * into v_leaf from core.partition_leaves('core.outbox') as leaf where leaf.name = p_name;
    if p_active is null or p_grace is null or v_leaf.upper_bound > clock_timestamp() - p_active - p_grace then
        return null;
    end if;
    select looked.rows, looked.over into v_rows, v_over from core.partition_over(p_name, p_grace) as looked;
    if not v_over then
        return null;
    end if;
    perform core.partition_lock('core.outbox', v_leaf.relation);
    select array_agg(event.id) into v_replayed
    from (
        select unnest(entry.event_ids) as id
        from core.audit as entry
        where entry.action = 'replay' and entry.id > coalesce(v_audited, 0)
        limit 10001
    ) as event;
    execute format(
        'select exists (select from %1$s where status = ''pending'' and deleted_at is null)'
        ' or exists (select from %1$s where status = ''in_flight'')'
        ' or exists (select from %1$s where status = ''failed'' and deleted_at is null)'
        ' or exists (select from %1$s where id = any ($1) and deleted_at is null)',
        v_leaf.relation
    ) into v_left using v_replayed;
    if v_left or cardinality(v_replayed) > 10000 then
        return null;
    end if;
    execute format('drop table %s', v_leaf.relation);
    perform core.partitions_record('drop', p_actor, null, v_rows, jsonb_build_object('partition', p_name));
    return v_rows;
end
$$;
alter function core.partition_drop(text, interval, interval, text) owner to spectral_owner;
revoke execute on function core.partition_drop(text, interval, interval, text) from public;
grant execute on function core.partition_drop(text, interval, interval, text) to spectral_operator, spectral_retention;

-- Rows that no month was there for lie in the default partition, and keep their month from being created. If they are
-- of the time after the last month, the default partition itself becomes that time's partition, as the outbox did: it
-- promises its bounds (mend_bind), every row is checked (mend_validate), it is attached anew and an empty default one
-- takes its place (mend). Rows of any other time stay where they are: they are found, delivered and swept there.
-- Answers where the partition will end; null if there is nothing that can be mended.
-- Locks: the default partition, exclusively, for a moment.
create function core.partitions_mend_bind() returns timestamptz
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
    set timezone = 'UTC'
as $$
declare
    v_from timestamptz;
    v_to timestamptz := core.partition_month(clock_timestamp() + interval '7 days', 1);
    v_mendable boolean;
begin
    perform core.partitions_begin();
    select max(leaf.upper_bound) into v_from from core.partition_leaves('core.outbox') as leaf;
    if v_from is null or v_from >= v_to then
        return null;
    end if;
    select count(*) > 0 and min(lost.created_at) >= v_from and max(lost.created_at) < v_to
    into v_mendable
    from core.outbox_default as lost;
    if not v_mendable then
        return null;
    end if;
    perform core.partition_lock('core.outbox_default');
    alter table core.outbox_default drop constraint if exists outbox_default_bounds;
    execute format(
        'alter table core.outbox_default add constraint outbox_default_bounds'
        ' check (created_at >= %L and created_at < %L) not valid',
        v_from, v_to
    );
    return v_to;
end
$$;
alter function core.partitions_mend_bind() owner to spectral_owner;
revoke execute on function core.partitions_mend_bind() from public;
grant execute on function core.partitions_mend_bind() to spectral_operator, spectral_retention;

create function core.partitions_mend_validate() returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '5s'
as $$
begin
    perform core.partitions_begin();
    if not exists (
        select from pg_constraint
        where conrelid = 'core.outbox_default'::regclass and conname = 'outbox_default_bounds'
    ) then
        raise exception 'the default partition has promised nothing'
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions maintain';
    end if;
    alter table core.outbox_default validate constraint outbox_default_bounds;
end
$$;
alter function core.partitions_mend_validate() owner to spectral_owner;
revoke execute on function core.partitions_mend_validate() from public;
grant execute on function core.partitions_mend_validate() to spectral_operator, spectral_retention;

-- Takes those bounds back, if somebody gave up after promising them. Locks: as above.
create function core.partitions_mend_unbind() returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
as $$
begin
    if exists (
        select from pg_constraint
        where conrelid = to_regclass('core.outbox_default') and conname = 'outbox_default_bounds'
    ) then
        perform core.partitions_begin();
        perform core.partition_lock('core.outbox_default');
        alter table core.outbox_default drop constraint if exists outbox_default_bounds;
    end if;
end
$$;
alter function core.partitions_mend_unbind() owner to spectral_owner;
revoke execute on function core.partitions_mend_unbind() from public;
grant execute on function core.partitions_mend_unbind() to spectral_operator, spectral_retention;

-- Locks: core.outbox, exclusively, for a moment.
create function core.partitions_mend(p_actor text) returns text
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
    set timezone = 'UTC'
as $$
declare
    v_from timestamptz;
    v_to timestamptz;
    v_name text;
begin
    perform core.partitions_begin();
    perform core.partition_lock('core.outbox', 'core.outbox_default');
    select max(leaf.upper_bound) into v_from from core.partition_leaves('core.outbox') as leaf;
    select substring(pg_get_constraintdef(oid) from '<[^=''][^'']*''([^'']+)''')::timestamptz into v_to
    from pg_constraint
    where conrelid = 'core.outbox_default'::regclass and conname = 'outbox_default_bounds' and convalidated;
    if v_to is null or v_to <= v_from then
        raise exception 'the default partition is not ready to become another'
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions maintain';
    end if;
    v_name := 'outbox_' || core.partition_month_name(v_from)
        || case when v_to > core.partition_month(v_from, 1) then '_to_' || core.partition_month_name(v_to) else '' end;
    alter table core.outbox detach partition core.outbox_default;
    execute format('alter table core.outbox_default rename to %I', v_name);
    perform core.partition_indexes_rename(
        format('core.%I', v_name)::regclass, '^outbox_default_(id_key|child_key)$', v_name || '_\1'
    );
    execute format(
        'alter table core.outbox attach partition core.%I for values from (%L) to (%L)', v_name, v_from, v_to
    );
    execute format('alter table core.%I drop constraint outbox_default_bounds', v_name);
    perform core.outbox_partition_attach(
        'core.outbox', 'outbox_default', null, null, format('core.%I', v_name)::regclass
    );
    perform core.partitions_record('mend', p_actor, null, 0, jsonb_build_object('partition', v_name));
    return v_name;
end
$$;
alter function core.partitions_mend(text) owner to spectral_owner;
revoke execute on function core.partitions_mend(text) from public;
grant execute on function core.partitions_mend(text) to spectral_operator, spectral_retention;

-- What a sweep walks over: the table, or each of its partitions, with the number of its blocks. ending: its first rows
-- have been kept for p_keep by now; a month that is ending is soon dropped as a whole, so nothing in it is deleted.
create function core.sweep_leaves(p_table text, p_keep interval) returns table (
    name text, kind text, blocks bigint, ending boolean
)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select
        leaf.name, leaf.kind, pg_relation_size(leaf.relation) / current_setting('block_size')::bigint,
        coalesce(leaf.kind = 'month' and leaf.lower_bound < clock_timestamp() - p_keep, false)
    from core.partition_leaves(
        case p_table when 'outbox' then 'core.outbox' when 'event_handled' then 'core.event_handled' end
    ) as leaf
    order by leaf.kind = 'default', leaf.upper_bound, leaf.name
$$;
alter function core.sweep_leaves(text, interval) owner to spectral_owner;
revoke execute on function core.sweep_leaves(text, interval) from public;
grant execute on function core.sweep_leaves(text, interval) to spectral_retention, spectral_operator;

-- The leaf of that name, locked against being dropped: somebody may be about to, and is waited for.
create function core.sweep_leaf(p_table regclass, p_leaf text) returns regclass
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_leaf regclass := (select leaf.relation from core.partition_leaves(p_table) as leaf where leaf.name = p_leaf);
begin
    if v_leaf is not null then
        begin
            execute format('lock table only core.%I in access share mode', p_leaf);
        exception
            when undefined_table then
                v_leaf := null;
        end;
    end if;
    if v_leaf is null then
        raise exception '% has no part %', p_table, coalesce(quote_literal(left(p_leaf, 63)), 'null')
            using errcode = 'no_data_found';
    end if;
    return v_leaf;
end
$$;
alter function core.sweep_leaf(regclass, text) owner to spectral_owner;
revoke execute on function core.sweep_leaf(regclass, text) from public;

-- As core.sweep_outbox was, of one leaf: where a row lies is a place in its leaf.
-- Locks: the row of core.sweeper; the rows, FOR UPDATE SKIP LOCKED, in the order in which they lie: what somebody works
-- on is swept the next time.
create function core.sweep_outbox_leaf(
    p_sweeper text,
    p_leaf text,
    p_from_block bigint,
    p_to_block bigint,
    p_active interval,
    p_grace interval,
    p_limit integer default 5000,
    p_dry_run boolean default false
) returns table (put_away bigint, deleted bigint, more boolean)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    -- The planner of a small table would read all of it for every range.
    set enable_seqscan = off
    set jit = off
as $$
declare
    v_leaf regclass := core.sweep_leaf('core.outbox', p_leaf);
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
        return query execute format(
            'select count(*) filter (where deleted_at is null), count(*) filter (where deleted_at is not null), false'
            ' from %s where ctid >= $1 and ctid < $2 and ('
            '    (status = ''delivered'' and deleted_at is null and delivered_at < $3)'
            '    or (status in (''delivered'', ''failed'') and deleted_at < $4)'
            ')',
            v_leaf
        ) using v_from, v_to, v_now - p_active, v_now - p_grace;
        return;
    end if;
    perform core.sweep_renew(p_sweeper);

    -- By where they lie: rows that are locked stay there.
    execute format(
        'select coalesce(array_agg(gone.ctid), ''{}'') from ('
        '    select ctid from %s where ctid >= $1 and ctid < $2'
        '    and status in (''delivered'', ''failed'') and deleted_at < $3 limit $4 for update skip locked'
        ') as gone',
        v_leaf
    ) into v_over using v_from, v_to, v_now - p_grace, p_limit;
    execute format(
        'delete from %s where ctid = any ($1) and status in (''delivered'', ''failed'') and deleted_at < $2', v_leaf
    ) using v_over, v_now - p_grace;
    execute format(
        'select coalesce(array_agg(past.ctid), ''{}'') from ('
        '    select ctid from %s where ctid >= $1 and ctid < $2'
        '    and status = ''delivered'' and deleted_at is null and delivered_at < $3 limit $4 for update skip locked'
        ') as past',
        v_leaf
    ) into v_old using v_from, v_to, v_now - p_active, p_limit;
    execute format(
        'update %s set deleted_at = $1 where ctid = any ($2) and status = ''delivered'' and deleted_at is null', v_leaf
    ) using v_now, v_old;

    update core.sweeper
    set outbox_put_away = sweeper.outbox_put_away + cardinality(v_old),
        outbox_deleted = sweeper.outbox_deleted + cardinality(v_over);
    return query
    select
        cardinality(v_old)::bigint, cardinality(v_over)::bigint,
        cardinality(v_old) = p_limit or cardinality(v_over) = p_limit;
end
$$;
alter function core.sweep_outbox_leaf(text, text, bigint, bigint, interval, interval, integer, boolean)
    owner to spectral_owner;
revoke execute on function core.sweep_outbox_leaf(text, text, bigint, bigint, interval, interval, integer, boolean)
    from public;
grant execute on function core.sweep_outbox_leaf(text, text, bigint, bigint, interval, interval, integer, boolean)
    to spectral_retention;

-- The same of one leaf of the dedup log. A record stays as it is while any row of the outbox has its key.
create function core.sweep_handled_leaf(
    p_sweeper text,
    p_leaf text,
    p_from_block bigint,
    p_to_block bigint,
    p_active interval,
    p_grace interval,
    p_limit integer default 5000,
    p_dry_run boolean default false
) returns table (put_away bigint, deleted bigint, more boolean)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set jit = off
as $$
declare
    v_leaf regclass := core.sweep_leaf('core.event_handled', p_leaf);
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
        return query execute format(
            'select count(*) filter (where deleted_at is null), count(*) filter (where deleted_at is not null), false'
            ' from %s where ctid >= $1 and ctid < $2'
            ' and ((deleted_at is null and handled_at < $3) or deleted_at < $4)'
            ' and not core.outbox_key_lives(idempotency_key)',
            v_leaf
        ) using v_from, v_to, v_now - p_active, v_now - p_grace;
        return;
    end if;
    perform core.sweep_renew(p_sweeper);

    execute format(
        'select coalesce(array_agg(gone.ctid), ''{}'') from ('
        '    select ctid from %s where ctid >= $1 and ctid < $2'
        '    and deleted_at < $3 and not core.outbox_key_lives(idempotency_key) limit $4 for update skip locked'
        ') as gone',
        v_leaf
    ) into v_over using v_from, v_to, v_now - p_grace, p_limit;
    execute format('delete from %s where ctid = any ($1) and deleted_at < $2', v_leaf) using v_over, v_now - p_grace;
    get diagnostics v_deleted = row_count;
    execute format(
        'select coalesce(array_agg(past.ctid), ''{}'') from ('
        '    select ctid from %s where ctid >= $1 and ctid < $2 and deleted_at is null and handled_at < $3'
        '    and not core.outbox_key_lives(idempotency_key) limit $4 for update skip locked'
        ') as past',
        v_leaf
    ) into v_old using v_from, v_to, v_now - p_active, p_limit;
    execute format(
        'update %s set deleted_at = $1 where ctid = any ($2) and deleted_at is null', v_leaf
    ) using v_now, v_old;

    update core.sweeper
    set handled_put_away = sweeper.handled_put_away + cardinality(v_old),
        handled_deleted = sweeper.handled_deleted + v_deleted;
    return query
    select
        cardinality(v_old)::bigint, v_deleted, cardinality(v_old) = p_limit or cardinality(v_over) = p_limit;
end
$$;
alter function core.sweep_handled_leaf(text, text, bigint, bigint, interval, interval, integer, boolean)
    owner to spectral_owner;
revoke execute on function core.sweep_handled_leaf(text, text, bigint, bigint, interval, interval, integer, boolean)
    from public;
grant execute on function core.sweep_handled_leaf(text, text, bigint, bigint, interval, interval, integer, boolean)
    to spectral_retention;

-- For sweepers of the release before, which know of no leaves: the same range of each of them.
create or replace function core.sweep_outbox(
    p_sweeper text,
    p_from_block bigint,
    p_to_block bigint,
    p_active interval,
    p_grace interval,
    p_limit integer default 5000,
    p_dry_run boolean default false
) returns table (put_away bigint, deleted bigint, more boolean)
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    select sum(swept.put_away)::bigint, sum(swept.deleted)::bigint, bool_or(swept.more)
    from core.partition_leaves('core.outbox') as leaf
    cross join lateral core.sweep_outbox_leaf(
        p_sweeper, leaf.name, p_from_block, p_to_block, p_active, p_grace, p_limit, p_dry_run
    ) as swept
$$;

create or replace function core.sweep_handled(
    p_sweeper text,
    p_from_block bigint,
    p_to_block bigint,
    p_active interval,
    p_grace interval,
    p_limit integer default 5000,
    p_dry_run boolean default false
) returns table (put_away bigint, deleted bigint, more boolean)
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    select sum(swept.put_away)::bigint, sum(swept.deleted)::bigint, bool_or(swept.more)
    from core.partition_leaves('core.event_handled') as leaf
    cross join lateral core.sweep_handled_leaf(
        p_sweeper, leaf.name, p_from_block, p_to_block, p_active, p_grace, p_limit, p_dry_run
    ) as swept
$$;

-- The dedup log by hash. Its rows are copied, so it takes as long as there are rows; while they are, a trigger writes
-- every change to both, and the key of the table in use stays the gate. The exchange is made when none is missing.
create function core.partitions_dedup_mirror() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'INSERT' then
        insert into core.event_handled_hashed select new.* on conflict do nothing;
    elsif tg_op = 'UPDATE' then
        -- one that was not copied yet may have moved behind whoever copies
        insert into core.event_handled_hashed select new.*
        on conflict (handler_name, idempotency_key) do update set deleted_at = excluded.deleted_at;
    else
        delete from core.event_handled_hashed as twin
        where twin.handler_name = old.handler_name and twin.idempotency_key = old.idempotency_key;
    end if;
    return null;
end
$$;
alter function core.partitions_dedup_mirror() owner to spectral_owner;
revoke execute on function core.partitions_dedup_mirror() from public;

-- Whether the twin is what the table is by now, apart from the triggers, which it gets with the exchange.
create function core.partitions_dedup_alike() returns boolean
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select count(distinct side.facts) = 1
    from (
        select string_agg(fact.line, E'\n' order by fact.line) as facts
        from (values ('core.event_handled'), ('core.event_handled_hashed')) as kept (name)
        cross join lateral regexp_split_to_table(core.partition_shape(kept.name::regclass), E'\n') as fact (line)
        where fact.line not like 'trigger %'
        group by kept.name
    ) as side
$$;
alter function core.partitions_dedup_alike() owner to spectral_owner;
revoke execute on function core.partitions_dedup_alike() from public;

-- The twin and the trigger; a twin of a table that has changed since is replaced. Answers how many blocks there are to
-- copy; null if it is done already.
-- Locks: core.event_handled, exclusively, for a moment.
create function core.partitions_dedup_prepare(p_actor text, p_reason text) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
as $$
begin
    perform core.partitions_begin();
    if exists (select from pg_class where oid = 'core.event_handled'::regclass and relkind = 'p') then
        return null;
    end if;
    if to_regclass('core.event_handled_hashed') is not null and not core.partitions_dedup_alike() then
        perform core.partition_lock('core.event_handled');
        drop trigger if exists event_handled_mirror on core.event_handled;
        drop table core.event_handled_hashed;
    end if;
    if to_regclass('core.event_handled_hashed') is null then
        create table core.event_handled_hashed (
            like core.event_handled including all excluding statistics
        ) partition by hash (handler_name, idempotency_key);
        for v_part in 0..7 loop
            execute format(
                'create table core.%I partition of core.event_handled_hashed'
                ' for values with (modulus 8, remainder %s) %s',
                'event_handled_h' || v_part, v_part, core.partition_storage('core.event_handled')
            );
        end loop;
        perform core.partition_lock('core.event_handled');
        create trigger event_handled_mirror after insert or update or delete on core.event_handled
            for each row execute function core.partitions_dedup_mirror();
        perform core.partitions_record('dedup', p_actor, p_reason, 0, '{}');
    end if;
    return pg_relation_size('core.event_handled') / current_setting('block_size')::bigint;
end
$$;
alter function core.partitions_dedup_prepare(text, text) owner to spectral_owner;
revoke execute on function core.partitions_dedup_prepare(text, text) from public;

-- Copies what lies between two blocks and was not copied yet; answers how many rows.
create function core.partitions_dedup_copy(p_from_block bigint, p_to_block bigint) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    v_copied bigint;
begin
    perform core.partitions_begin();
    -- Locked against the sweep until it is copied: a record that was deleted meanwhile would come back.
    insert into core.event_handled_hashed
    select source.* from core.event_handled as source
    where source.ctid >= format('(%s,0)', p_from_block)::tid and source.ctid < format('(%s,0)', p_to_block)::tid
    for key share
    on conflict do nothing;
    get diagnostics v_copied = row_count;
    return v_copied;
end
$$;
alter function core.partitions_dedup_copy(bigint, bigint) owner to spectral_owner;
revoke execute on function core.partitions_dedup_copy(bigint, bigint) from public;

-- The exchange, and the end of the table that was copied. Whether all was copied is looked at first, without a lock:
-- what is in both once stays in both, by the trigger. Locks: core.event_handled, exclusively, for a moment.
create function core.partitions_dedup_switch(p_actor text, p_reason text) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
as $$
declare
    v_missing bigint;
    v_rows bigint;
begin
    perform core.partitions_begin();
    select count(*), count(*) filter (where twin.handler_name is null)
    into v_rows, v_missing
    from core.event_handled as source
    left join core.event_handled_hashed as twin
      on twin.handler_name = source.handler_name and twin.idempotency_key = source.idempotency_key;
    if v_missing > 0 then
        raise exception '% dedup records are not copied yet', v_missing
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions enable --dedup';
    end if;
    perform core.partition_lock('core.event_handled');
    drop trigger event_handled_mirror on core.event_handled;
    perform core.outbox_triggers_copy('core.event_handled', 'core.event_handled_hashed');
    if core.partition_shape('core.event_handled') <> core.partition_shape('core.event_handled_hashed') then
        raise exception 'the dedup log was changed since its partitions were prepared'
            using errcode = 'object_not_in_prerequisite_state', hint = 'spectral partitions disable';
    end if;
    drop table core.event_handled;
    alter table core.event_handled_hashed rename to event_handled;
    alter index core.event_handled_hashed_pkey rename to event_handled_pkey;
    perform core.partitions_record('dedup_switch', p_actor, p_reason, v_rows, '{}');
    return v_rows;
end
$$;
alter function core.partitions_dedup_switch(text, text) owner to spectral_owner;
revoke execute on function core.partitions_dedup_switch(text, text) from public;

-- Takes back what was prepared; answers whether there was anything. Locks: as above.
create function core.partitions_dedup_undo(p_actor text, p_reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '300ms'
as $$
begin
    perform core.partitions_begin();
    if to_regclass('core.event_handled_hashed') is null then
        return false;
    end if;
    perform core.partition_lock('core.event_handled');
    drop trigger if exists event_handled_mirror on core.event_handled;
    drop table core.event_handled_hashed;
    perform core.partitions_record('dedup_undo', p_actor, p_reason, 0, '{}');
    return true;
end
$$;
alter function core.partitions_dedup_undo(text, text) owner to spectral_owner;
revoke execute on function core.partitions_dedup_undo(text, text) from public;
grant execute on function core.partitions_dedup_undo(text, text) to spectral_operator;
