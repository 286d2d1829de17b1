"""Registered graphs in memory: the port of ``app.runs.graphs`` as a database keeps its promises.

Every operation is one step that nothing interrupts, between two moments at which other tasks may
run; see :mod:`tests.support.memory_runs`.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from app.runs.errors import (
    ContainedGraphGoneError,
    GraphInUseError,
    GraphNotFoundError,
    GraphsTooLargeError,
    InvalidRunError,
)
from app.runs.graphs import GraphDefinition, GraphPage, GraphVersion, NewGraph, Registered
from app.runs.run import GraphRef

Place = TypeVar("Place", str, int)


@dataclass(frozen=True)
class Stored:
    """One version; what it contains is kept beside it."""

    definition: GraphDefinition
    uses: tuple[GraphRef, ...]


class MemoryGraphs:
    """Implements the store of registered graphs."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], dict[int, Stored]] = {}
        self._last: dict[tuple[str, str], int] = {}
        self.loaded_bytes = 0
        """What :meth:`load` has handed out, for tests to look at."""

    async def add(self, new: NewGraph) -> Registered:
        async with _transaction():
            newest = self._find(new.tenant, GraphRef(new.name))
            if newest is not None and _same(newest.head, new):
                return Registered(newest.head, created=False)
            if any(self._find(new.tenant, ref) is None for ref in new.uses):
                raise ContainedGraphGoneError
            key = new.tenant, new.name
            version = self._last[key] = self._last.get(key, 0) + 1
            head = GraphVersion(
                name=new.name,
                version=version,
                description=new.description,
                sha256=new.sha256,
                size_bytes=new.size_bytes,
                created_at=datetime.now(UTC),
            )
            stored = Stored(GraphDefinition(head, _as_json(new.graph)), new.uses)
            self._live.setdefault(key, {})[version] = stored
            return Registered(head, created=True)

    async def get(self, tenant: str, ref: GraphRef) -> GraphDefinition | None:
        async with _transaction():
            return self._find(tenant, ref)

    async def load(
        self, tenant: str, wanted: Iterable[GraphRef], *, max_bytes: int
    ) -> Mapping[GraphRef, GraphDefinition]:
        async with _transaction():
            found = {ref: self._find(tenant, ref) for ref in wanted}
            there = {ref: definition for ref, definition in found.items() if definition}
            distinct = {definition.head.ref: definition for definition in there.values()}
            size = sum(definition.head.size_bytes for definition in distinct.values())
            if size > max_bytes:
                raise GraphsTooLargeError
            self.loaded_bytes += size
            return there

    async def known(self, tenant: str, names: Iterable[str]) -> frozenset[str]:
        async with _transaction():
            return frozenset(name for name in names if self._live.get((tenant, name)))

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> GraphPage:
        after = None if cursor is None else _place_in(cursor, str)
        async with _transaction():
            heads = [head for head in self._newest(tenant) if after is None or head.name > after]
            page = heads[:limit]
            return GraphPage(page, _cursor(page[-1].name) if len(heads) > limit else None)

    async def versions(
        self, tenant: str, name: str, *, limit: int, cursor: str | None
    ) -> GraphPage:
        before = None if cursor is None else _place_in(cursor, int)
        async with _transaction():
            versions = self._live.get((tenant, name), {})
            kept = [v for v in sorted(versions, reverse=True) if before is None or v < before]
            page = [versions[version].definition.head for version in kept[:limit]]
            return GraphPage(page, _cursor(page[-1].version) if len(kept) > limit else None)

    async def delete(self, tenant: str, ref: GraphRef) -> None:
        async with _transaction():
            live = self._live.get((tenant, ref.name), {})
            doomed = set(live) if ref.version is None else live.keys() & {ref.version}
            if not doomed:
                raise GraphNotFoundError(ref.name)
            gone = {GraphRef(ref.name, version) for version in doomed}
            if doomed == set(live):
                gone.add(GraphRef(ref.name))
            users = [user for user, uses in self._uses(tenant) if uses & gone and user not in gone]
            if users:
                raise GraphInUseError(sorted(users, key=lambda user: (user.name, user.version)))
            for version in doomed:
                del live[version]

    def _find(self, tenant: str, ref: GraphRef) -> GraphDefinition | None:
        live = self._live.get((tenant, ref.name), {})
        version = max(live, default=0) if ref.version is None else ref.version
        return live[version].definition if version in live else None

    def _newest(self, tenant: str) -> list[GraphVersion]:
        names = sorted(name for of, name in self._live if of == tenant)
        found = [self._find(tenant, GraphRef(name)) for name in names]
        return [definition.head for definition in found if definition is not None]

    def _uses(self, tenant: str) -> Iterator[tuple[GraphRef, set[GraphRef]]]:
        for (of, _), versions in self._live.items():
            for stored in versions.values():
                if of == tenant:
                    yield stored.definition.head.ref, set(stored.uses)


@asynccontextmanager
async def _transaction() -> AsyncIterator[None]:
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await asyncio.sleep(0)


def _same(head: GraphVersion, new: NewGraph) -> bool:
    return (head.sha256, head.description) == (new.sha256, new.description)


def _cursor(place: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _place_in(cursor: str, kind: type[Place]) -> Place:
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        if type(place) is kind and re.fullmatch("[A-Za-z0-9._-]{1,64}", str(place)):
            return place
    except ValueError:
        pass
    raise InvalidRunError("cursor", "This is not a cursor of this service.")


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))
