"""Reading the bytes of a file."""

import asyncio
from contextlib import aclosing

import pytest

from caseworker.features.artifacts.keeping import PIECE_BYTES, ArtifactReading, StoredArtifact
from caseworker.runs.errors import ArtifactNotFoundError, RunNotFoundError
from caseworker.runs.run import RunKey
from tests.support.artifacts import StubArtifacts, files_of_a_run, new_artifact
from tests.support.seeded_loop import run

LARGE = bytes(2 * PIECE_BYTES + 1)


class CountedReads(StubArtifacts):
    """A slow file store that counts started and finished reads."""

    begun = ended = 0

    async def read(
        self, key: RunKey, artifact: StoredArtifact, *, offset: int, size: int
    ) -> bytes | None:
        self.begun += 1
        await asyncio.sleep(0.5)
        piece = await super().read(key, artifact, offset=offset, size=size)
        self.ended += 1
        return piece


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_a_file_is_read_in_pieces_of_a_bounded_size(size: int) -> None:
    """The pieces add up to the file."""
    data = bytes(index % 251 for index in range(size))
    files = await files_of_a_run(new_artifact("a.png", data))
    reading = ArtifactReading(files.store)
    stored = await reading.get(files.run.key, "a.png")

    pieces = [piece async for piece in reading.pieces(files.run.key, stored)]

    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


def test_a_piece_is_read_when_it_is_asked_for() -> None:
    """A slow reader, or one that stops, holds one piece in memory."""

    async def story() -> None:
        store = CountedReads()
        files = await files_of_a_run(new_artifact("a.png", LARGE), store=store)
        reading = ArtifactReading(store)
        stored = await reading.get(files.run.key, "a.png")
        async with aclosing(reading.pieces(files.run.key, stored)) as pieces:
            await anext(pieces)
            await asyncio.sleep(60)

        assert store.begun == 1

    run(story, 0)


@pytest.mark.parametrize("moments", range(6))
def test_a_reader_that_goes_away_cuts_off_no_statement(moments: int) -> None:
    """The running statement finishes first, and no other starts."""

    async def story() -> None:
        store = CountedReads()
        files = await files_of_a_run(new_artifact("a.png", LARGE), store=store)
        reading = ArtifactReading(store)
        stored = await reading.get(files.run.key, "a.png")
        piece = asyncio.ensure_future(anext(reading.pieces(files.run.key, stored)))
        for _ in range(moments):
            await asyncio.sleep(0)
        piece.cancel()
        await asyncio.wait({piece})

        assert piece.cancelled()
        assert store.ended == store.begun <= 1

    run(story, 0)


async def test_what_is_missing_is_said() -> None:
    """The error distinguishes a missing run from a missing file."""
    files = await files_of_a_run()
    reading = ArtifactReading(files.store)

    with pytest.raises(ArtifactNotFoundError):
        await reading.get(files.run.key, "a.png")
    with pytest.raises(RunNotFoundError):
        await reading.get(RunKey("default", "nobody"), "a.png")
    with pytest.raises(RunNotFoundError):
        await reading.find(RunKey("default", "nobody"))
