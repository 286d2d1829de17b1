"""Looks up the version that a reference resolves to, in batches for all callers.

A version never changes. A process that has cached its content only needs to check that the version
still exists, or is still the newest. Concurrent lookups share one query over a dedicated
connection; see :mod:`caseworker.platform.postgres.group_commit`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import dict_row

from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.connections import Connection, Patience
from caseworker.platform.postgres.group_commit import GroupCommit, Later
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.graphs import DefinitionVersion
from caseworker.runs.run import DefinitionRef

HeadKey = tuple[str, DefinitionRef]
"""A tenant and a reference to look up."""

HEAD = tuple(DefinitionVersion.__dataclass_fields__)

HEADS = f"""
SELECT asked.place, found.*
FROM json_to_recordset(%s::json) AS asked(
    place integer, tenant_id text, kind text, name text, version bigint
), LATERAL (
    SELECT {", ".join(f"kept.{name}" for name in HEAD)} FROM definitions kept
    WHERE kept.tenant_id = asked.tenant_id AND kept.kind = asked.kind
        AND kept.name = asked.name COLLATE "C"
        AND (asked.version IS NULL OR kept.version = asked.version)
        AND kept.definition IS NOT NULL
    ORDER BY kept.version DESC LIMIT 1
) found
"""  # noqa: S608 - columns of ours
"""SQL that looks up each reference with LATERAL; see
:mod:`caseworker.runs.postgres.run_statements`."""


class DefinitionHeads:
    """Looks up which versions references resolve to, in batches."""

    def __init__(self, url: str, patience: Patience) -> None:
        self._seconds = patience.answer_seconds
        connect = partial(
            Connection.open,
            url,
            patience,
            autocommit=True,
            row_factory=dict_row,
            prepare_threshold=0,
        )
        self._asking: GroupCommit[HeadKey, DefinitionVersion | None] = GroupCommit(
            connect, heads_of
        )

    def begin(self) -> None:
        """Start answering lookups; the first one opens the connection."""
        self._asking.begin()

    async def stop(self) -> None:
        """Stop answering lookups and close the connection."""
        await self._asking.stop()

    async def head(self, tenant: str, ref: DefinitionRef) -> DefinitionVersion | None:
        """Return the version that a reference resolves to; None if it does not exist.

        Raises:
            StoreUnavailableError: the database did not answer in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await self._asking.submit((tenant, ref))
        except TimeoutError:
            raise StoreUnavailableError from None


async def heads_of(
    connection: psycopg.AsyncConnection[Any], keys: Sequence[HeadKey]
) -> Sequence[DefinitionVersion | Later | None]:
    """Return the version that each reference resolves to, in the same order.

    An element is None if the version does not exist, or Later if the lookup must be retried.
    """
    cursor = await connection.execute(HEADS, (asked_for(keys),))
    rows_by_place = {row.pop("place"): row for row in await cursor.fetchall()}
    return [
        DefinitionVersion(**{**row, "kind": DefinitionKind(row["kind"])})
        if (row := rows_by_place.get(place)) is not None
        else None
        for place in range(len(keys))
    ]


def asked_for(keys: Iterable[HeadKey]) -> str:
    """Return the JSON parameter of :data:`HEADS`: the references, each with its index."""
    rows = [
        {
            "place": place,
            "tenant_id": tenant,
            "kind": ref.kind.value,
            "name": ref.name,
            "version": ref.version,
        }
        for place, (tenant, ref) in enumerate(keys)
    ]
    return dump(rows)
