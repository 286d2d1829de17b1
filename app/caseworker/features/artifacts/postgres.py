"""Storage for the files that runs create, in Postgres.

Files use their own connections and transactions. Megabytes of file data therefore do not delay the
connection that all runs share for their journals.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from sqlalchemy import Column, Integer, LargeBinary, Table, Text, and_, func, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.engine.supervision import shielded
from caseworker.features.artifacts.storage import (
    ArtifactLimits,
    NewArtifact,
    SaveOutcome,
    StoredArtifact,
)
from caseworker.features.expiry import OF_BATCH, dropping
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.runs.errors import ArtifactNotFoundError, RunNotFoundError
from caseworker.runs.postgres.tables import INSTANT, columns, metadata, of_run, run_key, runs
from caseworker.runs.run import RunKey

PIECE_BYTES = 262_144
"""Size of one read in bytes; it limits the memory that a slow client occupies."""

READ_GRACE_SECONDS = 5.0
"""Seconds to wait for an unfinished read after its client has disconnected; SQL statements are not
interrupted."""

artifacts = Table(
    "artifacts",
    metadata,
    *run_key(),
    Column("name", Text(collation="C"), primary_key=True),
    *columns(Text, "slot media_type sha256", nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)

drop_artifacts = dropping(f"DELETE FROM artifacts WHERE {OF_BATCH}")  # noqa: S608
"""Delete a batch of expired artifacts; their runs stay."""

_COLUMNS = [artifacts.c[name] for name in StoredArtifact.__dataclass_fields__]


class PostgresArtifacts:
    """Stores the files of runs, and reads them on any replica, during and after the run.

    Every statement is one transaction.

    Raises:
        RunNotFoundError: the run does not exist.
        ArtifactNotFoundError: the file does not exist, or was deleted or replaced.
        StoreUnavailableError: the database did not answer; the file may or may not have been
            stored.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    async def save(
        self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits
    ) -> SaveOutcome:
        """Store a file durably if ``fence`` is the run's fencing token and the run has not ended.

        The run's row is locked, so its owner and status cannot change, and the limits of the run
        hold. Storing an identical file again changes nothing.
        """
        async with transaction(self._engines.work, key.tenant) as connection:
            if not await _owns(connection, key, fence):
                return SaveOutcome.LOST
            standing = await _standing(connection, key, new)
            if standing.same:
                return SaveOutcome.STORED
            full = standing.count >= limits.max_per_run
            if full or standing.bytes + len(new.data) > limits.max_run_bytes:
                return SaveOutcome.FULL
            await _write(connection, key, new)
        return SaveOutcome.STORED

    async def find(self, key: RunKey, name: str | None = None) -> Sequence[StoredArtifact]:
        """Return the files of a run, oldest first; with ``name``, only the file of that name.

        Raises:
            RunNotFoundError: the run does not exist.
        """
        condition = and_(
            artifacts.c.tenant_id == runs.c.tenant_id, artifacts.c.run_id == runs.c.run_id
        )
        if name is not None:
            condition &= artifacts.c.name == name
        query = (
            select(*_COLUMNS)
            .select_from(runs.outerjoin(artifacts, condition))
            .where(of_run(runs, key), runs.c.request.is_not(None))
            .order_by(artifacts.c.created_at, artifacts.c.name)
        )
        async with transaction(self._engines.work, key.tenant) as connection:
            rows = (await connection.execute(query)).mappings().all()
        if not rows:
            raise RunNotFoundError(key.run_id)
        return [StoredArtifact(**row) for row in rows if row["name"] is not None]

    async def get(self, key: RunKey, name: str) -> StoredArtifact:
        """Return the metadata of a file.

        Raises:
            RunNotFoundError: the run does not exist.
            ArtifactNotFoundError: the run has no file of this name.
        """
        matches = await self.find(key, name)
        if not matches:
            raise ArtifactNotFoundError(name)
        return matches[0]

    async def pieces(self, key: RunKey, artifact: StoredArtifact) -> AsyncGenerator[bytes, None]:
        """Yield the contents of a file in chunks; each chunk is read when it is needed.

        Raises:
            ArtifactNotFoundError: the file was deleted in the meantime.
        """
        for offset in range(0, artifact.size_bytes, PIECE_BYTES):
            read = self.read(key, artifact, offset=offset, size=PIECE_BYTES)
            piece = await shielded(read, grace_seconds=READ_GRACE_SECONDS)
            if piece is None:
                raise ArtifactNotFoundError(artifact.name)
            yield piece

    async def read(
        self, key: RunKey, artifact: StoredArtifact, *, offset: int, size: int
    ) -> bytes | None:
        """Return up to ``size`` bytes of a file, starting at ``offset``; None if it is gone."""
        piece = select(func.substr(artifacts.c.data, offset + 1, size)).where(
            of_run(artifacts, key),
            artifacts.c.name == artifact.name,
            artifacts.c.sha256 == artifact.sha256,
        )
        async with transaction(self._engines.work, key.tenant) as connection:
            content: bytes | None = await connection.scalar(piece)
        return content


async def _owns(connection: AsyncConnection, key: RunKey, fence: int) -> bool:
    """Lock the run's row; return whether the run is still running under this fencing token."""
    owned = select(runs.c.run_id).where(
        of_run(runs, key), runs.c.fence == fence, runs.c.status == "running"
    )
    return await connection.scalar(owned.with_for_update(key_share=True)) is not None


async def _standing(connection: AsyncConnection, key: RunKey, new: NewArtifact) -> Any:
    """Return whether this file is already stored, and the count and bytes of the run's other files.

    Runs as a separate statement: the snapshot of the locking statement does not include rows
    committed while it waited for the lock.
    """
    in_slot = artifacts.c.slot == new.slot
    same = in_slot & (artifacts.c.name == new.name) & (artifacts.c.sha256 == new.sha256)
    query = select(
        func.coalesce(func.bool_or(same), False).label("same"),
        func.count().filter(~in_slot).label("count"),
        func.coalesce(func.sum(artifacts.c.size_bytes).filter(~in_slot), 0).label("bytes"),
    ).where(of_run(artifacts, key))
    return (await connection.execute(query)).one()


async def _write(connection: AsyncConnection, key: RunKey, new: NewArtifact) -> None:
    values = {
        "name": new.name,
        "media_type": new.media_type,
        "size_bytes": len(new.data),
        "sha256": new.sha256,
        "data": new.data,
        "created_at": func.clock_timestamp(),
    }
    where = {"tenant_id": key.tenant, "run_id": key.run_id, "slot": new.slot}
    statement = upsert(artifacts).values(**where, **values)
    replaced = {column: statement.excluded[column] for column in values}
    await connection.execute(
        statement.on_conflict_do_update(constraint="artifacts_one_a_slot", set_=replaced)
    )
