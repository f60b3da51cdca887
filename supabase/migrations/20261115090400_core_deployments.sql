-- Generations of the release, and what each of them subscribes to.

create table core.deployments (
    generation    bigint      not null,
    status        text        not null default 'allocated',
    label         text, -- the release as people call it: a tag, a commit
    allocated_at  timestamptz not null default clock_timestamp(),
    promoted_at   timestamptz,
    drained_at    timestamptz,
    retired_at    timestamptz,

    constraint deployments_pkey primary key (generation),
    constraint deployments_generation_check check (generation >= 0),
    constraint deployments_status_check check (status in ('allocated', 'live', 'draining', 'retired')),
    constraint deployments_label_check check (length(label) <= 200),
    constraint deployments_retired_check check ((status = 'retired') = (retired_at is not null))
);
alter table core.deployments owner to spectral_owner;

-- One release is live at a time. After a rollback that is not the highest number: ask this view, not max().
create unique index deployments_live_key on core.deployments (status) where status = 'live';

create view core.live_generation with (security_invoker = true) as
    select generation, promoted_at, label
    from core.deployments
    where status = 'live';
alter view core.live_generation owner to spectral_owner;

create table core.subscriptions (
    generation    bigint      not null,
    context       text        not null,
    event_type    text        not null,
    handler_name  text        not null,
    -- Executions the handler's retry policy allows: the reaper has to know them for handlers it does not run.
    max_attempts  integer     not null default 6,
    recorded_at   timestamptz not null default clock_timestamp(),

    constraint subscriptions_pkey primary key (generation, context, event_type, handler_name),
    constraint subscriptions_generation_fkey foreign key (generation) references core.deployments (generation),
    constraint subscriptions_context_check check (context ~ '^[a-z][a-z0-9_]{0,62}$'),
    constraint subscriptions_event_type_check check (
        length(event_type) <= 200
        and event_type ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$'
    ),
    constraint subscriptions_handler_name_check check (
        length(handler_name) <= 200 and handler_name ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$'
    ),
    constraint subscriptions_max_attempts_check check (max_attempts >= 1)
);
alter table core.subscriptions owner to spectral_owner;

-- Fan out asks: which contexts of this generation want this type?
create index subscriptions_event_type_idx on core.subscriptions (generation, event_type, context);

comment on table core.deployments is 'Release generations: allocated -> live -> draining -> retired.';
comment on view core.live_generation is 'The one generation that is live now, if any.';
comment on table core.subscriptions is 'Which handler of which context wants which event type, by generation.';
