"""Contract of the stores for events, tested on every implementation."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker.engine.events import STEP_COMPLETED, STEP_STARTED
from caseworker.runs.journal.event_pairs import OpenStarts
from caseworker.runs.journal.journal import EventLog, run_ended
from caseworker.runs.ports import EventPage, JournalWrite, LateResult
from caseworker.runs.run import EventRecord, FinishRun, Run, RunKey, RunStatus
from tests.support.event_log import event_problems
from tests.support.ports import KEY, Ports
from tests.support.stores import CANCEL_REQUEST, end_of, graph_with_calls, records_of

AT = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)


def event(seq: int, type_: str = "text.delta", **values: object) -> EventRecord:
    return replace(EventRecord(seq=seq, ts=AT, type=type_), **values)  # type: ignore[arg-type]


def ended(run: Run, status: RunStatus = RunStatus.COMPLETED, *, last_seq: int = 0) -> FinishRun:
    """Return the end of a run together with its final event."""
    end = run_ended(status, "success", None)
    return end_of(run, status, events=EventLog(last_seq=last_seq).followed_by(end))


async def stored(ports: Ports, after: int = 0, limit: int = 100) -> Sequence[EventRecord]:
    page = await ports.runs.events(KEY, after=after, limit=limit)
    assert page is not None
    return page.events


class TestTelling:
    @pytest.mark.req("004/lifecycle")
    async def test_what_is_told_is_read_as_it_was(self, ports: Ports) -> None:
        """An event keeps its number, time, step and data."""
        await ports.claimed()
        events = (
            event(1, STEP_STARTED, step_id="outer/inner", node_id="n000002"),
            event(2, data={"text": "\u00e9", "deep": [1, {"a": None}]}),
        )
        await ports.journal.write(JournalWrite(key=KEY, fence=1, events=events))

        assert await stored(ports) == list(events)

    async def test_events_are_read_from_any_point_and_page_by_page(self, ports: Ports) -> None:
        """Events are ordered by number, whatever order they were written in."""
        await ports.claimed()
        write = JournalWrite(key=KEY, fence=1, events=tuple(event(n) for n in (3, 1, 2, 4)))
        await ports.journal.write(write)

        assert [each.seq for each in await stored(ports, after=1, limit=2)] == [2, 3]
        assert [each.seq for each in await stored(ports, after=4)] == []
        assert [each.seq for each in await stored(ports, after=2**31 - 1)] == []

    async def test_an_event_that_is_stored_stays_as_it_is(self, ports: Ports) -> None:
        """A client may have read the event, so writing it again changes nothing."""
        await ports.claimed()
        first = event(1, data={"text": "first"})
        for events in ((first,), (first,), (event(1, data={"text": "other"}), event(2))):
            await ports.journal.write(JournalWrite(key=KEY, fence=1, events=events))

        assert await stored(ports) == [first, event(2)]

    async def test_a_page_says_whether_the_run_had_ended(self, ports: Ports) -> None:
        """A missing run and a pending cancel request have no page."""
        run = await ports.claimed()
        await ports.runs.cancel(RunKey("default", "early"), CANCEL_REQUEST)
        before = await ports.runs.events(KEY, after=0, limit=10)
        await ports.journal.finish(ended(run))
        after = await ports.runs.events(KEY, after=0, limit=10)

        assert before is not None
        assert after is not None
        assert (before.finished, after.finished) == (False, True)
        for key in (RunKey("default", "early"), RunKey("default", "x"), RunKey("other", "case-1")):
            assert await ports.runs.events(key, after=0, limit=10) is None

    @pytest.mark.req("card/executor")
    async def test_only_the_owner_tells(self, ports: Ports) -> None:
        """Events under an older fence or after the end are dropped."""
        run = await ports.claimed()
        await ports.runs.release(run, active_seconds=0, calls=(), counted=True)
        again = await ports.runs.claim(KEY, "w2")
        assert again is not None
        await ports.journal.write(JournalWrite(key=KEY, fence=1, events=(event(1),)))
        assert not (await ports.journal.finish(ended(run))).done
        await ports.runs.release(run, active_seconds=0, calls=(), counted=True, events=(event(1),))
        assert await stored(ports) == []

        await ports.journal.finish(ended(again))
        await ports.journal.write(JournalWrite(key=KEY, fence=2, events=(event(2),)))
        assert [each.type for each in await stored(ports)] == ["run.completed"]

    @pytest.mark.req("004/lifecycle")
    @pytest.mark.guarantee(12)
    async def test_the_next_owner_goes_on_behind_the_last_event_that_is_stored(
        self, ports: Ports
    ) -> None:
        """The next owner continues the numbering after events of the journal and of a release."""
        run = await ports.claimed()
        await ports.journal.write(JournalWrite(key=KEY, fence=1, events=(event(1), event(2))))
        skipped = event(3, "step.skipped", step_id="a/b", once_key="a/b|skipped")
        await ports.runs.release(
            run, active_seconds=1, calls=(), counted=True, events=(event(2), skipped)
        )
        again = await ports.runs.claim(KEY, "w2")

        assert again is not None
        assert (run.last_seq, again.last_seq) == (0, 3)
        assert (sorted(run.stored_once), sorted(again.stored_once)) == ([], ["a/b|skipped"])
        assert [each.seq for each in await stored(ports)] == [1, 2, 3]

    async def test_the_next_owner_knows_the_answers_that_did_not_come_to_their_end(
        self, ports: Ports
    ) -> None:
        """The next owner gets the partial text by step; a turn with a usage event is complete."""

        def part(seq: int, step: str, offset: int, content: str, turn: int = 1) -> EventRecord:
            data = {"turn_number": turn, "offset": offset, "content": content}
            return event(seq, "content_chunk", step_id=step, data=data)

        used = {"turn_number": 1, "tokens_in": 1, "tokens_out": 1, "cost_usd": None}
        run = await ports.claimed()
        parts = (
            part(1, "a", 0, "First."),
            event(2, "usage", step_id="a", data=used, once_key="a|usage|1|turn"),
            part(3, "a", 0, "Half", turn=2),
            part(4, "b", 0, "Lost"),
            part(5, "a", 4, " way", turn=2),
            part(6, "b", 0, "Anew"),
            part(7, "c", 0, "All."),
            event(8, "usage", step_id="c", data=used, once_key="c|usage|1|turn"),
            event(
                9, "content_chunk", step_id="d", data={"turn_number": 1, "offset": 0, "chars": 9}
            ),
        )
        await ports.runs.release(run, active_seconds=1, calls=(), counted=True, events=parts)

        again = await ports.runs.claim(KEY, "w2")

        assert again is not None
        assert again.streamed == {
            ("a", "content_chunk"): (2, "Half way"),
            ("b", "content_chunk"): (1, "Anew"),
        }

    async def test_the_next_owner_knows_what_has_started_and_not_ended(self, ports: Ports) -> None:
        """The next owner gets the starts without an end, compact or not, with their keys."""
        tool = {"turn_number": 1, "tool_call": {"id": "c", "name": "t", "arguments": "{}"}}
        ended = {"turn_number": 1, "tool_call_id": "c", "name": "t", "result": "{}"}
        made = {"kind": "llm", "name": "turn", "model": None}

        def pair(seq: int, kind: str, step: str, node: str, once: str | None = None) -> EventRecord:
            data: dict[str, Any] = {
                "turn_start": {"turn_number": 1},
                "turn_end": {"turn_number": 1},
            }
            data |= {"tool_call_start": tool, "tool_call_end": ended, "call.started": made}
            key = None if once is None else f"{step}|{kind}|{once}"
            about = data.get(kind, {})
            return event(seq, kind, step_id=step, node_id=node, data=about, once_key=key)

        events = (
            pair(1, "step.started", "a", "n2"),
            pair(2, "turn_start", "a", "n2", "1"),
            pair(3, "call.started", "a", "n3"),
            pair(4, "call.completed", "a", "n3"),
            pair(5, "tool_call_start", "a", "n2", "1|1"),
            pair(6, "tool_call_start", "a", "n2", "1|2"),
            pair(7, "tool_call_end", "a", "n2", "1|1"),
            pair(8, "call.started", "a", "n4"),
            pair(9, "step.started", "b", "n5"),
            pair(10, "turn_start", "b", "n5", "1"),
            pair(11, "turn_end", "b", "n5", "1"),
            pair(12, "step.completed", "b", "n5"),
            event(13, "turn_start", step_id="a", node_id="n2", data={"mine": 1}),
            pair(14, "step.resumed", "a", "n6"),
        )
        run = await ports.claimed()
        await ports.runs.release(run, active_seconds=1, calls=(), counted=True, events=events)

        again = await ports.runs.claim(KEY, "w2")

        assert again is not None
        opened = OpenStarts(again.open_starts).all()
        assert [(each.type, each.node_id, each.once_key) for each in opened] == [
            ("call.started", "n4", None),
            ("tool_call_start", "n2", "a|tool_call_start|1|2"),
            ("turn_start", "n2", "a|turn_start|1"),
            ("step.resumed", "n6", None),
        ]
        assert [each.data for each in opened] == [made, tool, {"turn_number": 1}, {}]

    async def test_whoever_listens_hears_of_what_this_process_stores(self, ports: Ports) -> None:
        """A listener is notified only about its own run, and receives its events as stored."""
        run = await ports.claimed()
        await ports.claimed("case-2")
        with (
            ports.runs.listening(KEY) as notification,
            ports.runs.listening(RunKey("default", "case-2")) as other,
        ):
            async with asyncio.timeout(150):
                await ports.journal.write(JournalWrite(key=KEY, fence=1, events=(event(1),)))
                await notification.wait()
                assert notification.take(0) == EventPage(await stored(ports), finished=False)
                await ports.journal.finish(ended(run, last_seq=1))
                await notification.wait()
                assert notification.take(1) == EventPage(await stored(ports, 1), finished=True)
            assert not other.is_set()


class TestEnding:
    @pytest.mark.req("004/lifecycle")
    @pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.HALTED])
    async def test_the_end_of_a_run_is_its_last_event(
        self, ports: Ports, status: RunStatus
    ) -> None:
        """The final event is written with the status, and once even if the end is repeated."""
        run = await ports.claimed()
        await ports.journal.write(JournalWrite(key=KEY, fence=1, events=(event(1),)))
        for _ in range(2):
            await ports.journal.finish(ended(run, status, last_seq=1))

        assert [each.type for each in await stored(ports)] == ["text.delta", f"run.{status}"]
        assert event_problems(await stored(ports), status) == []

    async def test_an_end_that_loses_against_a_cancel_request_emits_nothing(
        self, ports: Ports
    ) -> None:
        """The end that is written instead takes its number."""
        run = await ports.claimed()
        await ports.runs.cancel(KEY, CANCEL_REQUEST)
        await ports.journal.finish(ended(run))
        assert await stored(ports) == []
        await ports.journal.finish(ended(run, RunStatus.CANCELLED))

        assert [(each.seq, each.type) for each in await stored(ports)] == [(1, "run.cancelled")]

    @pytest.mark.req("card/delete")
    async def test_a_run_that_nobody_executes_ends_with_an_event_as_well(
        self, ports: Ports
    ) -> None:
        """This holds for runs cancelled before they existed and in the queue."""
        await ports.runs.cancel(KEY, CANCEL_REQUEST)
        await ports.claimed()
        [end] = await stored(ports)
        assert (end.seq, end.type) == (1, "run.cancelled")
        assert end.data["stop"]["requested_by"] == "tester"

        await ports.queued("case-2")
        await ports.runs.cancel(other := RunKey("default", "case-2"), CANCEL_REQUEST)
        page = await ports.runs.events(other, after=0, limit=10)
        assert page is not None
        assert event_problems(page.events, "cancelled") == []

    async def test_a_run_that_is_cancelled_between_two_owners_goes_on_numbering(
        self, ports: Ports
    ) -> None:
        """Stored events of the first owner remain; the owner that ends the run continues them."""
        run = await ports.claimed()
        events = (event(1, STEP_STARTED, step_id="a", node_id="n000002"), event(2))
        await ports.runs.release(run, active_seconds=1, calls=(), counted=True, events=events)
        await ports.runs.cancel(KEY, CANCEL_REQUEST)
        claimed = await ports.runs.claim_stopped(KEY, "w2")
        assert claimed is not None
        end = ended(claimed, RunStatus.CANCELLED, last_seq=claimed.last_seq)
        assert (await ports.journal.finish(end)).done

        assert [(each.seq, each.type) for each in await stored(ports)] == [
            (1, STEP_STARTED),
            (2, "text.delta"),
            (3, "run.cancelled"),
        ]

    @pytest.mark.req("001/inv3")
    async def test_a_late_cost_is_told_behind_the_end(self, ports: Ports) -> None:
        """Only the owner that finished the run can add its late cost."""
        run = await ports.claimed()
        await ports.runs.release(run, active_seconds=0, calls=(), counted=True)
        again = await ports.runs.claim(KEY, "w2")
        assert again is not None
        records = records_of(graph_with_calls("case-1"))
        await ports.journal.finish(ended(again))
        before = await ports.stored()
        old = LateResult(key=KEY, fence=1, calls=records, usage={"tokens": 1})
        await ports.runs.late(old)
        assert await ports.stored() == before
        assert (await ports.runs.calls(KEY), len(await stored(ports))) == ([], 1)

        await ports.runs.late(replace(old, fence=2))
        assert (await ports.stored()).usage == {"tokens": 1}
        assert [(each.seq, each.type) for each in await stored(ports)] == [
            (1, "run.completed"),
            (2, "late_result"),
        ]
        assert (await stored(ports))[1].data == {"usage": {"tokens": 1}}

    async def test_a_late_cost_of_a_run_that_goes_on_is_dropped(self, ports: Ports) -> None:
        """For such a run the lost call is counted at its estimate."""
        await ports.claimed()
        await ports.runs.late(LateResult(key=KEY, fence=1, calls=(), usage={"tokens": 1}))

        assert (await ports.stored()).usage is None
        assert await stored(ports) == []


class TestGuards:
    @pytest.mark.req("004/lifecycle")
    @pytest.mark.parametrize(
        "second",
        [
            event(3, STEP_STARTED, step_id="a", node_id="n000009"),
            event(3, "step.error", step_id="a", node_id="n000002"),
            event(3, STEP_COMPLETED, step_id="a", node_id="n000002"),
        ],
        ids=["a second start", "another end", "a second end"],
    )
    @pytest.mark.guarantee(5)
    async def test_a_lifecycle_event_that_contradicts_another_is_refused(
        self, ports: Ports, second: EventRecord
    ) -> None:
        """The store refuses the event and all events of the same write."""
        await ports.claimed()
        sound = (
            event(1, STEP_STARTED, step_id="a", node_id="n000002"),
            event(2, STEP_COMPLETED, step_id="a", node_id="n000002"),
        )
        await ports.journal.write(JournalWrite(key=KEY, fence=1, events=sound))
        with pytest.raises(Exception, match=r"(?i)events_one|EventRecord"):
            await ports.journal.write(JournalWrite(key=KEY, fence=1, events=(*sound, second)))

        assert await stored(ports) == list(sound)

    async def test_a_step_may_be_resumed_often_and_end_once_in_each_execution(
        self, ports: Ports
    ) -> None:
        """Other steps have their own starts and ends."""
        await ports.claimed()
        events = (
            event(1, STEP_STARTED, step_id="a", node_id="n000002"),
            event(2, STEP_STARTED, step_id="a/b", node_id="n000003"),
            event(3, "step.resumed", step_id="a", node_id="n000004"),
            event(4, "step.resumed", step_id="a", node_id="n000005"),
            event(5, STEP_COMPLETED, step_id="a", node_id="n000005"),
            event(6, "step.error", step_id="a/b", node_id="n000003"),
        )
        await ports.journal.write(JournalWrite(key=KEY, fence=1, events=events))

        assert await stored(ports) == list(events)
