-- Least privilege, one place to read it. Nobody below may change a status but through the functions; only retention may
-- delete; a publisher cannot write what it does not own of a row, nor read another workspace's events.

-- publisher: insert what a producer says, read its own workspace
grant insert (
    id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, payload,
    idempotency_key, trace_context, channel, generation, next_attempt_at
) on core.outbox to spectral_publisher;
grant select on core.outbox, core.deployments, core.live_generation to spectral_publisher;
grant execute on function
    core.uuid7(),
    core.current_workspace(),
    core.outbox_channel(bigint, text),
    core.outbox_publish(
        text, text, jsonb, text, uuid, text, uuid, integer, timestamptz, text, bigint, text, interval
    ),
    core.outbox_publish_many(jsonb, bigint, text, interval)
    to spectral_publisher;

-- worker: the verbs of delivery, and to know which generations and subscriptions there are; no table of events
grant select on core.deployments, core.live_generation, core.subscriptions to spectral_worker;
grant execute on function
    core.worker_lock_key(text),
    core.outbox_claim(text, text, bigint[], text[], text[], integer, timestamptz),
    core.outbox_begin(uuid[], uuid[], text[]),
    core.outbox_settle(uuid[], uuid[], text[], text[], interval[]),
    core.outbox_release(uuid[], uuid[]),
    core.outbox_renew(uuid[], uuid[]),
    core.outbox_reap(interval, interval, integer, integer),
    core.outbox_fail_unhandled(text, bigint[], text[], interval, integer),
    core.outbox_fan_out(bigint[], text[], integer)
    to spectral_worker;

-- operator: see everything, replay, discard (by function or, as the runbook has it, by a plain UPDATE of deleted_at)
grant select on
    core.outbox, core.event_handled, core.deployments, core.live_generation, core.subscriptions, core.audit
    to spectral_operator;
grant update (deleted_at) on core.outbox to spectral_operator;
grant execute on function
    core.worker_lock_key(text),
    core.outbox_reap(interval, interval, integer, integer),
    core.outbox_replay(uuid, bigint, text),
    core.outbox_replay_many(uuid[], bigint, text, text),
    core.outbox_discard(uuid[], text, text)
    to spectral_operator;

-- retention: tombstone and delete what is over
grant select, delete on core.outbox, core.event_handled to spectral_retention;
grant update (deleted_at) on core.outbox, core.event_handled to spectral_retention;

-- read-only: its own workspace's events, and nothing of anybody's dedup keys
grant select on core.outbox, core.deployments, core.live_generation, core.subscriptions to spectral_readonly;
grant execute on function core.current_workspace() to spectral_readonly;

-- Rows by workspace. Forced, so that the owner is bound too and the functions' access is spelled out below.
alter table core.outbox enable row level security;
alter table core.outbox force row level security;

create policy outbox_owner on core.outbox to spectral_owner using (true) with check (true);

-- A session that acts for a workspace publishes for it alone; a service that acts for none may publish for any.
create policy outbox_publisher_insert on core.outbox for insert to spectral_publisher
    with check (
        (select core.current_workspace()) is null
        or workspace_id = (select core.current_workspace())
    );

-- Reading is closed until a workspace is named: without one, only events that belong to none are seen.
create policy outbox_workspace_select on core.outbox for select to spectral_publisher, spectral_readonly
    using (workspace_id is not distinct from (select core.current_workspace()));

create policy outbox_operator_select on core.outbox for select to spectral_operator using (true);
create policy outbox_operator_discard on core.outbox for update to spectral_operator
    using (status = 'failed') with check (status = 'failed');

create policy outbox_retention_select on core.outbox for select to spectral_retention using (true);
-- Retention never reaches what is still to be delivered, nor what failed and was not discarded.
create policy outbox_retention_tombstone on core.outbox for update to spectral_retention
    using (status = 'delivered') with check (status = 'delivered');
create policy outbox_retention_delete on core.outbox for delete to spectral_retention
    using (deleted_at is not null and status in ('delivered', 'failed'));
