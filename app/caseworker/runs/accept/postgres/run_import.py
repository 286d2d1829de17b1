"""Copies rows from an ended run to the new run that resumes it: journal entries and their files.

The contents stay in the database. Python reads only the few columns that decide which rows are
imported. The new run has copies, so later changes to the old run do not affect it.

See docs/internals.md, "Recovery".
"""

import asyncio
import time

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.runs.accept.resume import ImportRow, rows_to_import
from caseworker.runs.errors import SourceNotEndedError, SourceNotFoundError
from caseworker.runs.run import TERMINAL, RunKey, RunSource

MANY_LINES = 2_000
"""Number of rows above which the rows to import are selected in a thread."""

LOCK_SOURCE = """
SELECT status FROM runs
WHERE tenant_id = %(tenant)s AND run_id = %(source)s AND request IS NOT NULL
FOR KEY SHARE
"""
"""Lock the run to import from, so that it is not erased during the import."""

LINES = """
SELECT seq, node->>'node_id' AS node_id, node->>'parent_id' AS parent_id, node->>'kind' AS kind,
    node->>'name' AS name, status, call_key, outcome,
    (node->>'start_ts_ms')::bigint AS start_ts_ms, (node->>'end_ts_ms')::bigint AS end_ts_ms,
    node->'metadata'->>'step_type' IS NOT DISTINCT FROM 'external' AS is_external,
    (node->'metadata') ? 'taken_over' AS imported, node->>'error_class' AS error_class,
    CASE WHEN node->>'kind' = 'llm' THEN value->>'incomplete' END IS NOT NULL AS incomplete
FROM journal WHERE tenant_id = %(tenant)s AND run_id = %(source)s ORDER BY seq
"""

_MARKS = """
    CASE WHEN seq = ANY(%(open)s::integer[]) THEN jsonb_build_object('continues',
        jsonb_build_object('run_id', run_id, 'node_id', node->'node_id'))
    ELSE jsonb_build_object('taken_over', coalesce(node->'metadata'->'taken_over',
        jsonb_build_object('run_id', run_id, 'node_id', node->'node_id',
            'start_ts_ms', node->'start_ts_ms', 'end_ts_ms', node->'end_ts_ms',
            'usage', jsonb_build_object('cost_usd', node->'cost_usd',
                'tokens_in', node->'tokens_in', 'tokens_out', node->'tokens_out'))))
    END || CASE WHEN seq = 1 THEN jsonb_build_object('run_id', %(run_id)s::text) ELSE '{}' END"""

_NODES = f"""
    node || jsonb_build_object('start_ts_ms', %(at_ms)s::bigint, 'end_ts_ms', %(at_ms)s::bigint,
        'cost_usd', 0, 'tokens_in', NULL, 'tokens_out', NULL,
        'metadata', (node->'metadata')
            - '{{estimated,waited_ms,waited_for_model_ms,continues,taken_over}}'::text[] || {_MARKS}
    ) || CASE WHEN seq = ANY(%(open)s::integer[]) THEN jsonb_build_object('status', 'created',
        'end_ts_ms', NULL, 'stop_reason', NULL, 'error_class', NULL, 'retries_used', 0)
    ELSE '{{}}' END"""

IMPORT_ROWS = f"""
INSERT INTO calls (
    tenant_id, run_id, seq, status, call_key, request_hash, outcome, value, request, node
)
SELECT tenant_id, %(run_id)s, seq,
    CASE WHEN seq = ANY(%(open)s::integer[]) THEN 'created' ELSE status END, call_key, request_hash,
    CASE WHEN seq = ANY(%(known)s::integer[]) THEN outcome END,
    CASE WHEN seq = ANY(%(known)s::integer[]) THEN value END,
    CASE WHEN seq <> ALL(%(open)s::integer[]) THEN request END, {_NODES}
FROM journal WHERE tenant_id = %(tenant)s AND run_id = %(source)s
    AND seq = ANY(%(known)s::integer[] || %(unknown)s::integer[] || %(open)s::integer[])
"""  # noqa: S608 - nothing of a caller's is in it
"""Copy journal rows. A copy has no cost and no duration; its metadata holds the original usage."""

COPY_FILES = """
INSERT INTO artifacts (
    tenant_id, run_id, name, slot, media_type, size_bytes, sha256, data, created_at
)
SELECT tenant_id, %(run_id)s, name, slot, media_type, size_bytes, sha256, data, created_at
FROM artifacts WHERE tenant_id = %(tenant)s AND run_id = %(source)s
    AND split_part(slot, '-', 1) IN (
        SELECT encode(sha256(convert_to(call_key, 'UTF8')), 'hex') FROM calls
        WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND outcome = 'result'
    )
"""
"""Copy the files of imported calls, matched by the hash of the call key in the column ``slot``."""


async def import_run(connection: AsyncConnection, key: RunKey, source: RunSource) -> None:
    """Import rows from the run ``source``, in the transaction that stores the new run ``key``.

    Raises:
        SourceNotFoundError: the run to import from does not exist.
        SourceNotEndedError: the run to import from has not ended.
        InvalidRunError: the run to import from has no node with the ID ``source.until``.
    """
    parameters = {"tenant": key.tenant, "source": source.run_id, "run_id": key.run_id}
    status = (await connection.exec_driver_sql(LOCK_SOURCE, parameters)).scalar_one_or_none()
    if status is None:
        raise SourceNotFoundError(source.run_id)
    if status not in TERMINAL:
        raise SourceNotEndedError(source.run_id)
    rows = (await connection.exec_driver_sql(LINES, parameters)).mappings().all()
    rows_of_source = [ImportRow(**row) for row in rows]
    if len(rows_of_source) > MANY_LINES:
        selected = await asyncio.to_thread(rows_to_import, rows_of_source, source.until)
    else:
        selected = rows_to_import(rows_of_source, source.until)
    seqs = {"known": selected.known, "unknown": selected.unknown, "open": selected.open}
    at_ms = time.time_ns() // 1_000_000
    await connection.exec_driver_sql(IMPORT_ROWS, {**parameters, **seqs, "at_ms": at_ms})
    await connection.exec_driver_sql(COPY_FILES, parameters)
