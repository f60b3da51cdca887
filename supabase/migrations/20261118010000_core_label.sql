-- Whoever changes rows that it has not claimed says of which events they were, in the statement that changes them.

-- Which event a row delivers, and what its last error was; not what it carries. For log lines: of rows that were taken
-- back, failed without a handler, split, replayed or discarded. Locks: none.
-- Volatile, so that it sees what the function beside it in the same statement has just written.
create function core.outbox_label(p_id uuid) returns table (
    event_id uuid, event_type text, source text, target text, workspace_id uuid, trace_context text,
    attempts integer, last_error text, generation bigint
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $$
begin
    return query
    select
        coalesce(outbox.parent_id, outbox.id), outbox.event_type, outbox.source, outbox.target, outbox.workspace_id,
        outbox.trace_context, outbox.attempts, outbox.last_error, outbox.generation
    from core.outbox
    where outbox.id = p_id;
end
$$;
alter function core.outbox_label(uuid) owner to spectral_owner;
revoke execute on function core.outbox_label(uuid) from public;
grant execute on function core.outbox_label(uuid) to spectral_worker, spectral_operator;
