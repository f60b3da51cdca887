-- The emergency brake: nothing of a context (or of any) is claimed until it is let go. Publishing goes on, what is
-- being handled is finished, and nothing is lost: the rows wait.

create table core.brakes (
    context    text        not null, -- '*': every context, and broadcasts are not split either
    pulled_at  timestamptz not null default clock_timestamp(),
    pulled_by  text        not null,
    reason     text        not null,

    constraint brakes_pkey primary key (context),
    constraint brakes_context_check check (context = '*' or context ~ '^[a-z][a-z0-9_]{0,62}$'),
    constraint brakes_pulled_by_check check (length(pulled_by) between 1 and 200),
    constraint brakes_reason_check check (length(reason) between 1 and 2000)
);
alter table core.brakes owner to spectral_owner;
grant select on core.brakes to spectral_operator, spectral_readonly;

comment on table core.brakes is 'Contexts of which nothing is claimed for now.';

-- Pulls the brake of a context, or of all (*); answers whether it was free. A reason is required: whoever finds it
-- pulled has to know why. A claim that is under way in this moment still goes through.
create function core.brake_pull(p_context text, p_by text, p_reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_by text := left(coalesce(nullif(p_by, ''), session_user), 200);
begin
    if p_context is null or not (p_context = '*' or p_context ~ '^[a-z][a-z0-9_]{0,62}$') then
        raise exception '% is no context', coalesce(quote_literal(left(p_context, 80)), 'null')
            using errcode = 'invalid_parameter_value',
                  hint = 'Name one of them (select distinct context from core.subscriptions), or * for all.';
    end if;
    if btrim(coalesce(p_reason, '')) = '' then
        raise exception 'the brake is not pulled without a reason' using errcode = 'invalid_parameter_value';
    end if;
    insert into core.brakes (context, pulled_by, reason)
    values (p_context, v_by, left(p_reason, 2000))
    on conflict do nothing;
    if not found then
        return false;
    end if;
    insert into core.audit (action, actor, reason, affected, detail)
    values ('brake', v_by, left(p_reason, 2000), 0, jsonb_build_object('context', p_context));
    return true;
end
$$;
alter function core.brake_pull(text, text, text) owner to spectral_owner;
revoke execute on function core.brake_pull(text, text, text) from public;
grant execute on function core.brake_pull(text, text, text) to spectral_operator;

-- Lets the brake go, and wakes every channel on which something waits; answers whether it was pulled.
create function core.brake_release(p_context text, p_by text default null, p_reason text default null) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_waiting record;
    v_generation bigint := -1;
    v_channel text := '';
begin
    delete from core.brakes as brake where brake.context = p_context;
    if not found then
        return false;
    end if;
    insert into core.audit (action, actor, reason, affected, detail)
    values (
        'release_brake', left(coalesce(nullif(p_by, ''), session_user), 200), left(p_reason, 2000), 0,
        jsonb_build_object('context', p_context)
    );
    -- one look per generation and channel, however many rows wait
    loop
        select outbox.generation, outbox.channel into v_waiting
        from core.outbox
        where outbox.status = 'pending'
          and outbox.deleted_at is null
          and (outbox.generation, outbox.channel) > (v_generation, v_channel)
        order by outbox.generation, outbox.channel
        limit 1;
        exit when not found;
        v_generation := v_waiting.generation;
        v_channel := v_waiting.channel;
        perform core.outbox_wake(v_channel, '');
    end loop;
    return true;
end
$$;
alter function core.brake_release(text, text, text) owner to spectral_owner;
revoke execute on function core.brake_release(text, text, text) from public;
grant execute on function core.brake_release(text, text, text) to spectral_operator;
