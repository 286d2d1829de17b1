"""Index runs by tenant, metadata and further filters of a list together, and other lists.

All indexes are built concurrently, without blocking writes. An interrupted upgrade is repeated from
the start; an index that was not completed is replaced. The previous release finds its columns at
the start of the new indexes. Only its lists by metadata read all runs of their tenant.

Revision: 20261130_1330
Revises: 20261130_1320
"""

from collections.abc import Iterable, Mapping

from alembic import op

revision = "20261130_1330"
down_revision = "20261130_1320"
branch_labels = None
depends_on = None

AGENT = """coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}',
    request #>> '{graph,steps,0,data,external,name}')"""
RUNS_AN_AGENT = """request IS NOT NULL AND (kind IN ('agent', 'external')
    OR request #>> '{chat,agent,name}' IS NOT NULL)"""
TERMS = f"""jsonb_set('{{}}',
    ARRAY[tenant_id || ' ' || ((created_at AT TIME ZONE 'UTC')::date - '2000-01-01'::date)],
    jsonb_set(jsonb_set(jsonb_set(jsonb_set('{{}}', '{{m}}', metadata),
        ARRAY['s' || status], 'null'), ARRAY['k' || kind], 'null'),
        ARRAY['a' || coalesce(CASE WHEN kind IN ('agent', 'external') THEN {AGENT}
            ELSE request #>> '{{chat,agent,name}}' END, '')], 'null'))"""
HAS_METADATA = "request IS NOT NULL AND metadata <> '{}'"

NEW = {
    # The pending list of a GIN index is read by each search, so it is kept at its smallest size.
    "runs_by_terms": f"""ON runs USING gin (({TERMS}) jsonb_path_ops)
        WITH (gin_pending_list_limit = 64) WHERE {HAS_METADATA}""",
    "runs_by_kind_and_status": """ON runs
        (tenant_id, kind, created_at DESC, run_id DESC, status) WHERE request IS NOT NULL""",
    "runs_by_status_and_kind": """ON runs
        (tenant_id, status, created_at DESC, run_id DESC, kind) WHERE request IS NOT NULL""",
    "runs_by_agent_and_status": f"""ON runs (tenant_id, ({AGENT}), created_at DESC, run_id DESC,
        (coalesce(status, '')), (coalesce(kind, ''))) WHERE {RUNS_AN_AGENT}""",
    "runs_by_origin": """ON runs (tenant_id, (coalesce(request #>> '{source,run_id}',
        request #>> '{graph,steps,0,data,external,parent}')))
        WHERE request #>> '{source,run_id}' IS NOT NULL OR kind = 'external'""",
    "webhook_deliveries_by_status": """ON webhook_deliveries
        (tenant_id, status, created_at DESC, delivery_id DESC)""",
    "api_keys_of_all": "ON api_keys (created_at DESC, key_id DESC)",
    "definitions_newest": """ON definitions (tenant_id, kind, name, version DESC)
        WHERE definition IS NOT NULL""",
    "approvals_undecided": """ON approvals (tenant_id, requested_at, run_id, approval_id)
        WHERE decision IS NULL AND run_ended IS NOT TRUE""",
    "audit_by_time": "ON audit (tenant_id, at DESC, entry_id DESC)",
    "audit_by_action": "ON audit (tenant_id, action, at DESC, entry_id DESC)",
    "audit_of_all_by_time": "ON audit (at DESC, entry_id DESC)",
    "audit_of_all_by_action": "ON audit (action, at DESC, entry_id DESC)",
}

OLD = {
    "runs_by_metadata": f"ON runs USING gin (metadata jsonb_path_ops) WHERE {HAS_METADATA}",
    "runs_by_kind": """ON runs (tenant_id, kind, created_at DESC, run_id DESC)
        WHERE request IS NOT NULL AND kind <> 'case'""",
    "runs_by_status": """ON runs (tenant_id, status, created_at DESC, run_id DESC)
        WHERE request IS NOT NULL""",
    "runs_by_agent_name": f"""ON runs (tenant_id, ({AGENT}), created_at DESC, run_id DESC)
        WHERE {RUNS_AN_AGENT}""",
    "webhook_deliveries_dead": """ON webhook_deliveries
        (tenant_id, created_at DESC, delivery_id DESC) WHERE status = 'dead'""",
    "approvals_open": """ON approvals (tenant_id, requested_at, run_id, approval_id)
        WHERE decision IS NULL""",
}

ENDED = """UPDATE approvals SET run_ended = true FROM runs
    WHERE runs.tenant_id = approvals.tenant_id AND runs.run_id = approvals.run_id
        AND decision IS NULL AND run_ended IS NOT TRUE AND finished_at IS NOT NULL"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE approvals ADD COLUMN IF NOT EXISTS run_ended boolean")
    with op.get_context().autocommit_block():
        op.execute(ENDED)
        _replace(NEW, instead_of=OLD)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        _replace(OLD, instead_of=NEW)
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE approvals DROP COLUMN IF EXISTS run_ended")


def _replace(indexes: Mapping[str, str], *, instead_of: Iterable[str]) -> None:
    """Build indexes one by one, then drop the replaced ones; each is a transaction."""
    # A concurrent build blocks no one while it waits for older transactions, however long.
    op.execute("SET lock_timeout = 0")
    for name, definition in indexes.items():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} {definition}")
    for name in instead_of:
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    op.execute("RESET lock_timeout")
