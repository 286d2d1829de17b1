"""Registered graphs in memory: the port of ``app.runs.graphs`` as a database keeps its promises.

Every operation is one step that nothing interrupts, between two moments at which other tasks may
run; see :mod:`tests.support.memory_runs`.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from app.nodes.nesting import DefinitionKind
from app.runs.errors import (
    ContainedDefinitionGoneError,
    DefinitionInUseError,
    DefinitionNotFoundError,
    DefinitionsTooLargeError,
    InvalidRunError,
)
from app.runs.graphs import Definition, DefinitionPage, DefinitionVersion, NewDefinition, Registered
from app.runs.run import DefinitionRef

Key = tuple[str, DefinitionKind, str]
"""Tenant, kind and name."""

Place = TypeVar("Place", str, int)


@dataclass(frozen=True)
class Stored:
    """One version; what it contains is kept beside it."""

    definition: Definition
    uses: tuple[DefinitionRef, ...]


class MemoryDefinitions:
    """Implements the store of registered graphs."""

    def __init__(self) -> None:
        self._live: dict[Key, dict[int, Stored]] = {}
        self._last: dict[Key, int] = {}
        self.loaded_bytes = 0
        """What :meth:`load` has handed out, for tests to look at."""

    async def add(self, new: NewDefinition) -> Registered:
        async with _transaction():
            newest = self._find(new.tenant, DefinitionRef(new.name, kind=new.kind))
            if newest is not None and _same(newest.head, new):
                return Registered(newest.head, created=False)
            if any(self._find(new.tenant, ref) is None for ref in new.uses):
                raise ContainedDefinitionGoneError
            key = new.tenant, new.kind, new.name
            version = self._last[key] = self._last.get(key, 0) + 1
            head = DefinitionVersion(
                kind=new.kind,
                name=new.name,
                version=version,
                description=new.description,
                sha256=new.sha256,
                size_bytes=new.size_bytes,
                created_at=datetime.now(UTC),
            )
            stored = Stored(Definition(head, _as_json(new.content)), new.uses)
            self._live.setdefault(key, {})[version] = stored
            return Registered(head, created=True)

    async def get(self, tenant: str, ref: DefinitionRef) -> Definition | None:
        async with _transaction():
            return self._find(tenant, ref)

    async def load(
        self, tenant: str, wanted: Iterable[DefinitionRef], *, max_bytes: int
    ) -> Mapping[DefinitionRef, Definition]:
        async with _transaction():
            found = {ref: self._find(tenant, ref) for ref in wanted}
            there = {ref: definition for ref, definition in found.items() if definition}
            distinct = {definition.head.ref: definition for definition in there.values()}
            size = sum(definition.head.size_bytes for definition in distinct.values())
            if size > max_bytes:
                raise DefinitionsTooLargeError
            self.loaded_bytes += size
            return there

    async def known(self, tenant: str, wanted: Iterable[DefinitionRef]) -> Set[DefinitionRef]:
        async with _transaction():
            return {ref for ref in wanted if self._find(tenant, ref) is not None}

    async def find(
        self, tenant: str, kind: DefinitionKind, *, limit: int, cursor: str | None
    ) -> DefinitionPage:
        after = None if cursor is None else _place_in(cursor, str)
        async with _transaction():
            heads = [
                head for head in self._newest(tenant, kind) if after is None or head.name > after
            ]
            page = heads[:limit]
            return DefinitionPage(page, _cursor(page[-1].name) if len(heads) > limit else None)

    async def versions(
        self, tenant: str, ref: DefinitionRef, *, limit: int, cursor: str | None
    ) -> DefinitionPage:
        before = None if cursor is None else _place_in(cursor, int)
        async with _transaction():
            versions = self._live.get((tenant, ref.kind, ref.name), {})
            kept = [v for v in sorted(versions, reverse=True) if before is None or v < before]
            page = [versions[version].definition.head for version in kept[:limit]]
            return DefinitionPage(page, _cursor(page[-1].version) if len(kept) > limit else None)

    async def delete(self, tenant: str, ref: DefinitionRef) -> None:
        async with _transaction():
            live = self._live.get((tenant, ref.kind, ref.name), {})
            doomed = set(live) if ref.version is None else live.keys() & {ref.version}
            if not doomed:
                raise DefinitionNotFoundError(ref)
            gone = {replace(ref, version=version) for version in doomed}
            if doomed == set(live):
                gone.add(replace(ref, version=None))
            users = [user for user, uses in self._uses(tenant) if uses & gone and user not in gone]
            if users:
                raise DefinitionInUseError(
                    ref, sorted(users, key=lambda user: (user.name, user.version))
                )
            for version in doomed:
                del live[version]

    def _find(self, tenant: str, ref: DefinitionRef) -> Definition | None:
        live = self._live.get((tenant, ref.kind, ref.name), {})
        version = max(live, default=0) if ref.version is None else ref.version
        return live[version].definition if version in live else None

    def _newest(self, tenant: str, kind: DefinitionKind) -> list[DefinitionVersion]:
        names = sorted(name for of, one, name in self._live if (of, one) == (tenant, kind))
        found = [self._find(tenant, DefinitionRef(name, kind=kind)) for name in names]
        return [definition.head for definition in found if definition is not None]

    def _uses(self, tenant: str) -> Iterator[tuple[DefinitionRef, set[DefinitionRef]]]:
        for (of, _, _), versions in self._live.items():
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


def _same(head: DefinitionVersion, new: NewDefinition) -> bool:
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
