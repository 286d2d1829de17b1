"""Reads recorded administrative acts from Postgres, and deletes expired ones."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.expiry import DUE, Batch
from caseworker.platform.paging import Page
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.postgres.rows import decode_cursor, page_of

_COLUMNS: Final = """
SELECT entry_id, at, tenant_id AS tenant, action, target, actor, actor_tenant, actor_key_id,
    request_id
FROM audit
"""

_FILTERS: Final = {
    "tenant": "tenant_id = %(tenant)s",
    "action": "action = %(action)s",
    "after": "at > %(after)s",
    "before": "at < %(before)s",
    "place": "(at, entry_id) < (%(at)s, %(entry_id)s)",
}

_DROP: Final = f"""
DELETE FROM audit WHERE tenant_id = %(tenant)s AND entry_id = ANY(ARRAY(
    SELECT entry_id FROM audit WHERE tenant_id = %(tenant)s AND at < {DUE}
    ORDER BY at, entry_id LIMIT %(limit)s
))
"""  # noqa: S608 - nothing of a caller's is in it
"""Delete the oldest expired entries. A join instead of the array would read all entries."""


class PostgresAudit:
    """Reads the audit log."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(
        self,
        tenant: str | None,
        *,
        limit: int,
        cursor: str | None,
        **filters: Any,
    ) -> Page[Mapping[str, Any]]:
        """Return up to ``limit`` acts, newest first.

        ``tenant`` restricts the page to acts on that tenant's resources; None covers all tenants.
        ``filters`` must hold ``action`` (an Act or None), ``after`` and ``before`` (exclusive
        instants or None).

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        parameters = {"tenant": tenant, "limit": limit + 1, **filters, "place": None}
        if cursor is not None:
            parameters |= {"place": True, **decode_cursor("audit", cursor, _place_in)}
        # An index decides a condition only if the statement has no others that may be null.
        conditions = [of for name, of in _FILTERS.items() if parameters[name] is not None]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = f"{_COLUMNS} {where} ORDER BY at DESC, entry_id DESC LIMIT %(limit)s"
        async with transaction(self._pool, tenant) as connection:
            rows = (await connection.exec_driver_sql(statement, parameters)).mappings().all()
        return page_of("audit", rows, limit, _place_of, dict)


def _place_of(row: Mapping[str, Any]) -> Any:
    return [row["at"].isoformat(), row["entry_id"]]


def _place_in(place: Any) -> Mapping[str, Any]:
    at, entry_id = place
    if type(entry_id) is not int or not 0 < entry_id < 2**63:
        raise ValueError(place)
    return {"at": datetime.fromisoformat(at), "entry_id": entry_id}


async def drop_audit(connection: AsyncConnection, batch: Batch) -> bool:
    """Delete a batch of expired entries; return whether there may be more."""
    deleted = await connection.exec_driver_sql(_DROP, dict(batch))
    return deleted.rowcount == int(batch["limit"])
