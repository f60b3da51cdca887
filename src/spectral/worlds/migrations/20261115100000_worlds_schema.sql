-- The context worlds: world models, their cards, scans of them, and the rules that were learnt from their failures.
--
-- What belongs to another context is kept as an id without a constraint (cluster_id, curation_id): contexts meet
-- through events, never through a foreign key or a grant.

-- Roles belong to the whole server: one that another database's migration creates in the same instant will do.
do $roles$
begin
    if not exists (select from pg_roles where rolname = 'worlds_app') then
        create role worlds_app nologin;
    end if;
exception
    when duplicate_object or unique_violation then
        null;
end
$roles$;

do $membership$
begin
    if not pg_has_role('worlds_app', 'spectral_publisher', 'member')
        or not pg_has_role('worlds_app', 'spectral_worker', 'member')
    then
        grant spectral_publisher, spectral_worker to worlds_app;
    end if;
end
$membership$;

create schema worlds;
revoke all on schema worlds from public;
grant usage on schema worlds to worlds_app;
comment on schema worlds is 'The context worlds. Other contexts learn of it by events and by its protocols.';

create table worlds.world_models (
    world_model_id uuid        not null,
    workspace_id   uuid,
    name           text        not null,
    created_at     timestamptz not null default clock_timestamp(),

    constraint world_models_pkey primary key (world_model_id),
    constraint world_models_name_check check (length(name) between 1 and 200)
);

create table worlds.model_cards (
    world_model_id uuid        not null,
    revision       integer     not null,
    title          text        not null,
    summary        text        not null,
    capabilities   text[]      not null,
    limitations    text[]      not null,
    evaluations    jsonb       not null,
    published_at   timestamptz not null,

    constraint model_cards_pkey primary key (world_model_id, revision),
    constraint model_cards_world_model_fkey
        foreign key (world_model_id) references worlds.world_models (world_model_id),
    constraint model_cards_revision_check check (revision >= 1),
    constraint model_cards_title_check check (length(title) between 1 and 200),
    constraint model_cards_evaluations_check check (jsonb_typeof(evaluations) = 'array')
);

create table worlds.scans (
    scan_id        uuid        not null,
    world_model_id uuid        not null,
    started_at     timestamptz not null default clock_timestamp(),
    completed_at   timestamptz,

    constraint scans_pkey primary key (scan_id),
    constraint scans_world_model_fkey
        foreign key (world_model_id) references worlds.world_models (world_model_id),
    constraint scans_completed_at_check check (completed_at >= started_at)
);

create table worlds.findings (
    scan_id  uuid    not null,
    position integer not null,
    term     text    not null,
    severity text    not null,

    constraint findings_pkey primary key (scan_id, position),
    constraint findings_scan_fkey foreign key (scan_id) references worlds.scans (scan_id),
    constraint findings_position_check check (position >= 1),
    constraint findings_term_check check (length(term) between 1 and 200),
    constraint findings_severity_check check (severity in ('low', 'medium', 'high'))
);

-- Which scans found a term, and how often: made from findings by the indexer, after the scan has been completed.
create table worlds.scan_index (
    term        text    not null,
    scan_id     uuid    not null,
    occurrences integer not null,

    constraint scan_index_pkey primary key (term, scan_id),
    constraint scan_index_scan_fkey foreign key (scan_id) references worlds.scans (scan_id),
    constraint scan_index_occurrences_check check (occurrences >= 1)
);

-- A cluster of failures that may become a rule; one for each cluster, however often it is reported.
create table worlds.rule_candidates (
    candidate_id   uuid        not null default gen_random_uuid(),
    cluster_id     uuid        not null,
    world_model_id uuid        not null,
    signature      text        not null,
    failures       integer     not null,
    samples        text[]      not null,
    proposed_at    timestamptz not null default clock_timestamp(),

    constraint rule_candidates_pkey primary key (candidate_id),
    constraint rule_candidates_cluster_key unique (cluster_id),
    constraint rule_candidates_world_model_fkey
        foreign key (world_model_id) references worlds.world_models (world_model_id),
    constraint rule_candidates_failures_check check (failures >= 1)
);

-- A candidate that a curation made a rule; a candidate becomes one rule at most.
create table worlds.rules (
    rule_id      uuid        not null default gen_random_uuid(),
    candidate_id uuid        not null,
    curation_id  uuid        not null,
    rule         text        not null,
    adopted_at   timestamptz not null default clock_timestamp(),

    constraint rules_pkey primary key (rule_id),
    constraint rules_candidate_key unique (candidate_id),
    constraint rules_curation_key unique (curation_id),
    constraint rules_candidate_fkey
        foreign key (candidate_id) references worlds.rule_candidates (candidate_id),
    constraint rules_rule_check check (length(rule) between 1 and 2000)
);

grant select, insert on
    worlds.world_models, worlds.model_cards, worlds.scans, worlds.findings, worlds.scan_index,
    worlds.rule_candidates, worlds.rules
    to worlds_app;
grant update (completed_at) on worlds.scans to worlds_app;
-- Two publications of one card queue for its world model; locking a row needs the right to update something of it.
grant update (name) on worlds.world_models to worlds_app;
