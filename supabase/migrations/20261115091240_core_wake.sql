-- Wake: a notification is a hint, and what has to be done must not fail for one.

-- Knocks on a channel, unless the server's queue of notifications is all but full: there the commit would fail, and
-- with it a release, a reap or a replay. Whoever should have been woken polls. (core.outbox_notify, the trigger of a
-- publish, is frozen: a publish does fail at a full queue, and says so.)
create function core.outbox_wake(p_channel text, p_payload text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_notification_queue_usage() < 0.9 then
        perform pg_notify(p_channel, p_payload);
    end if;
end
$$;
alter function core.outbox_wake(text, text) owner to spectral_owner;
revoke execute on function core.outbox_wake(text, text) from public;
