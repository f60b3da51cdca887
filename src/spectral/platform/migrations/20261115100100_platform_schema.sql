-- The context platform: System Cards, clusters of failures, decisions about them, and curations.
--
-- What belongs to another context is kept as an id without a constraint (world_model_id, rule_id): contexts meet
-- through events, never through a foreign key or a grant.

-- Roles belong to the whole server: one that another database's migration creates in the same instant will do.
do $roles$
begin
    if not exists (select from pg_roles where rolname = 'platform_app') then
        create role platform_app nologin;
    end if;
exception
    when duplicate_object or unique_violation then
        null;
end
$roles$;

do $membership$
begin
    if not pg_has_role('platform_app', 'spectral_publisher', 'member')
        or not pg_has_role('platform_app', 'spectral_worker', 'member')
    then
        grant spectral_publisher, spectral_worker to platform_app;
    end if;
end
$membership$;

create schema platform;
revoke all on schema platform from public;
grant usage on schema platform to platform_app;
comment on schema platform is 'The context platform. Other contexts learn of it by events and by its protocols.';

-- Every revision of every card that worlds has published, as it was published; the newest is the System Card. Events
-- may come in any order, so a revision is a row of its own and none overwrites another.
create table platform.system_card_snapshots (
    world_model_id uuid        not null,
    revision       integer     not null,
    workspace_id   uuid,
    event_id       uuid        not null,
    card           jsonb       not null,
    published_at   timestamptz not null,
    projected_at   timestamptz not null default clock_timestamp(),

    constraint system_card_snapshots_pkey primary key (world_model_id, revision),
    constraint system_card_snapshots_event_key unique (event_id),
    constraint system_card_snapshots_revision_check check (revision >= 1),
    constraint system_card_snapshots_card_check check (jsonb_typeof(card) = 'object')
);

create table platform.failure_clusters (
    cluster_id     uuid        not null,
    workspace_id   uuid,
    world_model_id uuid        not null,
    signature      text        not null,
    failures       integer     not null,
    detected_at    timestamptz not null,

    constraint failure_clusters_pkey primary key (cluster_id),
    constraint failure_clusters_signature_check check (length(signature) between 1 and 200),
    constraint failure_clusters_failures_check check (failures >= 1)
);

-- What the failures said. It may be long, so it does not travel in the event: who wants it asks.
create table platform.failure_samples (
    cluster_id uuid    not null,
    position   integer not null,
    sample     text    not null,

    constraint failure_samples_pkey primary key (cluster_id, position),
    constraint failure_samples_cluster_fkey
        foreign key (cluster_id) references platform.failure_clusters (cluster_id),
    constraint failure_samples_position_check check (position >= 1)
);

create table platform.decisions (
    decision_id uuid        not null,
    cluster_id  uuid        not null,
    verdict     text        not null,
    decided_by  text        not null,
    reason      text        not null,
    decided_at  timestamptz not null,

    constraint decisions_pkey primary key (decision_id),
    constraint decisions_cluster_fkey foreign key (cluster_id) references platform.failure_clusters (cluster_id),
    constraint decisions_verdict_check check (verdict in ('approve', 'reject', 'defer')),
    constraint decisions_decided_by_check check (length(decided_by) between 1 and 200),
    constraint decisions_reason_check check (length(reason) between 1 and 2000)
);

-- How many decisions of each kind were made on each day (UTC): counted by the aggregator, after the decision.
create table platform.decision_totals (
    decided_on date   not null,
    verdict    text   not null,
    total      bigint not null,

    constraint decision_totals_pkey primary key (decided_on, verdict),
    constraint decision_totals_verdict_check check (verdict in ('approve', 'reject', 'defer')),
    constraint decision_totals_total_check check (total >= 1)
);

-- approved: worlds has not answered yet; applied and refused: it has, and the curation is closed.
create table platform.curations (
    curation_id uuid        not null,
    cluster_id  uuid        not null,
    decision_id uuid        not null,
    rule        text        not null,
    status      text        not null default 'approved',
    rule_id     uuid,
    refusal     text,
    approved_at timestamptz not null,
    closed_at   timestamptz,

    constraint curations_pkey primary key (curation_id),
    constraint curations_cluster_fkey foreign key (cluster_id) references platform.failure_clusters (cluster_id),
    constraint curations_decision_fkey foreign key (decision_id) references platform.decisions (decision_id),
    constraint curations_rule_check check (length(rule) between 1 and 2000),
    constraint curations_status_check check (
        case status
            when 'approved' then closed_at is null and rule_id is null and refusal is null
            when 'applied' then closed_at is not null and rule_id is not null and refusal is null
            when 'refused' then closed_at is not null and rule_id is null and refusal is not null
            else false
        end
    )
);

grant select, insert on
    platform.system_card_snapshots, platform.failure_clusters, platform.failure_samples, platform.decisions,
    platform.decision_totals, platform.curations
    to platform_app;
grant update (total) on platform.decision_totals to platform_app;
grant update (status, rule_id, refusal, closed_at) on platform.curations to platform_app;
