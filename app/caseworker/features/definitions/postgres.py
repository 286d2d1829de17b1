"""Storage for registered graphs and agents in Postgres.

A lock per tenant serializes registration and deletion. Each version therefore gets the next number,
and no definition is deleted while another one contains it. Reads take no lock.

A version never changes. A process that has cached its content only needs to check that the version
still exists, or is still the newest. Concurrent lookups of all callers share one query over a
dedicated connection; see :mod:`caseworker.platform.postgres.group_commit`.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import psycopg
from cachetools import LRUCache
from psycopg.rows import dict_row
from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Integer,
    Row,
    Select,
    Table,
    Text,
    and_,
    func,
    insert,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, distinct_on
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.core.graph.validation import Problem
from caseworker.features.definitions.registration import (
    ContainedDefinitionGoneError,
    Definition,
    DefinitionInUseError,
    DefinitionNotFoundError,
    DefinitionsTooLargeError,
    DefinitionVersion,
    NewDefinition,
    Registered,
)
from caseworker.features.quotas.postgres import quota_of, storing
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.paging import Page
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.connections import Connection, Patience
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.platform.postgres.group_commit import GroupCommit, RetryLater
from caseworker.platform.postgres.json_text import dump, exact_dump
from caseworker.platform.postgres.locks import LOCK_DEFINITIONS
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.postgres.rows import decode_cursor, page_of
from caseworker.runs.postgres.tables import INSTANT, metadata
from caseworker.runs.quotas import UNLIMITED, Quota
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
) -> Sequence[DefinitionVersion | RetryLater | None]:
    """Return the version that each reference resolves to, in the same order.

    An element is None if the version does not exist, or RetryLater if the lookup must be retried.
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


MAX_SHOWN_USERS = 20
KEPT_BYTES = 1024 * 1024
"""Maximum size of the cache of definitions in bytes. An entry is valid while its creation time and
digest match those of the stored version."""
KEPT_REFERENCES = 4096
"""Number of references whose versions are cached."""
MAX_VERSION = 2**31 - 1

definitions = Table(
    "definitions",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("description", Text),
    Column("definition", JSON),
    Column("uses", JSONB, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)
"""Versions of graphs and agents. A deleted version keeps its row, without the content, so that its
number is not used again."""

_HEAD_COLUMNS = [definitions.c[name] for name in HEAD]

_CONTENTS_OF = text(
    """
    SELECT found.*
    FROM json_to_recordset(CAST(:wanted AS json)) AS asked(kind text, name text, version bigint),
    LATERAL (
        SELECT kept.kind, kept.name, kept.version, definition FROM definitions kept
        WHERE tenant_id = :tenant AND kept.kind = asked.kind
            AND kept.name = asked.name COLLATE "C" AND kept.version = asked.version
            AND definition IS NOT NULL
        LIMIT 1
    ) found
    """
)
"""A join of any number of references would read all definitions of the tenant."""

_USERS_OF = text(
    """
    SELECT kind, name, version FROM definitions
    WHERE tenant_id = :tenant AND uses <> '[]' AND definition IS NOT NULL
        AND NOT (kind = :kind AND name = :name AND version = ANY(:doomed))
        AND EXISTS (
            SELECT FROM jsonb_to_recordset(uses) AS used(kind text, name text, version bigint)
            WHERE used.name = :name AND coalesce(used.kind, 'graph') = :kind
                AND (used.version = ANY(:doomed) OR (used.version IS NULL AND :none_left))
        )
    ORDER BY name, version LIMIT :most
    """
)


class PostgresDefinitions:
    """Stores definitions. Every method is one transaction and sees one tenant's data only.

    Methods raise ``InvalidRunError`` if a cursor is invalid.
    """

    def __init__(
        self, engines: Engines, heads: DefinitionHeads | None = None, usual: Quota = UNLIMITED
    ) -> None:
        """Without ``heads``, look up definitions one by one; ``usual`` is the default quota."""
        self._engines = engines
        self._heads = heads
        self._usual = usual
        self._resolved = LRUCache[tuple[str, DefinitionRef], DefinitionVersion](KEPT_REFERENCES)
        self._contents = LRUCache[tuple[str, DefinitionVersion], Definition](
            maxsize=KEPT_BYTES, getsizeof=lambda each: each.head.size_bytes
        )

    async def add(self, new: NewDefinition) -> Registered:
        """Store a definition as the next version under its name.

        If the newest version is identical, it is returned instead. Concurrent callers get distinct
        versions.

        Raises:
            ContainedDefinitionGoneError: one of ``new.uses`` no longer exists.
            GraphRefusedError: an edge does not state its channel.
        """
        try:
            async with transaction(self._engines.work, new.tenant) as connection:
                return await _add(connection, new, self._usual)
        except IntegrityError as error:
            if "graphs_edges_say_their_channel" not in str(error.orig):
                raise
            message = "Every edge must say its channel in data.channel: flow or link."
            raise GraphRefusedError([Problem("edges", message)]) from None

    async def get(self, tenant: str, ref: DefinitionRef) -> Definition | None:
        """Return a definition, or None if it does not exist; the content may be cached."""
        if self._heads is not None:
            head = await self._heads.head(tenant, ref)
            if head is None:
                return None
            self._resolved[tenant, ref] = head
            if (remembered := self._contents.get((tenant, head))) is not None:
                return remembered
            ref = head.ref
        async with transaction(self._engines.work, tenant) as connection:
            definition = (await _definitions(connection, tenant, [ref])).get(ref)
        if definition is not None and definition.head.size_bytes <= KEPT_BYTES // 8:
            self._contents[tenant, definition.head] = definition
        return definition

    def remembered(self, tenant: str, ref: DefinitionRef) -> Definition | None:
        """Return the last result of :meth:`get`, if it is cached; the store may have changed."""
        head = self._resolved.get((tenant, ref))
        return None if head is None else self._contents.get((tenant, head))

    async def load(
        self, tenant: str, refs: Iterable[DefinitionRef], *, max_bytes: int
    ) -> Mapping[DefinitionRef, Definition]:
        """Return the definitions that exist among ``refs``, by reference.

        Raises:
            DefinitionsTooLargeError: the total size exceeds ``max_bytes``, with each definition
                counted once. Nothing was read.
        """
        async with transaction(self._engines.work, tenant) as connection:
            return await _definitions(connection, tenant, refs, max_bytes)

    async def existing(self, tenant: str, refs: Iterable[DefinitionRef]) -> Set[DefinitionRef]:
        """Return the references in ``refs`` whose definition exists."""
        async with transaction(self._engines.work, tenant) as connection:
            return (await _heads_of(connection, tenant, refs)).keys()

    async def find(
        self, tenant: str, kind: DefinitionKind, *, limit: int, cursor: str | None
    ) -> Page[DefinitionVersion]:
        """Return a page with the newest version of each definition, ordered by name."""
        query = (
            select(*_HEAD_COLUMNS).where(_live(tenant, kind)).ext(distinct_on(definitions.c.name))
        )
        if cursor is not None:
            query = query.where(definitions.c.name > decode_cursor(kind.value, cursor, _name_in))
        query = query.order_by(definitions.c.name, definitions.c.version.desc())
        return await self._page(kind.value, tenant, query, limit, lambda last: last.name)

    async def versions(
        self, tenant: str, ref: DefinitionRef, *, limit: int, cursor: str | None
    ) -> Page[DefinitionVersion]:
        """Return a page of the versions under the name of ``ref``, newest first; may be empty."""
        query = select(*_HEAD_COLUMNS).where(_live(tenant, ref.kind, ref.name))
        of = f"{ref.kind.value} {ref.name}"
        if cursor is not None:
            query = query.where(definitions.c.version < decode_cursor(of, cursor, _version_in))
        query = query.order_by(definitions.c.version.desc())
        return await self._page(of, tenant, query, limit, lambda last: last.version)

    async def delete(self, tenant: str, ref: DefinitionRef) -> None:
        """Delete one version, or all versions under the name if ``ref`` gives no version.

        Accepted runs are unaffected.

        Raises:
            DefinitionNotFoundError: the definition does not exist.
            DefinitionInUseError: another definition references a version to delete, or references
                the name without a version and no version would remain.
        """
        async with transaction(self._engines.work, tenant) as connection:
            await connection.exec_driver_sql(LOCK_DEFINITIONS, (tenant,))
            versions = select(definitions.c.version).where(_live(tenant, ref.kind, ref.name))
            live = set((await connection.scalars(versions)).all())
            doomed = live if ref.version is None else live & {ref.version}
            if not doomed:
                raise DefinitionNotFoundError(ref)
            users = await _users(connection, tenant, ref, doomed, none_left=doomed == live)
            if users:
                raise DefinitionInUseError(ref, users)
            emptied: dict[str, Any] = {"definition": null(), "description": null(), "uses": []}
            deleted = _live(tenant, ref.kind, ref.name) & definitions.c.version.in_(doomed)
            await connection.execute(update(definitions).where(deleted).values(emptied))
            target = ref.name if ref.version is None else f"{ref.name}@{ref.version}"
            await record(connection, tenant, Act(f"{ref.kind.value}.deleted"), target)

    async def _page(
        self, of: str, tenant: str, query: Select[Any], limit: int, place: Callable[[Any], Any]
    ) -> Page[DefinitionVersion]:
        async with transaction(self._engines.work, tenant) as connection:
            rows = (await connection.execute(query.limit(limit + 1))).all()
        return page_of(of, rows, limit, place, _head)


async def _add(connection: AsyncConnection, new: NewDefinition, usual: Quota) -> Registered:
    await connection.exec_driver_sql(LOCK_DEFINITIONS, (new.tenant,))
    own_ref = DefinitionRef(new.name, kind=new.kind)
    heads = await _heads_of(connection, new.tenant, {own_ref, *new.uses})
    newest = heads.get(own_ref)
    if newest is not None and (newest.sha256, newest.description) == (new.sha256, new.description):
        return Registered(newest, created=False)
    if not heads.keys() >= set(new.uses):
        raise ContainedDefinitionGoneError
    ever = and_(
        definitions.c.tenant_id == new.tenant,
        definitions.c.kind == new.kind.value,
        definitions.c.name == new.name,
    )
    last = select(func.coalesce(func.max(definitions.c.version), 0)).where(ever).scalar_subquery()
    stored = insert(definitions).values(
        tenant_id=new.tenant,
        kind=new.kind.value,
        name=new.name,
        version=last + 1,
        description=new.description,
        definition=dict(new.content),
        uses=_as_json(new.uses),
        sha256=new.sha256,
        size_bytes=new.size_bytes,
    )
    async with storing(connection, new.tenant, await quota_of(connection, new.tenant, usual)):
        row = (await connection.execute(stored.returning(*_HEAD_COLUMNS))).one()
    target = f"{new.name}@{row.version}"
    await record(connection, new.tenant, Act(f"{new.kind.value}.registered"), target)
    return Registered(_head(row), created=True)


async def _heads_of(
    connection: AsyncConnection, tenant: str, refs: Iterable[DefinitionRef]
) -> Mapping[DefinitionRef, DefinitionVersion]:
    ordered_refs = list(refs)
    parameters = asked_for((tenant, ref) for ref in ordered_refs)
    rows = await connection.exec_driver_sql(HEADS, (parameters,))
    return {ordered_refs[row.place]: _head(row) for row in rows}


async def _definitions(
    connection: AsyncConnection,
    tenant: str,
    refs: Iterable[DefinitionRef],
    max_bytes: float = math.inf,
) -> Mapping[DefinitionRef, Definition]:
    """Return definitions; one that is deleted concurrently is left out."""
    heads = await _heads_of(connection, tenant, refs)
    distinct = {head.ref: head for head in heads.values()}
    if sum(head.size_bytes for head in distinct.values()) > max_bytes:
        raise DefinitionsTooLargeError
    rows = await connection.execute(
        _CONTENTS_OF, {"tenant": tenant, "wanted": exact_dump(_as_json(distinct))}
    )
    read = {_ref(row): row.definition for row in rows}
    return {
        ref: Definition(head, read[head.ref]) for ref, head in heads.items() if head.ref in read
    }


async def _users(
    connection: AsyncConnection,
    tenant: str,
    ref: DefinitionRef,
    doomed: set[int],
    *,
    none_left: bool,
) -> Sequence[DefinitionRef]:
    """Return definitions that would refer to a deleted version."""
    parameters = {
        "tenant": tenant,
        "kind": ref.kind.value,
        "name": ref.name,
        "doomed": sorted(doomed),
        "none_left": none_left,
        "most": MAX_SHOWN_USERS,
    }
    rows = await connection.execute(_USERS_OF, parameters)
    return [_ref(row) for row in rows]


def _as_json(refs: Iterable[DefinitionRef]) -> list[dict[str, Any]]:
    return [{"kind": ref.kind.value, "name": ref.name, "version": ref.version} for ref in refs]


def _live(tenant: str, kind: DefinitionKind, name: str | None = None) -> ColumnElement[bool]:
    live = and_(
        definitions.c.tenant_id == tenant,
        definitions.c.kind == kind.value,
        definitions.c.definition.is_not(null()),
    )
    return live if name is None else live & (definitions.c.name == name)


def _head(row: Row[Any]) -> DefinitionVersion:
    fields = {name: getattr(row, name) for name in HEAD}
    return DefinitionVersion(**{**fields, "kind": DefinitionKind(row.kind)})


def _ref(row: Row[Any]) -> DefinitionRef:
    return DefinitionRef(row.name, row.version, DefinitionKind(row.kind))


def _name_in(place: Any) -> str:
    """Return the name in a cursor position; only a valid name reaches the database."""
    if not isinstance(place, str) or not re.fullmatch("[A-Za-z0-9._-]{1,64}", place):
        raise ValueError(place)
    return place


def _version_in(place: Any) -> int:
    if type(place) is not int or not 0 < place <= MAX_VERSION:
        raise ValueError(place)
    return place
