"""How a run stores the files of its tool calls."""

import asyncio
import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.engine.cancellation import CancellationToken
from caseworker.features.artifacts.storage import (
    PAUSES_SECONDS,
    SMALL_BYTES,
    ArtifactLimits,
    CallArtifacts,
    NewArtifact,
    RunArtifacts,
    SaveOutcome,
    StorageFullError,
)
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.journal.journal import LostRunError
from caseworker.runs.run import RunKey
from caseworker.tools.artifacts import ArtifactTooLargeError, stem_of
from tests.support.artifacts import LIMITS, Files, SavedFiles, files_of_a_run
from tests.support.runs import run_story

PNG = "image/png"
NAME = re.compile("[a-z0-9][a-z0-9._-]{0,99}")


class ShakyArtifacts(SavedFiles):
    """A file store whose first saves fail, possibly after storing the file."""

    def __init__(self, *, away: int) -> None:
        super().__init__()
        self.away = away
        self.asked = 0

    async def save(
        self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits
    ) -> SaveOutcome:
        self.asked += 1
        kept = await super().save(key, fence, new, limits)
        if self.asked <= self.away:
            raise StoreUnavailableError
        return kept


class SlowArtifacts(SavedFiles):
    """A slow file store that counts started and finished saves."""

    begun = ended = 0

    async def save(
        self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits
    ) -> SaveOutcome:
        self.begun += 1
        await asyncio.sleep(0.5)
        kept = await super().save(key, fence, new, limits)
        self.ended += 1
        return kept


def keeper(files: Files) -> RunArtifacts:
    """Return the run's files with a new cancellation token."""
    return RunArtifacts(files.store.save, LIMITS, files.run, CancellationToken())


async def test_a_file_is_kept_under_a_name_that_the_call_gives_it() -> None:
    """The returned metadata is the stored metadata."""
    files = await files_of_a_run()
    sink = keeper(files).sink_of("case/small/1/act/1")

    saved = await sink.save("plot-aapl-line", PNG, b"pixels")

    digest = hashlib.sha256(b"case/small/1/act/1").hexdigest()[:8]
    assert saved.name == f"plot-aapl-line-{digest}-1.png"
    assert (saved.media_type, saved.size_bytes) == (PNG, 6)
    assert saved.sha256 == hashlib.sha256(b"pixels").hexdigest()
    [stored] = files.store.kept.values()
    assert (stored.name, stored.sha256, stored.data) == (saved.name, saved.sha256, b"pixels")


async def test_a_call_that_is_made_again_keeps_its_files_under_the_same_names() -> None:
    """Each call has its own names, whether or not the bytes are equal."""
    files = await files_of_a_run()
    names = []
    for key, data in (("a", b"1"), ("b", b"1"), ("a", b"1"), ("a", b"2"), ("b", b"1")):
        sink = keeper(files).sink_of(key)
        names.append((await sink.save("plot", PNG, data)).name)

    assert names[0] == names[2] == names[3]
    assert names[1] == names[4] != names[0]
    assert sorted(files.store.names) == sorted(set(names))


async def test_the_files_of_a_call_are_numbered_and_the_same_bytes_are_kept_once() -> None:
    """A tool may save the same bytes repeatedly."""
    files = await files_of_a_run()
    sink = keeper(files).sink_of("a")

    saved = [
        await sink.save(stem, PNG, data)
        for stem, data in (("p", b"1"), ("p", b"2"), ("p", b"1"), ("q", b"1"))
    ]

    assert saved[2] == saved[0]
    assert [name.rpartition("-")[2] for name in files.store.names] == ["1.png", "2.png", "4.png"]
    assert list(sink.saved) == [saved[0], saved[1], saved[3]]


@pytest.mark.req("002/23.3")
async def test_a_file_that_is_too_large_is_refused_before_anybody_is_asked_to_store_it() -> None:
    """A file of exactly the maximum size is stored."""
    store = ShakyArtifacts(away=0)
    sink = keeper(await files_of_a_run(store)).sink_of("a")

    with pytest.raises(ArtifactTooLargeError, match="1,000,000"):
        await sink.save("p", PNG, bytes(LIMITS.max_bytes + 1))
    assert store.asked == 0
    assert sink.max_bytes == LIMITS.max_bytes
    await sink.save("p", PNG, bytes(LIMITS.max_bytes))

    assert [saved.size_bytes for saved in sink.saved] == [LIMITS.max_bytes]


@pytest.mark.req("002/23.3")
async def test_a_run_that_is_full_says_what_it_may_keep() -> None:
    """The tool gets the same error class as for a file that is too large."""
    files = await files_of_a_run()
    sink = keeper(files).sink_of("a")
    for data in (b"1", b"2", b"3"):
        await sink.save("p", PNG, data)
    files.store.answer = SaveOutcome.FULL

    with pytest.raises(ArtifactTooLargeError, match="keep 3 files of 2,000,000 bytes") as refused:
        await sink.save("p", PNG, b"4")

    assert isinstance(refused.value, StorageFullError)
    assert len(sink.saved) == len(files.store.names) == 3


async def test_an_owner_that_has_lost_its_run_keeps_nothing_and_is_stopped() -> None:
    """Losing the run is never reported as a failure of the tool."""
    files = await files_of_a_run()
    frozen = keeper(files)
    files.store.answer = SaveOutcome.LOST

    with pytest.raises(LostRunError):
        await frozen.sink_of("a").save("p", PNG, b"1")

    assert isinstance(frozen.token.stop, LostRunError)
    assert not isinstance(frozen.token.stop, Exception)
    assert files.store.names == []


@pytest.mark.parametrize("away", [1, len(PAUSES_SECONDS)])
def test_a_database_that_is_away_for_a_while_is_waited_for(away: int) -> None:
    """The save is retried, although the lost answer may have been a success."""

    async def story() -> None:
        store = ShakyArtifacts(away=away)
        await keeper(await files_of_a_run(store)).sink_of("a").save("p", PNG, b"1")

        assert store.asked == away + 1
        assert len(store.kept) == 1

    run_story(story, after_seconds=0)


def test_a_database_that_stays_away_is_an_error_of_the_tool() -> None:
    """The tool's error is marked as retryable."""

    async def story() -> None:
        files = await files_of_a_run(ShakyArtifacts(away=100))
        with pytest.raises(StoreUnavailableError):
            await keeper(files).sink_of("a").save("p", PNG, b"1")

    run_story(story, after_seconds=0)


@pytest.mark.parametrize("moments", range(16))
def test_a_tool_that_is_cut_off_cuts_off_no_statement(moments: int) -> None:
    """A running statement finishes first; then the cancellation continues."""

    async def story() -> None:
        store = SlowArtifacts()
        sink = keeper(await files_of_a_run(store)).sink_of("a")
        saving = asyncio.ensure_future(sink.save("p", PNG, bytes(SMALL_BYTES + 1)))
        for _ in range(moments):
            await asyncio.sleep(0)
        saving.cancel()
        await asyncio.wait({saving})

        assert saving.cancelled()
        assert store.ended == store.begun

    run_story(story, after_seconds=0)


@given(words=st.lists(st.text(max_size=90), max_size=4), key=st.text(max_size=200))
def test_any_call_and_any_words_make_a_name_that_fits_a_path(words: list[str], key: str) -> None:
    """The name of a file is shortened to fit a path."""

    async def story() -> None:
        files = await files_of_a_run()
        saved = await keeper(files).sink_of(key).save(stem_of("plot", *words), PNG, b"1")
        assert NAME.fullmatch(saved.name)

    run_story(story, after_seconds=0)


@pytest.mark.parametrize(("stem", "media_type"), [("../p", PNG), ("", PNG), ("p", "text/html")])
async def test_what_no_name_can_be_made_of_is_refused(stem: str, media_type: str) -> None:
    """A file without a valid name is not stored."""
    files = await files_of_a_run()

    with pytest.raises(ValueError, match="artifact"):
        await CallArtifacts(keeper(files), "a").save(stem, media_type, b"1")

    assert files.store.names == []
