-- Release unknown: a claim whose answer was lost on the way stands, its worker lives, and nobody knows the token. The
-- worker gives back what it has claimed and does not know of, uncharged, and wakes whoever may take it.
-- p_age keeps it from claims that are on their way to the worker right now: it is longer than an answer may take.
-- Locks: the rows, FOR UPDATE SKIP LOCKED: one that is locked is being worked on, or will be found the next time.
create function core.outbox_release_unknown(p_worker text, p_known_tokens uuid[], p_age interval) returns setof uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    v_ids uuid[];
    v_tokens uuid[];
begin
    select coalesce(array_agg(unknown.id), '{}'), coalesce(array_agg(unknown.claim_token), '{}')
    into v_ids, v_tokens
    from (
        select outbox.id, outbox.claim_token
        from core.outbox
        where outbox.status = 'in_flight'
          and outbox.claimed_by = p_worker
          and outbox.claimed_at < clock_timestamp() - p_age
          and outbox.claim_token <> all (p_known_tokens)
        order by outbox.id
        limit 1000
        for update skip locked
    ) as unknown;
    return query select released from core.outbox_release(v_ids, v_tokens) as released;
end
$$;
alter function core.outbox_release_unknown(text, uuid[], interval) owner to spectral_owner;
revoke execute on function core.outbox_release_unknown(text, uuid[], interval) from public;
grant execute on function core.outbox_release_unknown(text, uuid[], interval) to spectral_worker;
