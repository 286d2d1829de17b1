"""Reads recorded administrative acts from Postgres, and deletes expired ones."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.paging import Page
from caseworker.runs.postgres.retention import DUE, Batch
from caseworker.runs.postgres.rows import decode_cursor, page_of

_PAGE: Final = """
SELECT entry_id, at, tenant_id AS tenant, action, target, actor, actor_tenant, actor_key_id,
    request_id
FROM audit WHERE (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
    AND (%(action)s::text IS NULL OR action = %(action)s)
    AND (%(after)s::timestamptz IS NULL OR at > %(after)s)
    AND (%(before)s::timestamptz IS NULL OR at < %(before)s)
    AND entry_id < %(below)s
ORDER BY entry_id DESC LIMIT %(limit)s
"""

_DROP: Final = f"""
DELETE FROM audit WHERE tenant_id = %(tenant)s AND entry_id = ANY(ARRAY(
    SELECT entry_id FROM (
        SELECT entry_id, at FROM audit WHERE tenant_id = %(tenant)s
        ORDER BY entry_id LIMIT %(limit)s
    ) oldest WHERE at < {DUE}
))
"""  # noqa: S608 - nothing of a caller's is in it
"""Delete those of the oldest entries that are expired. Entries are numbered in the order of their
times, so no index of times is needed. A join instead of the array would read all entries."""


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
        """Return a page of acts, newest first.

        ``tenant`` restricts it to acts on that tenant's resources; ``filters`` are ``action``,
        ``after`` and ``before``.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        below = 2**63 - 1 if cursor is None else decode_cursor("audit", cursor, _entry_id_in)
        asked = {"tenant": tenant, "below": below, "limit": limit + 1, **filters}
        async with transaction(self._pool, tenant) as connection:
            rows = (await connection.exec_driver_sql(_PAGE, asked)).mappings().all()
        return page_of("audit", rows, limit, lambda last: last["entry_id"], dict)


def _entry_id_in(place: Any) -> int:
    if type(place) is not int or not 0 < place < 2**63:
        raise ValueError(place)
    return place


async def drop_audit(connection: AsyncConnection, batch: Batch) -> bool:
    """Delete a batch of expired entries; return whether there may be more."""
    gone = await connection.exec_driver_sql(_DROP, dict(batch))
    return gone.rowcount == int(batch["limit"])
