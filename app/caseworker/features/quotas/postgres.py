"""Storage for the quotas of tenants in Postgres; the transactions that accept runs enforce them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.caller import DEFAULT_TENANT
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.platform.postgres.locks import LOCK_TENANT
from caseworker.runs.accept.postgres.quotas import (
    COSTS,
    COUNTS,
    FIELDS,
    QUOTAS,
    STORED_USE,
    quota_in,
    row_of,
    usual_of,
)
from caseworker.runs.postgres.listener import ACCOUNT_CHANNEL
from caseworker.runs.postgres.rows import Row
from caseworker.runs.quotas import STORED, WARN_PERCENT, NearlyFull, Quota, QuotaUse, TenantQuota

_PUT = f"""
INSERT INTO quotas (tenant_id, {", ".join(FIELDS)})
VALUES (%(tenant)s, {", ".join(f"%({name})s" for name in FIELDS)})
ON CONFLICT (tenant_id) DO UPDATE SET updated_at = excluded.updated_at,
    {", ".join(f"{name} = excluded.{name}" for name in FIELDS)}
"""  # noqa: S608 - the names of our own fields

_NEARLY_FULL = f"""
SELECT used.tenant_id AS tenant, dimension, used::bigint, most AS limit
FROM (SELECT tenant_id, sum(bytes) AS stored_bytes, sum(definitions) AS definitions,
    sum(threads) AS threads FROM stored GROUP BY tenant_id) used
LEFT JOIN quotas USING (tenant_id)
CROSS JOIN LATERAL (VALUES {
    ", ".join(
        f"('{name}', {name}, CASE WHEN quotas.tenant_id IS NOT NULL THEN max_{name} "
        f"WHEN used.tenant_id <> '{DEFAULT_TENANT}' THEN %({name})s END)"
        for name in STORED
    )
}) AS each(dimension, used, most)
WHERE 100 * used >= {WARN_PERCENT} * most ORDER BY 1, 2
"""  # noqa: S608


class PostgresQuotas:
    """Stores quotas in Postgres."""

    def __init__(self, pool: Pool, usual: Quota) -> None:
        """Apply the quota ``usual`` to tenants that have none of their own."""
        self._pool = pool
        self._usual = usual

    async def get(self, tenant: str) -> TenantQuota:
        """Return the quota of a tenant, own or default, and its current usage."""
        counted = {"tenant": tenant, "key": None, "most_queued": 2**31, "looked_at": 0}
        counts: dict[str, Any] = {}
        async with transaction(self._pool) as connection:
            row = await row_of(connection, tenant)
            for statement in (COUNTS, COSTS, STORED_USE):
                counts |= (await connection.exec_driver_sql(statement, counted)).mappings().one()
        use = QuotaUse(**{name: counts[name] for name in QuotaUse.__dataclass_fields__})
        usual = TenantQuota(tenant=tenant, quota=usual_of(tenant, self._usual), is_default=True)
        return replace(usual if row is None else _quota_in(row), use=use)

    async def find(self) -> Sequence[TenantQuota]:
        """Return the tenants that have their own quota, without their usage."""
        async with transaction(self._pool) as connection:
            rows = (await connection.exec_driver_sql(f"{QUOTAS} ORDER BY tenant_id")).mappings()
            return [_quota_in(row) for row in rows]

    async def put(self, tenant: str, quota: Quota) -> None:
        """Set a tenant's own quota; it applies to the next run and call on every replica."""
        values = {name: getattr(quota, name) for name in FIELDS}
        values["models"] = None if quota.models is None else list(quota.models)
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(LOCK_TENANT, (tenant,))
            await connection.exec_driver_sql(_PUT, {"tenant": tenant, **values})
            await _notify(connection, tenant)
            await record(connection, tenant, Act.QUOTA_SET, tenant)

    async def delete(self, tenant: str) -> bool:
        """Delete a tenant's own quota, so that the default applies; return whether it had one."""
        async with transaction(self._pool) as connection:
            deleted = await connection.exec_driver_sql(
                "DELETE FROM quotas WHERE tenant_id = %s RETURNING tenant_id", (tenant,)
            )
            if deleted.one_or_none() is None:
                return False
            await _notify(connection, tenant)
            await record(connection, tenant, Act.QUOTA_REMOVED, tenant)
            return True

    async def nearly_full(self) -> Sequence[NearlyFull]:
        """Return the storage limits of tenants whose usage is at least ``WARN_PERCENT`` of them."""
        async with transaction(self._pool) as connection:
            rows = await connection.exec_driver_sql(_NEARLY_FULL, dict(self._usual.storage))
            return [NearlyFull(**row) for row in rows.mappings()]


async def _notify(connection: AsyncConnection, tenant: str) -> None:
    """Let calls that wait for the old quota ask again."""
    text = json.dumps({"tenant": tenant})
    await connection.execute(select(func.pg_notify(ACCOUNT_CHANNEL, text)))


def _quota_in(row: Row) -> TenantQuota:
    return TenantQuota(
        tenant=row["tenant_id"],
        quota=quota_in(row),
        is_default=False,
        updated_at=row["updated_at"],
    )
