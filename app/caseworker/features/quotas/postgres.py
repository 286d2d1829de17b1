"""Storage for tenant quotas, and their enforcement in the transactions that accept runs.

Accepting a run for a tenant with a quota, or with a concurrency key, locks the tenant until the
commit. The SQL function ``caseworker_claim`` takes the same lock. Other runs use neither the lock
nor these statements.
"""

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import BigInteger, Column, Date, Integer, Numeric, Table, Text, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.core.budget.accounts import TENANT
from caseworker.features.quotas.usage import WARN_PERCENT, NearlyFull, QuotaUse, TenantQuota
from caseworker.platform.caller import DEFAULT_TENANT
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.platform.postgres.locks import LOCK_TENANT
from caseworker.runs.errors import QuotaExceededError, RateState
from caseworker.runs.postgres.listener import ACCOUNT_CHANNEL
from caseworker.runs.postgres.rows import Row
from caseworker.runs.postgres.run_statements import BY_CALLS
from caseworker.runs.postgres.tables import metadata, run_key
from caseworker.runs.quotas import STORED, UNLIMITED, Quota
from caseworker.runs.run import NewRun

RETRY_SECONDS = 2
"""Seconds after which to retry if the tenant's queue is full."""

FULL_SECONDS = 60
"""Retry delay in seconds if the storage quota is exhausted. Storage is freed only by deletions."""

LOOKED_AT = 100
"""Maximum number of queued runs that are checked to find out whether a new run would overtake
them."""

stored_runs = Table(
    "stored_runs", metadata, *run_key(), Column("bytes", BigInteger, nullable=False)
)
"""Size in bytes stored for each run, without its files. Triggers add up the sizes per tenant in the
table ``stored``."""

account_holds = Table(
    "account_holds",
    metadata,
    *run_key(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("account", Text, primary_key=True),
    Column("period", Date, nullable=False),
    Column("cost_usd", Numeric, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in ("tokens", "llm_calls", "api_calls")),
)
"""What calls in flight have reserved in accounts. A run that has ended has no rows."""


FIELDS = tuple(Quota.__dataclass_fields__)
QUOTAS = f"SELECT {', '.join(FIELDS)}, updated_at, tenant_id FROM quotas"  # noqa: S608 - fields

COUNTS = """
SELECT
    (SELECT count(*) FROM runs WHERE tenant_id = %(tenant)s AND status = 'running'
        AND request IS NOT NULL) AS running,
    (SELECT count(*) FROM (SELECT FROM runs WHERE tenant_id = %(tenant)s AND status = 'queued'
        AND request IS NOT NULL LIMIT %(most_queued)s) waiting) AS queued,
    (SELECT count(*) FROM (
        SELECT concurrency_key, concurrency_limit, started_at FROM runs
        WHERE tenant_id = %(tenant)s AND status = 'queued' AND queued_at <= statement_timestamp()
        ORDER BY priority DESC, queued_at LIMIT %(looked_at)s
    ) next WHERE concurrency_key IS NULL OR started_at IS NOT NULL OR concurrency_limit > (
        SELECT count(*) FROM runs held WHERE held.tenant_id = %(tenant)s
            AND held.concurrency_key = next.concurrency_key
            AND held.started_at IS NOT NULL AND held.finished_at IS NULL)) AS due,
    (SELECT count(*) FROM runs WHERE tenant_id = %(tenant)s AND concurrency_key = %(key)s
        AND started_at IS NOT NULL AND finished_at IS NULL) AS of_key,
    %(key)s::text IS NOT NULL AND EXISTS (SELECT FROM runs
        WHERE tenant_id = %(tenant)s AND concurrency_key = %(key)s
        AND status = 'queued' AND queued_at <= statement_timestamp()) AS key_waits
"""

COSTS = f"""
SELECT coalesce(sum(used_cost_usd) FILTER (WHERE period = today.day), 0) AS cost_usd_today,
    coalesce(sum(reserved_cost_usd) FILTER (WHERE period = today.day), 0) AS reserved_usd_today,
    coalesce(sum(used_cost_usd), 0) AS cost_usd_this_month,
    coalesce(sum(reserved_cost_usd), 0) AS reserved_usd_this_month,
    ceil(extract(epoch FROM (today.day + 1)::timestamp - today.at))::integer AS seconds_of_day,
    ceil(extract(epoch FROM date_trunc('month', today.at) + interval '1 month' - today.at))::integer
        AS seconds_of_month
FROM (SELECT at, at::date AS day FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS at) now) today
LEFT JOIN accounts ON tenant_id = %(tenant)s AND account = '{TENANT}'
    AND period >= date_trunc('month', today.at)::date
GROUP BY today.at, today.day
"""  # noqa: S608

STORED_USE = """
SELECT coalesce(sum(bytes), 0)::bigint AS stored_bytes,
    coalesce(sum(definitions), 0)::bigint AS definitions,
    coalesce(sum(threads), 0)::bigint AS threads
FROM stored WHERE tenant_id = %(tenant)s
"""
"""Query for the storage use of a tenant: bytes, number of definitions, number of threads.

Every database session counts in a separate row; the query adds up these rows."""


_TAKE_RATE = """
INSERT INTO quota_rates AS r (tenant_id, available) VALUES (%(tenant)s, %(most)s - 1)
ON CONFLICT (tenant_id) DO UPDATE SET refilled_at = excluded.refilled_at,
    available = least(%(most)s, r.available + %(most)s / 60.0
        * extract(epoch FROM excluded.refilled_at - r.refilled_at)) - 1
RETURNING available
"""

_LEFT_OF_RATE = """
SELECT least(%(most)s, available + %(most)s / 60.0
    * extract(epoch FROM clock_timestamp() - refilled_at)) FROM quota_rates
WHERE tenant_id = %(tenant)s
"""

_RESERVE_CALLS = f"""
UPDATE runs SET reserved_cost_usd = {BY_CALLS}
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
"""  # noqa: S608
"""Let the calls of a run reserve in the accounts of its tenant."""


@dataclass(frozen=True, slots=True)
class RunAdmission:
    """Decides whether a run is accepted, in the transaction that stores it."""

    quota: Quota
    counts: Row
    new: NewRun

    @property
    def may_begin(self) -> bool:
        """Whether the run may be claimed at once, without waiting for other runs of its tenant."""
        queueing, max_running = self.new.queueing, self.quota.max_running
        key_is_free = queueing.concurrency_key is None or (
            self.counts["of_key"] < queueing.concurrency_limit and not self.counts["key_waits"]
        )
        active = self.counts["running"] + self.counts["due"]
        return key_is_free and (max_running is None or active < max_running)

    @property
    def cannot_start(self) -> QuotaExceededError:
        """The error for a run that must not wait for other runs of its tenant, but would."""
        used, max_running = self.counts["running"], self.quota.max_running or 0
        return QuotaExceededError(
            "running", used=used, limit=max_running, retry_after_seconds=RETRY_SECONDS
        )

    @property
    def restricted(self) -> NewRun:
        """The run, with the quota's restrictions on models and prices added to its request."""
        quota, request = self.quota, self.new.request
        prices = request.requires_prices or quota.limits_cost
        request = replace(
            request,
            requires_prices=prices,
            limits_spending=request.limits_spending or quota.limits_cost,
            models=quota.models,
        )
        return replace(self.new, request=request)

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts in which the calls of the run reserve."""
        return (TENANT,) if self.quota.limits_cost else ()

    def storing(self, connection: AsyncConnection) -> AbstractAsyncContextManager[None]:
        """Check the storage quota after the writes of the block; see :func:`storing`."""
        return storing(connection, self.new.key.tenant, self.quota)

    async def charge(self, connection: AsyncConnection, *, queued: bool) -> RateState | None:
        """Charge the stored run to the quota; return the state of the rate limit.

        Returns None if the tenant has no rate limit.

        Raises:
            QuotaExceededError: a quota is exhausted; the transaction must be rolled back.
            GraphRefusedError: the run uses a model that the tenant may not use.
        """
        quota = self.quota
        await self.new.require_models_of(quota.models)
        rate = await self._take_rate(connection)
        # A rejected run is rolled back and consumes none of the rate.
        rate_after = None if rate is None else replace(rate, remaining=rate.remaining + 1)
        if queued and quota.max_queued is not None and self.counts["queued"] >= quota.max_queued:
            raise QuotaExceededError(
                "queued",
                used=quota.max_queued,
                limit=quota.max_queued,
                retry_after_seconds=RETRY_SECONDS,
                rate=rate_after,
            )
        if quota.limits_cost:
            await self._let_calls_reserve(connection, rate_after)
        return rate

    async def _take_rate(self, connection: AsyncConnection) -> RateState | None:
        per_minute = self.quota.max_runs_per_minute
        if per_minute is None:
            return None
        parameters = {"tenant": self.new.key.tenant, "most": float(per_minute)}
        available = (await connection.exec_driver_sql(_TAKE_RATE, parameters)).scalar_one()
        state = _rate(per_minute, available)
        if available < 0:
            raise QuotaExceededError(
                "runs_per_minute",
                used=per_minute,
                limit=per_minute,
                retry_after_seconds=max(1, state.reset_seconds) if per_minute else 60,
                rate=state,
            )
        return state

    async def _let_calls_reserve(self, connection: AsyncConnection, rate: RateState | None) -> None:
        """Refuse the run if the quota is exhausted; otherwise its calls reserve their costs."""
        key = self.new.key
        costs = await connection.exec_driver_sql(COSTS, {"tenant": key.tenant})
        use = costs.mappings().one()
        for period, limit, seconds in (
            ("today", self.quota.max_cost_usd_per_day, use["seconds_of_day"]),
            ("this_month", self.quota.max_cost_usd_per_month, use["seconds_of_month"]),
        ):
            used = use[f"cost_usd_{period}"]
            if limit is not None and used >= limit:
                raise QuotaExceededError(
                    f"cost_usd_{period}",
                    used=used,
                    reserved=use[f"reserved_usd_{period}"],
                    requested=0,
                    limit=limit,
                    retry_after_seconds=seconds,
                    rate=rate,
                )
        run = {"tenant": key.tenant, "run_id": key.run_id}
        await connection.exec_driver_sql(_RESERVE_CALLS, run)


class QuotaChecks:
    """Checks the quotas of tenants when runs are accepted; see :class:`AcceptChecks`."""

    async def check_of(
        self, connection: AsyncConnection, new: NewRun, usual: Quota
    ) -> RunAdmission | None:
        """Lock the tenant and return the admission check for a run; None if no limit applies."""
        quota = await quota_of(connection, new.key.tenant, usual)
        if quota == UNLIMITED and new.queueing.concurrency_key is None:
            return None
        tenant = new.key.tenant
        await connection.exec_driver_sql(LOCK_TENANT, (tenant,))
        parameters = {
            "tenant": tenant,
            "key": new.queueing.concurrency_key,
            "most_queued": quota.max_queued or 0,
            "looked_at": 0 if quota.max_running is None else LOOKED_AT,
        }
        counts = (await connection.exec_driver_sql(COUNTS, parameters)).mappings().one()
        return RunAdmission(quota, counts, new)

    async def left_of_rate(
        self, connection: AsyncConnection, tenant: str, usual: Quota
    ) -> RateState | None:
        """Return the state of a tenant's rate limit without consuming it; None without a limit."""
        per_minute = (await quota_of(connection, tenant, usual)).max_runs_per_minute
        if per_minute is None:
            return None
        parameters = {"tenant": tenant, "most": float(per_minute)}
        available = (
            await connection.exec_driver_sql(_LEFT_OF_RATE, parameters)
        ).scalar_one_or_none()
        return _rate(per_minute, per_minute if available is None else available)


@asynccontextmanager
async def storing(connection: AsyncConnection, tenant: str, quota: Quota) -> AsyncIterator[None]:
    """Check the storage quota after the writes of the block; a lock serializes them per tenant.

    Raises:
        QuotaExceededError: the writes exceed a storage limit; the transaction must be rolled back.
    """
    limits = {name: limit for name, limit in quota.storage.items() if limit is not None}
    if not limits:
        yield
        return
    await connection.exec_driver_sql(LOCK_TENANT, (tenant,))
    before = (await connection.exec_driver_sql(STORED_USE, {"tenant": tenant})).mappings().one()
    yield
    after = (await connection.exec_driver_sql(STORED_USE, {"tenant": tenant})).mappings().one()
    for name, limit in limits.items():
        # A tenant above its limit may still shrink or replace what it stores.
        if after[name] > max(limit, before[name]):
            raise QuotaExceededError(
                name,
                used=before[name],
                requested=after[name] - before[name],
                limit=limit,
                retry_after_seconds=FULL_SECONDS,
            )


def _rate(per_minute: int, available: float) -> RateState:
    missing = (-available if available < 0 else per_minute - available) * 60 / (per_minute or 1)
    remaining = math.floor(max(0.0, available))
    return RateState(limit=per_minute, remaining=remaining, reset_seconds=math.ceil(missing))


async def quota_of(connection: AsyncConnection, tenant: str, usual: Quota) -> Quota:
    """Return a tenant's own quota, or ``usual`` if it has none."""
    row = await row_of(connection, tenant)
    return usual.for_tenant(tenant) if row is None else quota_in(row)


async def row_of(connection: AsyncConnection, tenant: str) -> Row | None:
    """Return the row with a tenant's own quota; None if it has none."""
    rows = await connection.exec_driver_sql(f"{QUOTAS} WHERE tenant_id = %s", (tenant,))
    return rows.mappings().one_or_none()


def quota_in(row: Row) -> Quota:
    """Return the quota in a row."""
    models = row["models"]
    fields = {**row, "models": None if models is None else tuple(models)}
    return Quota(**{name: fields[name] for name in FIELDS})


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
        usual = TenantQuota(tenant=tenant, quota=self._usual.for_tenant(tenant), is_default=True)
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
