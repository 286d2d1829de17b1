"""Storage for webhook deliveries and their signing secrets in Postgres."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Integer, Table, Text, select, tuple_
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.webhooks.delivery import (
    Attempt,
    Delivery,
    DeliveryNotFoundError,
    DeliveryPendingError,
    DeliveryStatus,
    EndpointAnswer,
    SecretInfo,
)
from caseworker.features.webhooks.signing_secrets import SecretBox
from caseworker.platform.paging import Page
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.platform.postgres.locks import LOCK_WEBHOOK_SECRETS
from caseworker.runs.postgres.queue_jobs import QueuedJob, defer
from caseworker.runs.postgres.rows import Row, decode_cursor, instant_and_id, page_of
from caseworker.runs.postgres.run_statements import DELIVER, WEBHOOKS_QUEUE
from caseworker.runs.postgres.tables import INSTANT, columns, metadata

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("delivery_id", Text, primary_key=True),
    *columns(Text, "run_id type url status", nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    *columns(INSTANT, "due_at last_attempt_at delivered_at"),
    Column("last_status_code", Integer),
    Column("last_error", Text),
    Column("data", JSONB),
    Column("notice", Text, nullable=False),
)

_BEGIN = """
UPDATE webhook_deliveries SET attempts = attempts + 1, last_attempt_at = now.at,
    due_at = now.at + make_interval(secs => %s::float8)
FROM (SELECT clock_timestamp() AS at) AS now
WHERE tenant_id = %s AND delivery_id = %s AND status = 'pending' AND due_at <= now.at
RETURNING webhook_deliveries.*
"""

_END = """
UPDATE webhook_deliveries SET status = %(status)s, last_status_code = %(code)s,
    last_error = %(error)s,
    due_at = CASE WHEN %(status)s = 'pending'
        THEN clock_timestamp() + make_interval(secs => %(pause)s::float8) END,
    delivered_at = CASE WHEN %(status)s = 'delivered' THEN clock_timestamp() END
WHERE tenant_id = %(tenant)s AND delivery_id = %(id)s AND status = 'pending'
    AND last_attempt_at = %(attempt_at)s
RETURNING due_at
"""
"""Has no effect if another worker has claimed the delivery in the meantime."""

_REDELIVER = """
UPDATE webhook_deliveries SET status = 'pending', attempts = 0, due_at = clock_timestamp(),
    delivered_at = NULL
WHERE tenant_id = %s AND delivery_id = %s AND status <> 'pending'
RETURNING webhook_deliveries.*
"""

_SECRETS = """
SELECT version, secret, created_at, expires_at FROM webhook_secrets
WHERE tenant_id = %s AND (expires_at IS NULL OR expires_at > statement_timestamp())
ORDER BY version DESC
"""

_EXPIRE = """
UPDATE webhook_secrets SET expires_at = clock_timestamp() + make_interval(secs => %s::float8)
WHERE tenant_id = %s AND expires_at IS NULL
"""

_DROP_OLD = "DELETE FROM webhook_secrets WHERE tenant_id = %s AND expires_at IS NOT NULL"

_ADD = """
INSERT INTO webhook_secrets (tenant_id, version, secret)
SELECT %(tenant)s, coalesce(max(version), 0) + 1, %(secret)s
FROM webhook_secrets WHERE tenant_id = %(tenant)s
RETURNING version, created_at, expires_at
"""

NEXT_DUE = """
SELECT extract(epoch FROM due_at - now())::float8 FROM webhook_deliveries
WHERE status = 'pending' ORDER BY due_at LIMIT 1
"""
"""Return the seconds until the next delivery is due."""

_FORGOTTEN = """
SELECT tenant_id, delivery_id FROM (
    SELECT tenant_id, delivery_id FROM webhook_deliveries
    WHERE status = 'pending' AND due_at < statement_timestamp() - make_interval(secs => %s::float8)
    ORDER BY due_at
) due LEFT JOIN LATERAL (
    SELECT id FROM procrastinate_jobs
    WHERE queueing_lock = 'webhook/' || due.delivery_id AND status = 'todo' LIMIT 1
) job ON true
WHERE job.id IS NULL LIMIT 200
"""
"""Find deliveries whose job was lost, or whose process died during the attempt."""

_COLUMNS = tuple(Delivery.__dataclass_fields__.keys() - {"tenant", "status"})


@dataclass(frozen=True, slots=True)
class PostgresWebhooks:
    """Stores deliveries and signing secrets in Postgres; see ``delivery.py``."""

    engines: Engines
    box: SecretBox

    async def begin(self, tenant: str, delivery_id: str, *, claim_seconds: float) -> Attempt | None:
        """Claim a delivery and count the attempt; return None if it is not due."""
        async with transaction(self.engines.work) as connection:
            parameters = (claim_seconds, tenant, delivery_id)
            claimed = await connection.exec_driver_sql(_BEGIN, parameters)
            row = claimed.mappings().one_or_none()
            if row is None:
                return None
            secrets = (await connection.exec_driver_sql(_SECRETS, (tenant,))).all()
        return Attempt(
            _delivery(row), self.box.opened([secret_row.secret for secret_row in secrets])
        )

    async def end(
        self,
        delivery: Delivery,
        answer: EndpointAnswer,
        *,
        status: DeliveryStatus,
        pause_seconds: float,
    ) -> None:
        """Store the outcome of an attempt; if ``pending``, queue the next one in ``pause_seconds``.

        No effect if another worker has claimed the delivery since then: its ``last_attempt_at``
        differs.
        """
        ended = {
            "status": status.value,
            "code": answer.status_code,
            "error": answer.error,
            "pause": pause_seconds,
            "tenant": delivery.tenant,
            "id": delivery.delivery_id,
            "attempt_at": delivery.last_attempt_at,
        }
        async with transaction(self.engines.work) as connection:
            row = (await connection.exec_driver_sql(_END, ended)).one_or_none()
            if row is not None and row.due_at is not None:
                await self._defer(connection, delivery.tenant, delivery.delivery_id, row.due_at)

    async def find(
        self,
        tenant: str,
        *,
        status: DeliveryStatus | None,
        run_id: str | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Delivery]:
        """Return a page of deliveries, newest first."""
        table = webhook_deliveries.c
        query = select(webhook_deliveries).where(table.tenant_id == tenant)
        if status is not None:
            query = query.where(table.status == status.value)
        if run_id is not None:
            query = query.where(table.run_id == run_id)
        if cursor is not None:
            place = tuple_(table.created_at, table.delivery_id)
            query = query.where(
                place < tuple_(*decode_cursor("deliveries", cursor, instant_and_id))
            )
        query = query.order_by(table.created_at.desc(), table.delivery_id.desc())
        async with transaction(self.engines.work, tenant) as connection:
            rows = (await connection.execute(query.limit(limit + 1))).mappings().all()
        return page_of(
            "deliveries",
            rows,
            limit,
            lambda row: [row["created_at"].isoformat(), row["delivery_id"]],
            _delivery,
        )

    async def get(self, tenant: str, delivery_id: str) -> Delivery:
        """Return a delivery.

        Raises:
            DeliveryNotFoundError: no such delivery exists.
        """
        table = webhook_deliveries.c
        query = select(webhook_deliveries).where(
            table.tenant_id == tenant, table.delivery_id == delivery_id
        )
        async with transaction(self.engines.work, tenant) as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            raise DeliveryNotFoundError
        return _delivery(row)

    async def redeliver(self, tenant: str, delivery_id: str) -> Delivery:
        """Make a delivered or dead delivery due now, and set its attempt count to zero.

        Raises:
            DeliveryNotFoundError: no such delivery exists.
            DeliveryPendingError: the delivery is still pending.
        """
        async with transaction(self.engines.work) as connection:
            changed = await connection.exec_driver_sql(_REDELIVER, (tenant, delivery_id))
            row = changed.mappings().one_or_none()
            if row is not None:
                await self._defer(connection, tenant, delivery_id, None)
                return _delivery(row)
        await self.get(tenant, delivery_id)
        raise DeliveryPendingError

    async def rotate(self, tenant: str, secret: str, *, previous_seconds: float) -> SecretInfo:
        """Store ``secret`` as the newest one.

        The previous secret also signs for ``previous_seconds``; older ones are deleted.
        """
        async with transaction(self.engines.work, tenant) as connection:
            await connection.exec_driver_sql(LOCK_WEBHOOK_SECRETS, (tenant,))
            await connection.exec_driver_sql(_DROP_OLD, (tenant,))
            await connection.exec_driver_sql(_EXPIRE, (previous_seconds, tenant))
            values = {"tenant": tenant, "secret": self.box.sealed(secret)}
            row = (await connection.exec_driver_sql(_ADD, values)).one()
            await record(connection, tenant, Act.SECRET_ROTATED, f"version {row.version}")
        return SecretInfo(row.version, row.created_at, row.expires_at)

    async def secrets(self, tenant: str) -> Sequence[SecretInfo]:
        """Return the active signing secrets, newest first."""
        async with transaction(self.engines.work, tenant) as connection:
            rows = (await connection.exec_driver_sql(_SECRETS, (tenant,))).all()
        return [SecretInfo(row.version, row.created_at, row.expires_at) for row in rows]

    async def signing_secrets(self, tenant: str) -> Sequence[str]:
        """Return the active signing secrets, newest first, that the configured key can decrypt."""
        async with transaction(self.engines.work, tenant) as connection:
            rows = (await connection.exec_driver_sql(_SECRETS, (tenant,))).all()
        return self.box.opened([row.secret for row in rows])

    async def rescue(self, late_seconds: float) -> int:
        """Queue a job for each delivery overdue by ``late_seconds``; return their number."""
        async with transaction(self.engines.work) as connection:
            rows = (await connection.exec_driver_sql(_FORGOTTEN, (late_seconds,))).all()
            for row in rows:
                await self._defer(connection, row.tenant_id, row.delivery_id, None)
        return len(rows)

    async def _defer(
        self, connection: AsyncConnection, tenant: str, delivery_id: str, at: datetime | None
    ) -> None:
        job = QueuedJob(
            queue=WEBHOOKS_QUEUE,
            task=DELIVER,
            lock=f"webhook/{delivery_id}",
            arguments={"tenant": tenant, "delivery_id": delivery_id},
            at=at,
        )
        await defer(connection, [job])


def _delivery(row: Row) -> Delivery:
    values: dict[str, Any] = {name: row[name] for name in _COLUMNS}
    return Delivery(tenant=row["tenant_id"], status=DeliveryStatus(row["status"]), **values)
