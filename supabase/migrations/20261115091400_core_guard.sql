-- Guards around a handler's transaction: what a handler must not do with the connection it is given is refused by the
-- server, so that no wrong step can pass for a delivery.

-- A dedup key says that a handler has taken effect, and its row's settlement belongs to the same commit. A handler that
-- commits by itself would part the two: its effects would stay, its event would look handled, and what it had still to
-- do would never be done. So that commit fails, and everything of it is undone.
-- It is asked for by the session (spectral.guarded = on), as workers do where they hand their connection to a handler.
create function core.event_handled_require_settled() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    -- A plan cached while the outbox was small must not read one that has grown, row for row, at each commit.
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set jit = off
as $$
begin
    if exists (
        select
        from core.outbox
        where outbox.id = new.event_id
          and outbox.claim_token is not null
    ) then
        raise exception 'the transaction of handler % was committed before event % was settled',
            new.handler_name, new.event_id
            using errcode = 'invalid_transaction_termination',
                  hint = 'The worker commits when the handler has returned; remove the commit from the handler. A '
                         'handler that wants its deferred constraints checked early names them in SET CONSTRAINTS.';
    end if;
    return null;
end
$$;
alter function core.event_handled_require_settled() owner to spectral_owner;
revoke execute on function core.event_handled_require_settled() from public;

-- Whether it is asked for is decided at the insert: who is given the connection later cannot take it back.
-- Locks: core.event_handled, against writers, while it is created.
create constraint trigger event_handled_settled after insert on core.event_handled
    deferrable initially deferred
    for each row
    when (current_setting('spectral.guarded', true) = 'on')
    execute function core.event_handled_require_settled();

-- Fails unless the session still acts as the role it was handed over with: what a handler wrote as somebody else is not
-- delivered.
create function core.require_role(p_role text) returns void
    language plpgsql stable security invoker
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_user is distinct from p_role then
        raise exception 'the handler left its connection acting as role % instead of %',
            current_user, coalesce(p_role, 'null')
            using errcode = 'invalid_role_specification',
                  hint = 'Change back with SET ROLE before the handler returns. SET LOCAL ROLE does not end with a '
                         'nested transaction, unless that is rolled back.';
    end if;
end
$$;
alter function core.require_role(text) owner to spectral_owner;
revoke execute on function core.require_role(text) from public;
-- to everybody who can reach it: the role that was changed to has to be able to ask, or the question itself fails
grant execute on function core.require_role(text)
    to spectral_publisher, spectral_worker, spectral_operator, spectral_retention, spectral_readonly;

-- Begin waits for whoever holds a key uncommitted, which may be a handler of minutes; a worker has better things to do.
-- It gives the row back and comes again.
alter function core.outbox_begin(uuid[], uuid[], text[]) set lock_timeout = '2s';
