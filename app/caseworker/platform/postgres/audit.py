"""Records administrative acts in the transaction that performs them."""

from enum import StrEnum
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.caller import ACTING


class Act(StrEnum):
    """An administrative act; the value is public."""

    KEY_CREATED = "key.created"
    KEY_ROTATED = "key.rotated"
    KEY_REVOKED = "key.revoked"
    QUOTA_SET = "quota.set"
    QUOTA_REMOVED = "quota.removed"
    RETENTION_SET = "retention_days.set"
    RUN_CANCELLED = "run.cancelled"
    """Only by `POST /runs/cancel`; the receipt of a single cancel request names its caller."""
    RUN_ERASED = "run.erased"
    DATA_ERASED = "data.erased"
    """The target has the keys of the metadata, or a digest of the tenant's name."""
    AGENT_REGISTERED = "agent.registered"
    AGENT_DELETED = "agent.deleted"
    GRAPH_REGISTERED = "graph.registered"
    GRAPH_DELETED = "graph.deleted"
    SCHEDULE_SET = "schedule.set"
    SCHEDULE_DELETED = "schedule.deleted"
    CREDENTIALS_SET = "mcp_credentials.set"
    CREDENTIALS_DELETED = "mcp_credentials.deleted"
    SECRET_ROTATED = "webhook_secret.rotated"  # noqa: S105 - the name of an act
    DRAIN_REQUESTED = "drain.requested"


_RECORD: Final = """
INSERT INTO audit (tenant_id, action, target, actor, actor_tenant, actor_key_id, request_id)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""


async def record(connection: AsyncConnection, tenant: str, act: Act, target: str) -> None:
    """Record an act on ``target``, which belongs to ``tenant``, by the caller of this request.

    Outside of a request, which is on the command line, the operator is the caller. ``target`` is a
    name or an ID, never a secret.
    """
    by, request_id = ACTING.get(), structlog.contextvars.get_contextvars().get("request_id")
    row = (tenant, act.value, target, by.name, by.tenant, by.key_id, request_id)
    await connection.exec_driver_sql(_RECORD, row)
