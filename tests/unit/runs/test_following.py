"""Following a run: without delay, in order, until its end or until the follower leaves."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from caseworker.engine.context import FlowContext
from caseworker.engine.events import CONTENT_CHUNK, USAGE, Event
from caseworker.runs import service
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.journal.journal import EventLog, run_ended
from caseworker.runs.observers import RunNotifier
from caseworker.runs.ports import EventPage, JournalWrite
from caseworker.runs.read import event_followers
from caseworker.runs.run import EventRecord, RunKey, RunStatus
from caseworker.runs.service import RunService
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import KEY, RunProcess, database, loop, new_run, run_service
from tests.support.seeded_loop import play
from tests.support.stores import end_of


def event(seq: int) -> EventRecord:
    return EventRecord(seq=seq, ts=datetime(2026, 1, 1, tzinfo=UTC), type="text.delta")


class Elsewhere(MemoryRuns):
    """A store that another process writes to, so no notification arrives here."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[float] = []
        self._notifier = RunNotifier()
        self._notifier.notify = lambda *_, **__: None  # type: ignore[method-assign]

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        self.reads.append(loop().time())
        return await super().events(key, after=after, limit=limit)


async def tell(store: MemoryRuns, *numbers: int) -> None:
    events = tuple(event(number) for number in numbers)
    await store.write(JournalWrite(key=KEY, fence=1, events=events))


async def end(store: MemoryRuns, last_seq: int) -> None:
    run = await store.get(KEY)
    assert run is not None
    told = EventLog(last_seq=last_seq).followed_by(run_ended(RunStatus.COMPLETED, "success", None))
    await store.finish(end_of(run, events=told))


class Follower:
    """Follows a run in its own task and records the time of each event."""

    def __init__(
        self,
        store: MemoryRuns,
        after: int = 0,
        *,
        service: RunService | None = None,
        pause: float = 0,
    ) -> None:
        self.service = service or run_service(store)
        self.pause = pause
        self.seen: list[tuple[float, int]] = []
        self.task = asyncio.create_task(self._follow(after))

    async def _follow(self, after: int) -> None:
        async with aclosing(self.service.follow(KEY, after=after)) as batches:
            async for batch in batches:
                self.seen += [(round(loop().time(), 3), each.seq) for each in batch.events]
                await asyncio.sleep(self.pause)


def at_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (event_followers, service):
        monkeypatch.setattr(module, "AT_ONCE", count)


async def running(store: MemoryRuns) -> MemoryRuns:
    await store.accept(new_run(), worker_id="p1")
    return store


def test_what_this_process_stores_is_seen_at_once_and_the_end_ends_it() -> None:
    """Events arrive in order, without waiting for the next poll."""

    async def story() -> None:
        store = await running(database())
        follower = Follower(store)
        await asyncio.sleep(1.05)
        await tell(store, 1, 2)
        await asyncio.sleep(0.01)
        await tell(store, 3)
        await asyncio.sleep(0.01)
        await end(store, 3)
        await follower.task
        assert follower.seen == [(1.05, 1), (1.05, 2), (1.06, 3), (1.07, 4)]

    play(story)


def test_a_run_of_this_process_is_followed_without_reading_the_store() -> None:
    """Events arrive in the order of their numbers, with texts that the store keeps in a call."""
    words = "word " * 20

    class Unread(MemoryRuns):
        async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
            raise AssertionError("The store was read.")

    async def answer(context: FlowContext) -> None:
        def emit(type_: str, content: str | None = None, answer_of: str | None = None) -> None:
            data = {} if content is None else {"offset": 0, "content": content}
            event = Event(type=type_, step_id="a", data=data, answer_of=answer_of)
            assert context.run.events is not None
            context.run.events.emit(event)

        for pause in (1.0, 0.0):
            emit(CONTENT_CHUNK, words)
            await asyncio.sleep(pause)
            emit(USAGE, answer_of="a/turn/1")
            await asyncio.sleep(1)

    async def story() -> None:
        process = RunProcess(answer, Unread())
        await process.post()
        batches = [batch async for batch in process.service.follow(KEY)]
        events = [event for batch in batches for event in batch.events]
        texts = [event.data["content"] for event in events if event.type == CONTENT_CHUNK]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events[-1].type == "run.completed"
        assert texts == [words, words]
        await process.end_of()

    play(story)


def test_what_nobody_told_of_is_found_all_the_same() -> None:
    """Polling finds the events within a minute and does not become more frequent."""

    async def story() -> None:
        store = Elsewhere()
        follower = Follower(await running(store))
        await asyncio.sleep(4.95 * event_followers.LOOK_SECONDS)
        assert len(store.reads) == 5
        await tell(store, 1)
        await asyncio.sleep(event_followers.LOOK_SECONDS)
        assert [seq for _, seq in follower.seen] == [1]
        await end(store, 1)
        await follower.task
        assert [seq for _, seq in follower.seen] == [1, 2]

    play(story)


def test_a_follower_is_told_now_and_then_that_there_is_nothing_new() -> None:
    """An empty batch lets the caller send a keep-alive and check its client."""

    async def story() -> None:
        batches = run_service(await running(Elsewhere())).follow(KEY)
        async with aclosing(batches):
            told = [(len((await anext(batches)).events), round(loop().time(), 3)) for _ in range(9)]
        assert told == [(0, 5 * looks) for looks in range(9)]

    play(story)


def test_a_run_that_has_ended_is_followed_from_any_point() -> None:
    """A start after the last event returns at once."""

    async def story() -> None:
        store = await running(database())
        await tell(store, 1, 2)
        await end(store, 2)
        for after, expected in ((0, [1, 2, 3]), (2, [3]), (3, []), (99, [])):
            follower = Follower(store, after)
            await follower.task
            assert [seq for _, seq in follower.seen] == expected
        assert loop().time() == 0

    play(story)


def test_a_long_log_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages follow one another up to the last one, also if it is exactly full."""
    at_once(monkeypatch, 2)

    async def story() -> None:
        store = await running(Elsewhere())
        await tell(store, 1, 2, 3)
        early = Follower(store)
        await asyncio.sleep(0.01)
        assert early.seen == [(0, 1), (0, 2), (0, 3)]
        early.service.stop_waiting()
        await early.task

        await end(store, 3)
        follower = Follower(store)
        await follower.task
        assert [seq for _, seq in follower.seen] == [1, 2, 3, 4]

    play(story)


@pytest.mark.guarantee("7")
@pytest.mark.parametrize("seed", range(20))
def test_followers_of_one_run_share_the_reads_and_each_sees_every_event_once(seed: int) -> None:
    """Slow followers and followers that join or leave in between miss and repeat nothing."""
    followers: list[Follower] = []

    class Counted(MemoryRuns):
        reads = 0

        async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
            self.reads += 1
            await asyncio.sleep(0.01)
            return await super().events(key, after=after, limit=limit)

    async def story() -> None:
        chance = random.Random(seed)
        store = Counted()
        service = run_service(await running(store))
        followers.extend(Follower(store, service=service) for _ in range(50))
        followers.extend(
            Follower(store, service=service, pause=chance.uniform(0, 0.2)) for _ in range(5)
        )
        await asyncio.sleep(0.1)
        initial = store.reads
        for number in range(1, 101):
            await tell(store, number)
            if number % 20 == 0:
                followers.append(Follower(store, after=number - 15, service=service))
                leaving = followers.pop(0)
                leaving.task.cancel()
                await asyncio.wait({leaving.task})
            await asyncio.sleep(chance.choice((0, 0.005, 0.05)))
        shared = store.reads - initial
        await end(store, 100)
        for follower in followers:
            await follower.task
        assert initial == 1
        assert shared < 6 * 100  # fifty followers on their own: more than 3,000
        assert store._notifier._listeners == {}

    play(story, seed)
    for follower in followers:
        first = follower.seen[0][1]
        assert [seq for _, seq in follower.seen] == list(range(first, 102))


def test_a_follower_two_batches_behind_catches_up_at_once() -> None:
    """The other followers have read on, and no further notification arrives."""

    async def story() -> None:
        store = await running(database())
        shared = run_service(store)
        fast = Follower(store, service=shared)
        slow = Follower(store, service=shared, pause=7)
        await asyncio.sleep(0.1)  # the slow one is busy until 7
        for number in (1, 2, 3):
            await tell(store, number)
            await asyncio.sleep(0.01)
        fast.task.cancel()
        await asyncio.sleep(8)
        assert [seq for _, seq in slow.seen] == [1, 2, 3]
        slow.task.cancel()
        await asyncio.wait({slow.task, fast.task})

    play(story)


def test_an_end_without_events_reaches_a_busy_follower_at_once() -> None:
    """One follower has seen that the run ended while another one was busy with its last event."""

    class EndsLater(MemoryRuns):
        finished = False

        async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
            page = await super().events(key, after=after, limit=limit)
            return None if page is None else replace(page, finished=self.finished)

    async def story() -> None:
        store = EndsLater()
        shared = run_service(await running(store))
        fast = Follower(store, service=shared)
        slow = Follower(store, service=shared, pause=2)
        await asyncio.sleep(0.1)
        await tell(store, 1)
        await asyncio.sleep(2.5)  # the slow one is busy with event 1
        store.finished = True
        store._notifier.notify(KEY)
        await fast.task
        await slow.task
        assert loop().time() < 9

    play(story)


def test_a_full_page_that_is_shared_is_followed_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower that had a part of the page already reads on as well."""
    at_once(monkeypatch, 4)

    async def story() -> None:
        store = await running(database())
        shared = run_service(store)
        first = Follower(store, service=shared)
        await asyncio.sleep(0.1)
        store._notifier.notify = lambda *_, **__: None  # type: ignore[method-assign]
        await tell(store, 1)
        second = Follower(store, service=shared)
        await asyncio.sleep(0.1)
        await tell(store, 2, 3, 4, 5, 6)
        for bell in tuple(store._notifier._listeners[KEY]):
            bell.set()
        await asyncio.sleep(1)
        assert [seq for _, seq in second.seen] == [1, 2, 3, 4, 5, 6]
        assert [seq for _, seq in first.seen] == [1, 2, 3, 4, 5, 6]
        shared.stop_waiting()
        await asyncio.wait({first.task, second.task})

    play(story)


def test_a_follower_with_a_number_beyond_the_end_does_not_make_another_one_read_in_a_loop() -> None:
    """Both wait for the next event; the other one reads once to find out that there is none."""

    class Counted(MemoryRuns):
        reads = 0

        async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
            self.reads += 1
            assert self.reads < 20
            return await super().events(key, after=after, limit=limit)

    async def story() -> None:
        store = Counted()
        shared = run_service(await running(store))
        beyond = Follower(store, after=10, service=shared)
        await asyncio.sleep(0.1)
        other = Follower(store, service=shared)
        await asyncio.sleep(1)
        await tell(store, 1)
        await asyncio.sleep(0.1)
        assert other.seen == [(1.1, 1)]
        await end(store, 1)
        await other.task
        await beyond.task

    play(story)


def test_the_end_of_the_process_ends_it_at_once() -> None:
    """Followers end with the process, and a later follower gets no events."""

    async def story() -> None:
        store = await running(database())
        follower = Follower(store)
        await asyncio.sleep(1)
        follower.service.stop_waiting()
        await follower.task
        assert loop().time() == 1
        assert [batch async for batch in follower.service.follow(KEY, after=0)] == []

    play(story)


def test_a_follower_that_goes_away_leaves_nothing_behind() -> None:
    """A follower that leaves finishes its running read first."""
    ended: list[str] = []

    class Slow(MemoryRuns):
        async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
            await asyncio.sleep(1)
            ended.append("read")
            return await super().events(key, after=after, limit=limit)

    async def story() -> None:
        store = Slow()
        follower = Follower(await running(store))
        await asyncio.sleep(0.5)
        follower.task.cancel()
        await asyncio.wait({follower.task})
        assert follower.task.cancelled()
        assert ended == ["read"]
        assert store._notifier._listeners == {}

    play(story)


def test_there_is_nothing_to_follow_without_a_run() -> None:
    """The error is raised before the first batch."""

    async def story() -> None:
        with pytest.raises(RunNotFoundError):
            await anext(run_service(database()).follow(KEY, after=0))

    play(story)


@pytest.mark.parametrize("text", ["half of a pair: \ud83d", "\0"])
def test_an_event_that_the_store_changes_is_read_from_it(text: object) -> None:
    """Postgres stores no half of a surrogate pair, and no stream can send one."""
    notifier = RunNotifier()
    with notifier.listening(KEY) as notification:
        notifier.notify(KEY, [event(1)])
        plain = notification.take(0)
        notifier.notify(KEY, [replace(event(2), data={"content": [{"text": text}]})])
        changed = notification.take(1)

    assert plain == EventPage([event(1)], finished=False)
    assert changed is None


def test_bells_ring_for_all_who_listen_to_a_run() -> None:
    """All listeners of a run are notified until they stop listening."""
    notifier, other = RunNotifier(), RunKey("t", "other")
    with notifier.listening(KEY) as first, notifier.listening(other) as second:
        with notifier.listening(KEY) as third:
            notifier.notify(KEY)
            heard: Sequence[bool] = [
                notification.is_set() for notification in (first, second, third)
            ]
        third.clear()
        notifier.notify(KEY)

    assert heard == [True, False, True]
    assert not third.is_set()
    notifier.notify(KEY)
