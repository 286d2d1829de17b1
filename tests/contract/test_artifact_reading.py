"""Reading the bytes of a file."""

import asyncio
from contextlib import aclosing

import pytest

from caseworker.features.artifacts.postgres import PIECE_BYTES, PostgresArtifacts
from caseworker.features.artifacts.storage import StoredArtifact
from caseworker.runs.run import RunKey
from tests.support.api import Api
from tests.support.artifacts import new_artifact, run_with_files

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = RunKey("default", "case-1")


class CountedReads(PostgresArtifacts):
    """A file store that counts started and finished reads."""

    begun = ended = 0

    async def read(
        self, key: RunKey, artifact: StoredArtifact, *, offset: int, size: int
    ) -> bytes | None:
        self.begun += 1
        piece = await super().read(key, artifact, offset=offset, size=size)
        self.ended += 1
        return piece


@pytest.fixture
def store(api: Api) -> CountedReads:
    return CountedReads(api._engines)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_a_file_is_read_in_pieces_of_a_bounded_size(
    api: Api, store: CountedReads, size: int
) -> None:
    """The pieces add up to the file."""
    data = bytes(index % 251 for index in range(size))
    await run_with_files(api.store, store, new_artifact("a.png", data))
    stored = await store.get(KEY, "a.png")

    pieces = [piece async for piece in store.pieces(KEY, stored)]

    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


async def test_a_piece_is_read_when_it_is_asked_for(api: Api, store: CountedReads) -> None:
    """A slow reader, or one that stops, holds one piece in memory."""
    await run_with_files(api.store, store, new_artifact("a.png", bytes(2 * PIECE_BYTES + 1)))
    stored = await store.get(KEY, "a.png")

    async with aclosing(store.pieces(KEY, stored)) as pieces:
        await anext(pieces)
        for _ in range(100):
            await asyncio.sleep(0)

    assert store.begun == 1


@pytest.mark.parametrize("moments", range(6))
async def test_a_reader_that_goes_away_cuts_off_no_statement(
    api: Api, store: CountedReads, moments: int
) -> None:
    """The running statement finishes first, and no other starts."""
    await run_with_files(api.store, store, new_artifact("a.png", bytes(2 * PIECE_BYTES + 1)))
    stored = await store.get(KEY, "a.png")
    piece = asyncio.ensure_future(anext(store.pieces(KEY, stored)))
    for _ in range(moments):
        await asyncio.sleep(0)
    piece.cancel()
    await asyncio.wait({piece})

    assert piece.cancelled()
    assert store.ended == store.begun <= 1
