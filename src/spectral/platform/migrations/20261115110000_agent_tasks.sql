-- Agent tasks: long work that a worker carries out, that a person may have to approve, and that runs once at a time.
--
-- The outbox says that a task is to be looked at; whether it runs is decided here. A run is a row of its own with a
-- token, and every write of a worker names that token: whoever has lost it, by a crash or by standing still for too
-- long, can change nothing any more.
--
--     queued ──▶ running ──▶ succeeded | failed | cancelled
--       ▲          │ ▲
--       ├─ retry ──┘ └── taken over after a loss (on_loss = 'resume')
--       │          ▼
--       └─ waiting_for_approval ──▶ rejected | cancelled

create schema if not exists platform;

do $roles$
declare
    v_role name;
begin
    foreach v_role in array array['platform_owner', 'platform_app', 'platform_approver']::name[] loop
        begin
            if not exists (select from pg_roles where rolname = v_role) then
                execute format('create role %I nologin', v_role);
            end if;
        exception
            when duplicate_object or unique_violation then
                null;
        end;
    end loop;

    -- A migrating role that is no superuser must be able to hand objects to the owner.
    if not pg_has_role(current_user, 'platform_owner', 'usage')
        or not pg_has_role(
            current_user, 'platform_owner',
            case when current_setting('server_version_num')::integer >= 160000 then 'set' else 'member' end
        )
    then
        execute format('grant platform_owner to %I', current_user);
    end if;
end
$roles$;

-- The owner publishes: deciding over a task and telling the workers of it are one step. Only where it is not so already:
-- another database's migration may be granting the same.
do $membership$
begin
    if not pg_has_role('platform_owner', 'spectral_publisher', 'member') then
        grant spectral_publisher to platform_owner;
    end if;
end
$membership$;
grant usage, create on schema platform to platform_owner;
grant usage on schema platform to platform_app, platform_approver;
-- spectral-lint: allow cross-context-grant because whoever operates the substrate decides over tasks, in every context
grant usage on schema platform to spectral_operator, spectral_retention;

create table platform.conversations (
    id                uuid        not null,
    workspace_id      uuid,
    -- The outbox row that began it. No foreign key: the conversation may outlive the row.
    trigger_event_id  uuid        not null,
    created_at        timestamptz not null default clock_timestamp(),

    constraint conversations_pkey primary key (id)
);
alter table platform.conversations owner to platform_owner;

create table platform.agent_tasks (
    -- what is to be done: never changes after the insert
    id                uuid        not null,
    kind              text        not null,
    input             jsonb       not null default '{}',
    conversation_id   uuid        not null,
    workspace_id      uuid,
    requested_by      text        not null,
    on_loss           text        not null default 'resume',
    max_attempts      integer     not null default 5,
    keep_for          interval,
    processing_class  text,
    dispatch_event_id uuid        not null,
    created_at        timestamptz not null default clock_timestamp(),
    -- how far it got: changed by the functions below only
    status            text        not null default 'queued',
    attempts          integer     not null default 0,
    fence             bigint      not null default 0,
    checkpoint        jsonb,
    progress          integer,
    progress_note     text,
    result_ref        text,
    last_error        text,
    ended_at          timestamptz,
    deleted_at        timestamptz,
    -- who is at it
    run_token         uuid,
    run_by            text,
    run_began_at      timestamptz,
    heartbeat_at      timestamptz,
    run_expires_at    timestamptz,
    -- what people said
    cancel_requested_at timestamptz,
    cancelled_by      text,
    cancel_reason     text,
    question          text,
    asked_at          timestamptz,
    decision          text,
    decided_by        text,
    decided_at        timestamptz,
    decision_reason   text,
    resume_event_id   uuid,
    decisions         jsonb       not null default '[]',

    constraint agent_tasks_pkey primary key (id),
    constraint agent_tasks_conversation_fkey foreign key (conversation_id) references platform.conversations (id),
    constraint agent_tasks_kind_check check (kind ~ '^[a-z][a-z0-9_.]{0,99}$'),
    constraint agent_tasks_input_check check (
        jsonb_typeof(input) = 'object' and octet_length(input::text) <= 262144
    ),
    constraint agent_tasks_requested_by_check check (length(requested_by) between 1 and 200),
    constraint agent_tasks_on_loss_check check (on_loss in ('resume', 'fail')),
    constraint agent_tasks_max_attempts_check check (max_attempts between 1 and 50),
    constraint agent_tasks_keep_for_check check (keep_for between interval '0' and interval '36500 days'),
    constraint agent_tasks_status_check check (
        status in ('queued', 'running', 'waiting_for_approval', 'succeeded', 'failed', 'rejected', 'cancelled')
    ),
    constraint agent_tasks_attempts_check check (attempts between 0 and max_attempts),
    constraint agent_tasks_checkpoint_check check (octet_length(checkpoint::text) <= 1048576),
    constraint agent_tasks_progress_check check (progress between 0 and 100 and length(progress_note) <= 500),
    constraint agent_tasks_result_check check (
        result_ref is null or (status = 'succeeded' and length(result_ref) between 1 and 2000)
    ),
    constraint agent_tasks_last_error_check check (octet_length(last_error) <= 4096),
    -- A run is whole or absent, and only a running task has one.
    constraint agent_tasks_run_check check (
        (status = 'running') = (run_token is not null)
        and (run_token is null) = (run_expires_at is null)
        and (run_token is null or (run_by is not null and run_began_at is not null and heartbeat_at is not null))
    ),
    constraint agent_tasks_ended_check check (
        (status in ('succeeded', 'failed', 'rejected', 'cancelled')) = (ended_at is not null)
    ),
    constraint agent_tasks_failed_check check (status <> 'failed' or last_error is not null),
    constraint agent_tasks_cancelled_check check (
        (cancel_requested_at is null) = (cancelled_by is null)
        and (status <> 'cancelled' or cancel_requested_at is not null)
    ),
    constraint agent_tasks_question_check check (
        (question is null) = (asked_at is null)
        and length(question) between 1 and 4000
        and (status <> 'waiting_for_approval' or (question is not null and decision is null))
    ),
    constraint agent_tasks_decision_check check (
        (decision is null or decision in ('approved', 'rejected'))
        and (decision is null) = (decided_by is null)
        and (decision is null) = (decided_at is null)
        and (decision is not distinct from 'approved') = (resume_event_id is not null)
        and (status <> 'rejected' or decision is not distinct from 'rejected')
    ),
    constraint agent_tasks_decisions_check check (jsonb_typeof(decisions) = 'array'),
    -- What is not at its end cannot be put away.
    constraint agent_tasks_deleted_check check (deleted_at is null or ended_at is not null)
) with (fillfactor = 70); -- a heartbeat touches no indexed column, and finds room on its own page
alter table platform.agent_tasks owner to platform_owner;

-- The list, newest first; uuid7 keys are in order of time, so the primary key serves it unfiltered.
create index agent_tasks_status_idx on platform.agent_tasks (status, id desc) where deleted_at is null;
create index agent_tasks_conversation_idx on platform.agent_tasks (conversation_id);
create index agent_tasks_ended_idx on platform.agent_tasks (ended_at) where ended_at is not null;

-- Every run there was. The row of the run that is on is the fence: a transaction of the executor holds it FOR SHARE, and
-- nobody takes the task over while it does.
create table platform.agent_task_runs (
    task_id     uuid        not null,
    fence       bigint      not null,
    token       uuid        not null,
    worker      text        not null,
    event_id    uuid        not null, -- the outbox row that brought it; it may outlive the row
    attempt     integer     not null,
    began_at    timestamptz not null default clock_timestamp(),
    ended_at    timestamptz,
    outcome     text,
    error       text,

    constraint agent_task_runs_pkey primary key (task_id, fence),
    constraint agent_task_runs_task_fkey foreign key (task_id) references platform.agent_tasks (id) on delete cascade,
    constraint agent_task_runs_outcome_check check (
        outcome in ('succeeded', 'failed', 'cancelled', 'waiting_for_approval', 'released', 'lost')
    ),
    constraint agent_task_runs_ended_check check ((ended_at is null) = (outcome is null)),
    constraint agent_task_runs_error_check check (octet_length(error) <= 4096)
);
alter table platform.agent_task_runs owner to platform_owner;
create unique index agent_task_runs_token_key on platform.agent_task_runs (token);
-- Whatever else goes wrong, two runs of one task are not on at the same time.
create unique index agent_task_runs_on_key on platform.agent_task_runs (task_id) where ended_at is null;

-- The state machine, for every writer alike.
create function platform.agent_task_guard() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'INSERT' then
        if new.status <> 'queued' or new.fence <> 0 then
            raise exception 'a task begins as queued, not as %', new.status
                using errcode = 'object_not_in_prerequisite_state';
        end if;
        return new;
    end if;
    if (new.id, new.kind, new.input, new.conversation_id, new.on_loss, new.dispatch_event_id, new.created_at)
        is distinct from
        (old.id, old.kind, old.input, old.conversation_id, old.on_loss, old.dispatch_event_id, old.created_at)
    then
        raise exception 'what task % is about does not change', old.id
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    if new.status <> old.status and not (case old.status
        when 'queued' then new.status in ('running', 'cancelled')
        when 'running' then new.status in ('queued', 'waiting_for_approval', 'succeeded', 'failed', 'cancelled')
        when 'waiting_for_approval' then new.status in ('queued', 'rejected', 'cancelled')
        else false
    end) then
        raise exception 'task % is %, it cannot become %', old.id, old.status, new.status
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    if old.ended_at is not null and (to_jsonb(new) - 'deleted_at') is distinct from (to_jsonb(old) - 'deleted_at') then
        raise exception 'task % has ended as %', old.id, old.status
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    if new.fence < old.fence or (new.fence = old.fence and new.run_token <> old.run_token) then
        raise exception 'a run of task % takes a number of its own', old.id
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    return new;
end
$$;
alter function platform.agent_task_guard() owner to platform_owner;
revoke execute on function platform.agent_task_guard() from public;

create trigger agent_task_guard before insert or update on platform.agent_tasks
    for each row execute function platform.agent_task_guard();

-- Ends the run that is on, if there is one, with the task: the columns of the run are gone from the task afterwards.
-- Internal: the callers hold the task's row.
create function platform.agent_task_end_run(p_id uuid, p_outcome text, p_error text) returns void
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    update platform.agent_task_runs
    set ended_at = clock_timestamp(), outcome = p_outcome, error = left(p_error, 4000)
    where agent_task_runs.task_id = p_id and agent_task_runs.ended_at is null
$$;
alter function platform.agent_task_end_run(uuid, text, text) owner to platform_owner;
revoke execute on function platform.agent_task_end_run(uuid, text, text) from public;

-- Writes the outbox row that has a worker look at the task, and answers its id. Internal.
create function platform.agent_task_tell(
    p_event_type text, p_event_id uuid, p_id uuid, p_workspace_id uuid,
    p_generation bigint, p_class text, p_delay interval, p_trace_context text
) returns uuid
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    select core.outbox_publish_many(
        jsonb_build_array(jsonb_build_object(
            'event_id', p_event_id, 'event_type', p_event_type, 'source', 'platform', 'target', 'platform',
            'content_class', 'agent_task', 'workspace_id', p_workspace_id, 'trace_context', p_trace_context,
            'payload', jsonb_build_object('agent_task_id', p_id)
        )),
        p_generation, p_class, p_delay
    )
$$;
alter function platform.agent_task_tell(text, uuid, uuid, uuid, bigint, text, interval, text) owner to platform_owner;
revoke execute on function platform.agent_task_tell(text, uuid, uuid, uuid, bigint, text, interval, text) from public;

-- Enqueues a task in the caller's transaction: the row, its conversation unless one is named, and the outbox row that
-- dispatches it. p_generation null: the live one.
create function platform.agent_task_enqueue(
    p_kind text,
    p_input jsonb default '{}',
    p_requested_by text default null,
    p_conversation_id uuid default null,
    p_workspace_id uuid default null,
    p_on_loss text default 'resume',
    p_max_attempts integer default 5,
    p_keep_for interval default null,
    p_generation bigint default null,
    p_class text default null,
    p_delay interval default null,
    p_trace_context text default null,
    p_id uuid default null
) returns table (id uuid, conversation_id uuid, event_id uuid)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_id uuid := coalesce(p_id, core.uuid7());
    v_event uuid := core.uuid7();
    v_conversation uuid := coalesce(p_conversation_id, core.uuid7());
begin
    if p_conversation_id is null then
        insert into platform.conversations (id, workspace_id, trigger_event_id)
        values (v_conversation, p_workspace_id, v_event);
    elsif not exists (select from platform.conversations as known where known.id = p_conversation_id) then
        raise exception 'there is no conversation %', p_conversation_id using errcode = 'no_data_found';
    end if;
    insert into platform.agent_tasks (
        id, kind, input, conversation_id, workspace_id, requested_by, on_loss, max_attempts, keep_for,
        processing_class, dispatch_event_id
    )
    values (
        v_id, p_kind, coalesce(p_input, '{}'), v_conversation, p_workspace_id,
        left(coalesce(nullif(p_requested_by, ''), session_user), 200), coalesce(p_on_loss, 'resume'),
        coalesce(p_max_attempts, 5), p_keep_for, p_class, v_event
    );
    perform platform.agent_task_tell(
        'agent.task.dispatched', v_event, v_id, p_workspace_id, p_generation, p_class, p_delay, p_trace_context
    );
    return query select v_id, v_conversation, v_event;
end
$$;
alter function platform.agent_task_enqueue(
    text, jsonb, text, uuid, uuid, text, integer, interval, bigint, text, interval, text, uuid
) owner to platform_owner;
revoke execute on function platform.agent_task_enqueue(
    text, jsonb, text, uuid, uuid, text, integer, interval, bigint, text, interval, text, uuid
) from public;

-- Begins a run, if the task is to be run and nobody is at it. The caller brings the token, so that asking again after a
-- lost answer is the same run. Answers the status: `running` is the caller's own run; `busy` is somebody else's, whose
-- heart still beats or whose transaction is open (p_wait: look again after that); anything else is not to be run.
-- A run whose heart has stopped is lost: by on_loss the task is taken over, or has failed.
-- Locks: the task, FOR UPDATE; the lost run, FOR UPDATE SKIP LOCKED.
create function platform.agent_task_begin(
    p_id uuid, p_token uuid, p_worker text, p_event_id uuid, p_ttl interval
) returns table (status text, wait interval)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_task platform.agent_tasks;
    v_now timestamptz;
    v_lost text;
begin
    if p_token is null or p_ttl is null or p_ttl <= interval '0' then
        raise exception 'a run needs a token, and a time to live that is longer than nothing'
            using errcode = 'invalid_parameter_value';
    end if;
    select task.* into v_task from platform.agent_tasks as task where task.id = p_id for update;
    if v_task.id is null then
        raise exception 'there is no agent task %', coalesce(p_id::text, 'null') using errcode = 'no_data_found';
    end if;
    v_now := clock_timestamp();
    if v_task.status not in ('queued', 'running') then
        return query select v_task.status, null::interval;
        return;
    elsif v_task.run_token = p_token then
        -- Whoever asks lives, and counts its time to live from this answer.
        update platform.agent_tasks as task
        set heartbeat_at = v_now, run_expires_at = v_now + p_ttl
        where task.id = p_id;
        return query select 'running'::text, null::interval;
        return;
    elsif v_task.run_expires_at > v_now then
        return query select 'busy'::text, v_task.run_expires_at - v_now;
        return;
    elsif v_task.status = 'running' then
        perform from platform.agent_task_runs as run
        where run.task_id = p_id and run.ended_at is null
        for update skip locked;
        if not found then
            return query select 'busy'::text, least(p_ttl, interval '1 second');
            return;
        end if;
        v_lost := format('WorkerLostError: %s was lost in run %s', v_task.run_by, v_task.fence);
        perform platform.agent_task_end_run(p_id, 'lost', v_lost);
        if v_task.cancel_requested_at is not null
            or v_task.on_loss = 'fail'
            or v_task.attempts >= v_task.max_attempts
        then
            return query
            update platform.agent_tasks as task
            set status = case when task.cancel_requested_at is null then 'failed' else 'cancelled' end,
                last_error = v_lost, ended_at = v_now, run_token = null, run_expires_at = null
            where task.id = p_id
            returning task.status, null::interval;
            return;
        end if;
    end if;

    insert into platform.agent_task_runs (task_id, fence, token, worker, event_id, attempt)
    values (p_id, v_task.fence + 1, p_token, p_worker, p_event_id, v_task.attempts + 1);
    update platform.agent_tasks as task
    set status = 'running', fence = task.fence + 1, attempts = task.attempts + 1,
        run_token = p_token, run_by = p_worker, run_began_at = v_now, heartbeat_at = v_now,
        run_expires_at = v_now + p_ttl, last_error = coalesce(v_lost, task.last_error)
    where task.id = p_id;
    return query select 'running'::text, null::interval;
end
$$;
alter function platform.agent_task_begin(uuid, uuid, text, uuid, interval) owner to platform_owner;
revoke execute on function platform.agent_task_begin(uuid, uuid, text, uuid, interval) from public;

-- The heartbeat of a run, with whatever progress it has made. Answers whether somebody wants the task cancelled; null:
-- the run is no longer the caller's, and nothing was written.
create function platform.agent_task_beat(
    p_id uuid, p_token uuid, p_ttl interval, p_progress integer default null, p_note text default null
) returns boolean
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    update platform.agent_tasks as task
    set heartbeat_at = clock_timestamp(),
        run_expires_at = clock_timestamp() + p_ttl,
        progress = coalesce(p_progress, task.progress),
        progress_note = coalesce(left(p_note, 500), task.progress_note)
    where task.id = p_id and task.run_token = p_token
    returning task.cancel_requested_at is not null
$$;
alter function platform.agent_task_beat(uuid, uuid, interval, integer, text) owner to platform_owner;
revoke execute on function platform.agent_task_beat(uuid, uuid, interval, integer, text) from public;

-- Stores what a later run begins with. Answers whether the run is still the caller's.
create function platform.agent_task_save(p_id uuid, p_token uuid, p_checkpoint jsonb) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    update platform.agent_tasks as task
    set checkpoint = p_checkpoint
    where task.id = p_id and task.run_token = p_token;
    return found;
end
$$;
alter function platform.agent_task_save(uuid, uuid, jsonb) owner to platform_owner;
revoke execute on function platform.agent_task_save(uuid, uuid, jsonb) from public;

-- The fence for writes of the executor: called first in a transaction, it refuses a run that is lost, and until the
-- transaction ends nobody takes the task over. Locks: the run, FOR SHARE; heartbeats do not touch it.
create function platform.agent_task_hold(p_id uuid, p_token uuid) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_fence bigint;
begin
    select run.fence into v_fence
    from platform.agent_task_runs as run
    where run.task_id = p_id and run.token = p_token and run.ended_at is null
    for share;
    if v_fence is null then
        raise exception 'this run of agent task % is over', p_id
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    return v_fence;
end
$$;
alter function platform.agent_task_hold(uuid, uuid) owner to platform_owner;
revoke execute on function platform.agent_task_hold(uuid, uuid) from public;

-- Ends a run and answers what the task is now; null: the run was no longer the caller's, and nothing was written.
-- p_detail is the result's reference, the error, or the question. A failure that p_retry says may pass is queued again
-- while there are attempts left. `released` is a run that its worker gave up in good order: it counts as no attempt, but
-- a task that must not be begun twice has failed by it. Asked again after a lost answer, it answers the same.
create function platform.agent_task_finish(
    p_id uuid, p_token uuid, p_outcome text, p_detail text default null, p_retry boolean default false,
    p_checkpoint jsonb default null
) returns text
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_task platform.agent_tasks;
    v_status text;
    v_error text := case when p_outcome in ('failed', 'released') then left(p_detail, 4000) end;
begin
    select task.* into v_task from platform.agent_tasks as task where task.id = p_id for update;
    if v_task.run_token is distinct from p_token or p_token is null then
        return (
            select v_task.status
            from platform.agent_task_runs as run
            where run.token = p_token and run.task_id = p_id and run.outcome = p_outcome
        );
    end if;
    v_status := case
        when p_outcome = 'succeeded' then 'succeeded'
        -- Whoever wants it cancelled does not want it tried again, nor to be asked.
        when v_task.cancel_requested_at is not null and (p_outcome <> 'failed' or p_retry) then 'cancelled'
        when p_outcome = 'waiting_for_approval' then 'waiting_for_approval'
        when p_outcome = 'released' and v_task.on_loss = 'resume' then 'queued'
        when p_outcome = 'failed' and p_retry and v_task.attempts < v_task.max_attempts then 'queued'
        when p_outcome in ('failed', 'released') then 'failed'
    end;
    if v_status is null then
        raise exception 'a run cannot end as %', coalesce(p_outcome, 'null') using errcode = 'invalid_parameter_value';
    end if;
    perform platform.agent_task_end_run(p_id, p_outcome, v_error);
    update platform.agent_tasks as task
    set status = v_status,
        attempts = task.attempts - (p_outcome = 'released' and v_status = 'queued')::integer,
        checkpoint = coalesce(p_checkpoint, task.checkpoint),
        result_ref = case when v_status = 'succeeded' then p_detail end,
        progress = case when v_status = 'succeeded' and task.progress is not null then 100 else task.progress end,
        last_error = case
            when v_status = 'failed' then coalesce(v_error, 'unknown')
            when v_status = 'succeeded' then task.last_error
            else coalesce(v_error, task.last_error)
        end,
        ended_at = case when v_status in ('succeeded', 'failed', 'cancelled') then clock_timestamp() end,
        question = case when v_status = 'waiting_for_approval' then p_detail else task.question end,
        asked_at = case when v_status = 'waiting_for_approval' then clock_timestamp() else task.asked_at end,
        decision = case when v_status <> 'waiting_for_approval' then task.decision end,
        decided_by = case when v_status <> 'waiting_for_approval' then task.decided_by end,
        decided_at = case when v_status <> 'waiting_for_approval' then task.decided_at end,
        decision_reason = case when v_status <> 'waiting_for_approval' then task.decision_reason end,
        resume_event_id = case when v_status <> 'waiting_for_approval' then task.resume_event_id end,
        run_token = null, run_expires_at = null
    where task.id = p_id;
    return v_status;
end
$$;
alter function platform.agent_task_finish(uuid, uuid, text, text, boolean, jsonb) owner to platform_owner;
revoke execute on function platform.agent_task_finish(uuid, uuid, text, text, boolean, jsonb) from public;

-- Decides over a task that waits for it. An approval is queued with an outbox row of its own, which resumes the task
-- with what it stored, under fresh attempts; it is of the live generation unless told. A rejection ends it. p_by is what
-- the caller says; the login that said it is kept beside it.
create function platform.agent_task_decide(
    p_id uuid, p_decision text, p_by text default null, p_reason text default null, p_generation bigint default null
) returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_task platform.agent_tasks;
    v_now timestamptz;
    v_by text := left(coalesce(nullif(p_by, ''), session_user), 200);
    v_event uuid := case when p_decision = 'approved' then core.uuid7() end;
begin
    if p_decision is null or p_decision not in ('approved', 'rejected') then
        raise exception 'a decision is approved or rejected, not %', coalesce(p_decision, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    select task.* into v_task from platform.agent_tasks as task where task.id = p_id for update;
    if v_task.id is null then
        raise exception 'there is no agent task %', coalesce(p_id::text, 'null')
            using errcode = 'no_data_found', hint = 'spectral agent-tasks list';
    elsif v_task.status <> 'waiting_for_approval' then
        raise exception 'agent task % is %, nobody waits for a decision', p_id, v_task.status
            using errcode = 'object_not_in_prerequisite_state', hint = format('spectral agent-tasks show %s', p_id);
    end if;
    v_now := clock_timestamp();
    update platform.agent_tasks as task
    set status = case p_decision when 'approved' then 'queued' else 'rejected' end,
        attempts = case p_decision when 'approved' then 0 else task.attempts end,
        decision = p_decision, decided_by = v_by, decided_at = v_now, decision_reason = left(p_reason, 2000),
        resume_event_id = v_event,
        ended_at = case when p_decision = 'rejected' then v_now end,
        decisions = task.decisions || jsonb_build_array(jsonb_build_object(
            'question', task.question, 'asked_at', task.asked_at, 'decision', p_decision, 'decided_by', v_by,
            'login', session_user, 'decided_at', v_now, 'reason', left(p_reason, 2000), 'event_id', v_event
        ))
    where task.id = p_id;
    if p_decision = 'approved' then
        perform platform.agent_task_tell(
            'platform.agent_task.resumed', v_event, p_id, v_task.workspace_id, p_generation,
            v_task.processing_class, null, null
        );
    end if;
    return v_event;
end
$$;
alter function platform.agent_task_decide(uuid, text, text, text, bigint) owner to platform_owner;
revoke execute on function platform.agent_task_decide(uuid, text, text, text, bigint) from public;

-- Asks for a task to be cancelled and answers what it is now. What nobody is at ends at once, also a run whose heart has
-- stopped; a run that is on is told by its next heartbeat, and stays `running` until it has obeyed.
create function platform.agent_task_cancel(p_id uuid, p_by text default null, p_reason text default null) returns text
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_task platform.agent_tasks;
    v_at_once boolean := true;
    v_status text;
begin
    select task.* into v_task from platform.agent_tasks as task where task.id = p_id for update;
    if v_task.id is null then
        raise exception 'there is no agent task %', coalesce(p_id::text, 'null')
            using errcode = 'no_data_found', hint = 'spectral agent-tasks list';
    elsif v_task.ended_at is not null then
        raise exception 'agent task % is % already', p_id, v_task.status
            using errcode = 'object_not_in_prerequisite_state', hint = format('spectral agent-tasks show %s', p_id);
    end if;
    if v_task.status = 'running' then
        if v_task.run_expires_at > clock_timestamp() then
            v_at_once := false;
        else
            perform from platform.agent_task_runs as run
            where run.task_id = p_id and run.ended_at is null
            for update skip locked;
            v_at_once := found;
        end if;
    end if;
    if v_at_once then
        perform platform.agent_task_end_run(p_id, 'lost', null);
    end if;
    update platform.agent_tasks as task
    set status = case when v_at_once then 'cancelled' else task.status end,
        cancel_requested_at = coalesce(task.cancel_requested_at, clock_timestamp()),
        cancelled_by = coalesce(task.cancelled_by, left(coalesce(nullif(p_by, ''), session_user), 200)),
        cancel_reason = coalesce(task.cancel_reason, left(p_reason, 2000)),
        ended_at = case when v_at_once then clock_timestamp() end,
        run_token = case when not v_at_once then task.run_token end,
        run_expires_at = case when not v_at_once then task.run_expires_at end
    where task.id = p_id
    returning task.status into v_status;
    return v_status;
end
$$;
alter function platform.agent_task_cancel(uuid, text, text) owner to platform_owner;
revoke execute on function platform.agent_task_cancel(uuid, text, text) from public;

-- Puts away tasks that ended longer ago than p_active (or than they say themselves), and deletes those put away longer
-- ago than p_grace, with their runs, and conversations that are left without a task. p_limit of each at most: ask again
-- while it answers that there is more. Clocks are the database's.
create function platform.agent_task_sweep(
    p_active interval, p_grace interval, p_limit integer default 1000, p_dry_run boolean default false
) returns table (put_away integer, deleted integer, more boolean)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_old uuid[];
    v_gone uuid[];
    v_conversations uuid[];
begin
    if p_active is null or p_active <= interval '0' or p_grace is null or p_grace < interval '0'
        or p_limit is null or p_limit < 1
    then
        raise exception 'what is kept is kept for longer than nothing, and at least one is swept at a time'
            using errcode = 'invalid_parameter_value';
    end if;
    select coalesce(array_agg(old.id), '{}') into v_old
    from (
        select task.id from platform.agent_tasks as task
        where task.deleted_at is null and task.ended_at < v_now - coalesce(task.keep_for, p_active)
        order by task.ended_at
        limit p_limit
        for update skip locked
    ) as old;
    select coalesce(array_agg(gone.id), '{}') into v_gone
    from (
        select task.id from platform.agent_tasks as task
        where task.deleted_at < v_now - p_grace and task.ended_at is not null
        order by task.ended_at
        limit p_limit
        for update skip locked
    ) as gone;
    if not p_dry_run then
        update platform.agent_tasks as task set deleted_at = v_now where task.id = any (v_old);
        with deleted as (
            delete from platform.agent_tasks as task where task.id = any (v_gone) returning task.conversation_id
        )
        select array_agg(distinct deleted.conversation_id) into v_conversations from deleted;
        -- Locked first: a task that is being enqueued into one of them makes it stay.
        perform from platform.conversations as known where known.id = any (v_conversations) order by known.id for update;
        delete from platform.conversations as known
        where known.id = any (v_conversations)
          and not exists (select from platform.agent_tasks as task where task.conversation_id = known.id);
    end if;
    return query select
        cardinality(v_old), cardinality(v_gone),
        not p_dry_run and greatest(cardinality(v_old), cardinality(v_gone)) >= p_limit;
end
$$;
alter function platform.agent_task_sweep(interval, interval, integer, boolean) owner to platform_owner;
revoke execute on function platform.agent_task_sweep(interval, interval, integer, boolean) from public;

-- The app enqueues, runs, cancels and reads; people read, decide and cancel; retention sweeps. Nobody writes the tables.
-- Whoever runs executors does not decide: an agent would approve what it asks itself.
grant select on platform.agent_tasks, platform.agent_task_runs, platform.conversations
    to platform_app, platform_approver;
grant execute on function
    platform.agent_task_enqueue(
        text, jsonb, text, uuid, uuid, text, integer, interval, bigint, text, interval, text, uuid
    ),
    platform.agent_task_begin(uuid, uuid, text, uuid, interval),
    platform.agent_task_beat(uuid, uuid, interval, integer, text),
    platform.agent_task_save(uuid, uuid, jsonb),
    platform.agent_task_hold(uuid, uuid),
    platform.agent_task_finish(uuid, uuid, text, text, boolean, jsonb),
    platform.agent_task_cancel(uuid, text, text)
    to platform_app;
grant execute on function platform.agent_task_decide(uuid, text, text, text, bigint) to platform_approver;
-- spectral-lint: allow cross-context-grant because whoever operates the substrate decides over tasks, in every context
grant select on platform.agent_tasks, platform.agent_task_runs, platform.conversations to spectral_operator;
-- spectral-lint: allow cross-context-grant because whoever operates the substrate decides over tasks, in every context
grant execute on function
    platform.agent_task_decide(uuid, text, text, text, bigint),
    platform.agent_task_cancel(uuid, text, text)
    to spectral_operator;
-- spectral-lint: allow cross-context-grant because one role sweeps for every context, and may do nothing else here
grant execute on function platform.agent_task_sweep(interval, interval, integer, boolean) to spectral_retention;

comment on table platform.agent_tasks is 'Long work with its own gate: one run at a time, whatever the outbox delivers.';
comment on column platform.agent_tasks.fence is 'Grows with every run; for fencing what lies outside of this database.';
comment on column platform.agent_tasks.attempts is 'Runs begun since it was enqueued or approved, the released ones aside.';
comment on column platform.agent_tasks.on_loss is 'What becomes of a run whose worker was lost: resume or fail.';
comment on column platform.agent_tasks.decisions is 'Every question that was decided, by whom, with which login and why; append-only.';
comment on column platform.conversations.trigger_event_id is 'The outbox row that began it, which it may outlive.';
