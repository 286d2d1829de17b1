CREATE TABLE runs (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    kind text,
    status text,
    request jsonb,
    request_hash text,
    idempotency_key text,
    metadata jsonb,
    fence integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    worker_id text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    queued_at timestamptz,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    active_seconds double precision NOT NULL DEFAULT 0,
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    cancel_reason text,
    cancel_delivered_at timestamptz,
    pending_cancel_expires_at timestamptz,
    finish_reason text,
    result jsonb,
    usage jsonb,
    stop jsonb,
    losses integer NOT NULL DEFAULT 0,
    ended_calls integer NOT NULL DEFAULT 0,
    webhook jsonb,
    priority smallint NOT NULL DEFAULT 0,
    concurrency_key text,
    concurrency_limit integer,
    deadline timestamptz,
    reserved_cost_usd numeric,
    PRIMARY KEY (tenant_id, run_id),
    CONSTRAINT runs_end_has_time CHECK (COALESCE((status IN ('completed', 'failed', 'halted', 'cancelled')), false) = (finished_at IS NOT NULL)),
    CONSTRAINT runs_pending_cancel_or_run CHECK ((request IS NULL) = (status IS NULL)),
    CONSTRAINT runs_running_has_worker CHECK (status IS DISTINCT FROM 'running' OR worker_id IS NOT NULL),
    CONSTRAINT runs_status_known CHECK (status IN ('queued', 'running', 'waiting') OR status IN ('completed', 'failed', 'halted', 'cancelled')),
    CONSTRAINT runs_waiting_has_no_worker CHECK (status IS DISTINCT FROM 'waiting' OR worker_id IS NULL)
) WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.1');
CREATE INDEX runs_by_agent ON runs (tenant_id, ((request #>> '{graph_ref,name}'::text[])), created_at DESC, run_id DESC) WHERE request IS NOT NULL AND kind = 'agent';
CREATE INDEX runs_by_end ON runs (tenant_id, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX runs_by_kind ON runs (tenant_id, kind, created_at DESC, run_id DESC) WHERE request IS NOT NULL AND kind <> 'case';
CREATE INDEX runs_by_metadata ON runs USING gin (metadata jsonb_path_ops) WHERE request IS NOT NULL AND metadata <> '{}'::jsonb;
CREATE INDEX runs_by_status ON runs (tenant_id, status, created_at DESC, run_id DESC) WHERE request IS NOT NULL;
CREATE INDEX runs_holding_keys ON runs (tenant_id, concurrency_key) WHERE concurrency_key IS NOT NULL AND started_at IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX runs_idempotency_key ON runs (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_newest ON runs (tenant_id, created_at DESC, run_id DESC) WHERE request IS NOT NULL;
CREATE INDEX runs_next ON runs (tenant_id, priority DESC, queued_at) WHERE status = 'queued';
CREATE INDEX runs_next_of_key ON runs (tenant_id, concurrency_key, concurrency_limit, priority DESC, queued_at) WHERE status = 'queued' AND concurrency_key IS NOT NULL;
CREATE INDEX runs_next_without_key ON runs (tenant_id, priority DESC, queued_at) WHERE status = 'queued' AND (concurrency_key IS NULL OR started_at IS NOT NULL);
CREATE INDEX runs_of_worker ON runs (worker_id) WHERE status = 'running';
CREATE INDEX runs_pending_cancels ON runs (tenant_id, pending_cancel_expires_at) WHERE request IS NULL;
CREATE INDEX runs_queued ON runs (queued_at) WHERE status = 'queued';
CREATE INDEX runs_that_wait ON runs (queued_at) WHERE status = 'waiting';
CREATE INDEX runs_unbegun_deadlines ON runs (deadline) WHERE deadline IS NOT NULL AND status = 'queued';

CREATE TABLE calls (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    seq integer NOT NULL,
    status text NOT NULL,
    call_key text,
    request_hash text NOT NULL DEFAULT '',
    charge jsonb DEFAULT '{}'::jsonb,
    outcome text,
    value json,
    node jsonb,
    request json,
    brief json,
    PRIMARY KEY (tenant_id, run_id, seq),
    CONSTRAINT calls_status_known CHECK (status IN ('created', 'running', 'success', 'fail', 'halt'))
) WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.1');

CREATE TABLE events (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    seq integer NOT NULL,
    ts timestamptz NOT NULL DEFAULT clock_timestamp(),
    type text NOT NULL,
    step_id text,
    node_id text,
    data jsonb DEFAULT '{}'::jsonb,
    once_key text,
    brief text,
    PRIMARY KEY (tenant_id, run_id, seq)
) WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.1');
CREATE UNIQUE INDEX events_one_end ON events (tenant_id, run_id, node_id) WHERE type IN ('step.completed', 'step.error', 'step.cancelled');
CREATE UNIQUE INDEX events_one_run_end ON events (tenant_id, run_id) WHERE type IN ('run.completed', 'run.failed', 'run.halted', 'run.cancelled');
CREATE UNIQUE INDEX events_one_start ON events (tenant_id, run_id, step_id) WHERE type = 'step.started';

CREATE TABLE snapshots (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    snapshot json NOT NULL,
    PRIMARY KEY (tenant_id, run_id),
    CONSTRAINT snapshots_tenant_id_run_id_fkey FOREIGN KEY (tenant_id, run_id) REFERENCES runs(tenant_id, run_id) ON DELETE CASCADE
);

CREATE TABLE workers (
    worker_id text NOT NULL,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    host text,
    pid integer,
    started_at timestamptz NOT NULL DEFAULT now(),
    drain_requested_at timestamptz,
    PRIMARY KEY (worker_id)
) WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');

CREATE TABLE definitions (
    tenant_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    description text,
    definition json,
    uses jsonb NOT NULL DEFAULT '[]'::jsonb,
    sha256 text NOT NULL,
    size_bytes integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL DEFAULT 'graph',
    PRIMARY KEY (tenant_id, kind, name, version),
    CONSTRAINT definitions_kind_is_known CHECK (kind IN ('graph', 'agent')),
    CONSTRAINT graphs_edges_say_their_channel CHECK (NOT jsonb_path_exists((definition)::jsonb, '$."edges"[*]?(!((@."data".type() == "object" && @."data"."channel".type() == "string") && (@."data"."channel" == "flow" || @."data"."channel" == "link")))'::jsonpath) AND NOT jsonb_path_exists((definition)::jsonb, '$.**?(@."type" == "subgraph" || @."type" == "map")."data"."graph"."edges"[*]?(!((@."data".type() == "object" && @."data"."channel".type() == "string") && (@."data"."channel" == "flow" || @."data"."channel" == "link")))'::jsonpath)),
    CONSTRAINT graphs_name_fits_a_path CHECK (name ~ '^[A-Za-z0-9._-]{1,64}$'),
    CONSTRAINT graphs_version_counts_from_one CHECK (version > 0)
);

CREATE TABLE threads (
    tenant_id text NOT NULL,
    thread_id text NOT NULL,
    kind text NOT NULL,
    definition json NOT NULL,
    inputs json NOT NULL,
    tools json NOT NULL,
    title text,
    metadata jsonb NOT NULL,
    request_hash text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, thread_id),
    CONSTRAINT threads_kind_check CHECK (kind IN ('graph', 'agent'))
);
CREATE INDEX threads_by_age ON threads (tenant_id, created_at DESC, thread_id DESC);

CREATE TABLE messages (
    tenant_id text NOT NULL,
    thread_id text NOT NULL,
    message_id text NOT NULL,
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    parent_id text,
    role text NOT NULL,
    content text,
    run_id text,
    ends jsonb NOT NULL,
    request_hash text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_erased_at timestamptz,
    PRIMARY KEY (tenant_id, thread_id, message_id),
    CONSTRAINT messages_follow_one FOREIGN KEY (tenant_id, thread_id, parent_id) REFERENCES messages(tenant_id, thread_id, message_id) ON DELETE CASCADE,
    CONSTRAINT messages_have_text_or_run CHECK (CASE role WHEN 'user' THEN ((content IS NOT NULL) AND (run_id IS NULL)) ELSE ((content IS NULL) AND (run_id IS NOT NULL)) END),
    CONSTRAINT messages_of_a_thread FOREIGN KEY (tenant_id, thread_id) REFERENCES threads(tenant_id, thread_id) ON DELETE CASCADE,
    CONSTRAINT messages_role_check CHECK (role IN ('user', 'assistant'))
);
CREATE INDEX messages_by_parent ON messages (tenant_id, thread_id, parent_id);
CREATE INDEX messages_in_order ON messages (tenant_id, thread_id, seq);
CREATE UNIQUE INDEX messages_run ON messages (tenant_id, run_id);

CREATE TABLE api_keys (
    key_id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    sha256 bytea NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    rotated_to text,
    PRIMARY KEY (key_id),
    CONSTRAINT api_keys_scopes_check CHECK (scopes <@ ARRAY['read', 'run', 'admin'] AND cardinality(scopes) > 0),
    CONSTRAINT api_keys_sha256_check CHECK (octet_length(sha256) = 32)
);
CREATE INDEX api_keys_by_age ON api_keys (tenant_id, created_at DESC, key_id DESC);

CREATE TABLE approvals (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    approval_id text NOT NULL,
    node_id text NOT NULL,
    call_key text NOT NULL,
    subject text NOT NULL,
    message text NOT NULL,
    arguments json NOT NULL,
    schema json,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    decision text,
    decided_by text,
    decided_at timestamptz,
    reason text,
    changed_arguments json,
    PRIMARY KEY (tenant_id, run_id, approval_id),
    CONSTRAINT approvals_decision_has_time CHECK ((decision IS NULL) = (decided_at IS NULL)),
    CONSTRAINT approvals_decision_known CHECK (decision IN ('approved', 'refused', 'timed_out')),
    CONSTRAINT approvals_person_decides CHECK (COALESCE((decision IN ('approved', 'refused')), false) = (decided_by IS NOT NULL)),
    CONSTRAINT approvals_tenant_id_run_id_fkey FOREIGN KEY (tenant_id, run_id) REFERENCES runs(tenant_id, run_id) ON DELETE CASCADE
);
CREATE INDEX approvals_open ON approvals (tenant_id, requested_at, run_id, approval_id) WHERE decision IS NULL;

CREATE TABLE artifacts (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    slot text NOT NULL,
    media_type text NOT NULL,
    size_bytes integer NOT NULL,
    sha256 text NOT NULL,
    data bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, run_id, name),
    CONSTRAINT artifacts_digest_in_hex CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    CONSTRAINT artifacts_name_fits_a_path CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    CONSTRAINT artifacts_one_a_slot UNIQUE (tenant_id, run_id, slot),
    CONSTRAINT artifacts_tenant_id_run_id_fkey FOREIGN KEY (tenant_id, run_id) REFERENCES runs(tenant_id, run_id) ON DELETE CASCADE,
    CONSTRAINT artifacts_whole CHECK (size_bytes = octet_length(data))
);
ALTER TABLE artifacts ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE UNLOGGED TABLE provider_limits (
    model text NOT NULL,
    requests double precision NOT NULL,
    tokens double precision NOT NULL,
    refilled_at timestamptz NOT NULL,
    served double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (model)
);
COMMENT ON COLUMN provider_limits.refilled_at IS 'In the future while the model is paused.';
COMMENT ON COLUMN provider_limits.served IS 'Position of the last request that got a rate slot, in seconds of the capacity of the model.';

CREATE UNLOGGED TABLE provider_turns (
    model text NOT NULL,
    tenant_id text NOT NULL,
    process text NOT NULL,
    place double precision NOT NULL,
    requests double precision NOT NULL,
    tokens double precision NOT NULL,
    due_at timestamptz NOT NULL,
    PRIMARY KEY (model, tenant_id, process)
);
COMMENT ON COLUMN provider_turns.place IS 'The lowest position is next. Each tenant continues from its own last position, or from the last one served, so tenants alternate regardless of the order of arrival.';
COMMENT ON COLUMN provider_turns.due_at IS 'When the entry asks again; an overdue entry is skipped.';

CREATE TABLE quota_days (
    tenant_id text NOT NULL,
    day date NOT NULL,
    cost_usd numeric NOT NULL DEFAULT 0,
    reserved_usd numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, day)
);

CREATE TABLE quota_rates (
    tenant_id text NOT NULL,
    available double precision NOT NULL,
    refilled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id)
);

CREATE TABLE quotas (
    tenant_id text NOT NULL,
    max_running integer,
    max_queued integer,
    max_runs_per_minute integer,
    max_cost_usd_per_day numeric,
    max_cost_usd_per_month numeric,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id),
    CONSTRAINT quotas_max_cost_usd_per_day_check CHECK (max_cost_usd_per_day >= (0)::numeric),
    CONSTRAINT quotas_max_cost_usd_per_month_check CHECK (max_cost_usd_per_month >= (0)::numeric),
    CONSTRAINT quotas_max_queued_check CHECK (max_queued >= 0),
    CONSTRAINT quotas_max_running_check CHECK (max_running >= 0),
    CONSTRAINT quotas_max_runs_per_minute_check CHECK (max_runs_per_minute >= 0)
);

CREATE TABLE retention (
    tenant_id text NOT NULL,
    record text NOT NULL,
    days integer,
    swept_until timestamptz,
    PRIMARY KEY (tenant_id, record),
    CONSTRAINT retention_days_check CHECK (days = '-1'::integer OR days > 0)
);

CREATE TABLE schedules (
    tenant_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    schedule_id uuid NOT NULL DEFAULT gen_random_uuid(),
    cron text NOT NULL,
    timezone text NOT NULL,
    catch_up text NOT NULL,
    max_catch_up integer NOT NULL,
    overlap text NOT NULL,
    paused boolean NOT NULL,
    sent json NOT NULL,
    request jsonb NOT NULL,
    request_hash text NOT NULL,
    metadata jsonb NOT NULL,
    webhook jsonb,
    next_at timestamptz,
    last_at timestamptz,
    last_run_id text,
    skipped bigint NOT NULL DEFAULT 0,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, name),
    CONSTRAINT schedules_catch_up_check CHECK (catch_up IN ('skip', 'one', 'all')),
    CONSTRAINT schedules_fire_unless_paused CHECK (paused = (next_at IS NULL)),
    CONSTRAINT schedules_name_check CHECK (name ~ '^[A-Za-z0-9._-]{1,64}$'),
    CONSTRAINT schedules_overlap_check CHECK (overlap IN ('allow', 'skip', 'cancel_running'))
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;

CREATE TABLE webhook_deliveries (
    tenant_id text NOT NULL,
    delivery_id text NOT NULL DEFAULT (gen_random_uuid())::text,
    run_id text NOT NULL,
    type text NOT NULL,
    url text NOT NULL,
    status text NOT NULL DEFAULT 'pending',
    attempts integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at timestamptz DEFAULT clock_timestamp(),
    last_attempt_at timestamptz,
    last_status_code integer,
    last_error text,
    delivered_at timestamptz,
    PRIMARY KEY (tenant_id, delivery_id),
    CONSTRAINT webhook_deliveries_one_an_end UNIQUE (tenant_id, run_id, type),
    CONSTRAINT webhook_deliveries_pending_is_due CHECK ((status = 'pending') = (due_at IS NOT NULL)),
    CONSTRAINT webhook_deliveries_status_check CHECK (status IN ('pending', 'delivered', 'dead')),
    CONSTRAINT webhook_deliveries_tenant_id_run_id_fkey FOREIGN KEY (tenant_id, run_id) REFERENCES runs(tenant_id, run_id) ON DELETE CASCADE
);
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (tenant_id, created_at DESC, delivery_id DESC) WHERE status = 'dead';
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_newest ON webhook_deliveries (tenant_id, created_at DESC, delivery_id DESC);

CREATE TABLE webhook_secrets (
    tenant_id text NOT NULL,
    version integer NOT NULL,
    secret text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    PRIMARY KEY (tenant_id, version)
);
