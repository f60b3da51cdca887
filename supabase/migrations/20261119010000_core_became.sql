-- A worker whose answer was lost can see what became of its rows.

-- The state of rows, and what a settlement has left there to know it by; not what they carry. For a worker that has sent
-- a settlement and was not answered: whether that stands decides what it tells of the run. Locks: none.
create function core.outbox_became(p_ids uuid[]) returns table (
    id uuid, status text, attempts integer, claimed_by text, last_error text
)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
begin
    return query
    select outbox.id, outbox.status::text, outbox.attempts, outbox.claimed_by, outbox.last_error
    from core.outbox
    where outbox.id = any (p_ids);
end
$$;
alter function core.outbox_became(uuid[]) owner to spectral_owner;
revoke execute on function core.outbox_became(uuid[]) from public;
grant execute on function core.outbox_became(uuid[]) to spectral_worker;
