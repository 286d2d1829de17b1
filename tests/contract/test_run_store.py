"""Contract of the run store, tested on every implementation."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.errors import (
    IdempotencyMismatchError,
    InvalidRunError,
    RunConflictError,
    TooManyPendingCancelsError,
)
from caseworker.runs.ports import (
    JournalWrite,
    RunFilter,
)
from caseworker.runs.run import CancelRequest, DefinitionRef, RunKey, RunKind, RunStatus
from tests.support.graph_invariants import violations
from tests.support.limits import store_limits
from tests.support.ports import KEY, Open, Ports, on_postgres
from tests.support.stores import (
    CANCEL_REQUEST,
    end_of,
    graph_with_calls,
    new_run,
    records_of,
    stored_graph,
)


class TestAccepting:
    async def test_a_run_without_a_worker_is_claimed_once(self, ports: Ports) -> None:
        """The second claim finds no run."""
        queued = await ports.queued()
        claimed = await ports.runs.claim(KEY, "w1")

        assert (queued.status, queued.fence, queued.attempts) == (RunStatus.QUEUED, 0, 0)
        assert claimed is not None
        assert (claimed.status, claimed.worker_id) == (RunStatus.RUNNING, "w1")
        assert (claimed.fence, claimed.attempts) == (1, 1)
        assert await ports.runs.claim(KEY, "w2") is None
        assert await ports.runs.claim(RunKey("default", "nobody"), "w2") is None

    async def test_the_same_request_is_the_same_run(self, ports: Ports) -> None:
        """Repeating the request returns the run; another body is a conflict."""
        await ports.claimed()
        again = await ports.runs.accept(new_run("case-1"), worker_id="w2")

        assert not again.created
        assert again.run.worker_id == "w1"
        with pytest.raises(RunConflictError):
            await ports.runs.accept(new_run("case-1", text="3+3?"), worker_id="w1")

    @pytest.mark.req("card/s2s")
    async def test_one_idempotency_key_is_one_run(self, ports: Ports) -> None:
        """Another body with the key is a mismatch; another run ID or key is a conflict."""
        first = await ports.runs.accept(new_run("case-1", key="k"), worker_id="w1")
        again = await ports.runs.accept(new_run("case-1", key="k"), worker_id=None)
        unnamed = await ports.runs.accept(new_run("x", key="k", named=False), worker_id=None)

        assert [first.created, again.created, unnamed.created] == [True, False, False]
        assert unnamed.run.key == KEY
        assert await ports.runs.get(RunKey("default", "x")) is None
        with pytest.raises(IdempotencyMismatchError):
            await ports.runs.accept(new_run("case-1", key="k", text="3+3?"), worker_id="w1")
        with pytest.raises(RunConflictError):
            await ports.runs.accept(new_run("case-2", key="k"), worker_id="w1")
        with pytest.raises(RunConflictError):
            await ports.runs.accept(new_run("case-1", key="other"), worker_id="w1")

    async def test_tenants_do_not_meet(self, ports: Ports) -> None:
        """Each tenant can use the same ID and the same key."""
        await ports.runs.accept(new_run("case-1", key="k"), worker_id="w1")
        other = await ports.runs.accept(new_run("case-1", key="k", tenant="b"), worker_id="w1")

        assert other.created
        assert await ports.runs.get(RunKey("c", "case-1")) is None
        assert other.run.key == RunKey("b", "case-1")


@pytest.mark.req("003/resume")
class TestLosing:
    async def test_only_losses_in_a_row_without_progress_are_counted(self, ports: Ports) -> None:
        """A new result between two losses resets the count; ``attempts`` keeps growing."""
        await ports.claimed()
        seen = []
        for results in (0, 0, 2, 2, 3, 3, 3):
            run = await ports.stored()
            records = records_of(graph_with_calls("case-1", llm_calls=results))
            calls = tuple(
                replace(record, call_key=f"call {n}", outcome="result" if n else None)
                for n, record in enumerate(records)
            )
            await ports.journal.write(JournalWrite(key=KEY, fence=run.fence, calls=calls))
            await ports.lose()
            claimed = await ports.runs.claim(KEY, "w2")
            assert claimed is not None
            seen.append((claimed.losses, claimed.attempts))

        assert [losses for losses, _ in seen] == [1, 2, 0, 1, 0, 1, 2]
        assert [attempts for _, attempts in seen] == [2, 3, 4, 5, 6, 7, 8]

    async def test_the_same_call_made_again_is_no_progress(self, ports: Ports) -> None:
        """Repeated calls do not reset the count, so a run that kills its workers ends."""
        await ports.claimed()
        seen = []
        for made in (1, 2, 3):
            run = await ports.stored()
            records = records_of(graph_with_calls("case-1", llm_calls=made))
            calls = tuple(
                replace(record, call_key="call", outcome="result") for record in records[1:]
            )
            write = JournalWrite(key=KEY, fence=run.fence, calls=(records[0], *calls))
            await ports.journal.write(write)
            await ports.lose()
            claimed = await ports.runs.claim(KEY, "w2")
            assert claimed is not None
            seen.append(claimed.losses)

        assert seen == [0, 1, 2]

    async def test_a_run_that_is_given_back_counts_as_lost_where_its_attempt_counts(
        self, ports: Ports
    ) -> None:
        """A process that releases it without counting the attempt has not lost it."""
        for counted, losses in ((False, 0), (True, 1), (False, 1), (True, 2)):
            run = await ports.runs.claim(KEY, "w1") or await ports.claimed()
            await ports.runs.release(run, active_seconds=1, calls=(), counted=counted)
            assert (await ports.stored()).losses == losses


@pytest.mark.req("card/delete")
class TestStopping:
    async def test_a_cancel_request_for_a_run_that_comes_later_stops_it(self, ports: Ports) -> None:
        """No worker sees the run, and its trace is a halted root."""
        early = await ports.runs.cancel(KEY, CANCEL_REQUEST)
        unseen = await ports.runs.get(KEY)
        accepted = await ports.runs.accept(new_run("case-1"), worker_id="w1")
        snapshot = await stored_graph(ports.runs, KEY)

        assert (early.run, early.already_finished, unseen) == (None, False, None)
        assert early.cancel_request is not None
        assert early.cancel_request.requested_at is not None
        assert accepted.created
        assert accepted.run.status is RunStatus.CANCELLED
        assert (accepted.run.fence, accepted.run.attempts) == (0, 0)
        assert accepted.run.stop is not None
        assert accepted.run.stop["requested_by"] == "tester"
        assert snapshot is not None
        assert violations(dict(snapshot)) == []
        assert [node["status"] for node in snapshot["nodes"].values()] == ["halt"]
        assert await ports.runs.claim(KEY, "w1") is None
        assert [record.node["status"] for record in await ports.runs.calls(KEY)] == ["halt"]

    async def test_a_wish_that_has_expired_stops_nothing(self, opened: Open) -> None:
        """The expired request's ID is free again, and the new run has no cancel request."""
        async with opened(store_limits(pending_cancel_ttl_seconds=0)) as ports:
            await ports.runs.cancel(KEY, CANCEL_REQUEST)
            accepted = await ports.runs.accept(new_run("case-1"), worker_id="w1")

            assert accepted.run.status is RunStatus.RUNNING
            assert accepted.run.cancel_request is None

    async def test_early_wishes_are_capped_for_each_tenant(self, opened: Open) -> None:
        """A repeated cancel request and one of another tenant are still accepted."""
        async with opened(store_limits(max_pending_cancels=2)) as ports:
            for n in range(2):
                await ports.runs.cancel(RunKey("default", f"case-{n}"), CANCEL_REQUEST)

            with pytest.raises(TooManyPendingCancelsError):
                await ports.runs.cancel(RunKey("default", "case-2"), CANCEL_REQUEST)
            assert (
                await ports.runs.cancel(RunKey("other", "case-2"), CANCEL_REQUEST)
            ).cancel_request is not None
            assert (
                await ports.runs.cancel(RunKey("default", "case-1"), CANCEL_REQUEST)
            ).cancel_request is not None
            refused = await ports.runs.accept(new_run("case-2"), worker_id="w1")
            assert refused.run.status is RunStatus.RUNNING

    async def test_a_queued_run_ends_with_the_cancel_request(self, ports: Ports) -> None:
        """No worker can claim the run, and a second cancel request changes nothing."""
        await ports.queued()
        cancelled = await ports.runs.cancel(KEY, CANCEL_REQUEST)
        again = await ports.runs.cancel(KEY, CancelRequest(requested_by="somebody else"))

        assert cancelled.run is not None
        assert cancelled.run.status is RunStatus.CANCELLED
        assert cancelled.run.finished_at is not None
        assert not cancelled.already_finished
        assert cancelled.snapshot is not None
        assert cancelled.snapshot["nodes"][cancelled.snapshot["root_id"]]["status"] == "halt"
        assert await ports.runs.claim(KEY, "w1") is None
        assert await stored_graph(ports.runs, KEY) is not None
        assert again.already_finished
        assert again.snapshot is None
        assert again.cancel_request is not None
        assert again.cancel_request.requested_by == "tester"

    async def test_a_running_run_learns_of_the_cancel_request_and_ends_as_cancelled(
        self, ports: Ports
    ) -> None:
        """The next barrier reports the request; only ``cancelled`` is accepted, with the result."""
        run = await ports.claimed()
        cancelled = await ports.runs.cancel(KEY, CANCEL_REQUEST)
        permission = await ports.journal.write(JournalWrite(key=KEY, fence=1))
        completed = await ports.journal.finish(end_of(run))
        finish_result = await ports.journal.finish(end_of(run, RunStatus.CANCELLED))
        stored = await ports.stored()

        assert cancelled.run is not None
        assert cancelled.run.status is RunStatus.RUNNING
        assert permission.owned
        assert permission.cancel_request is not None
        assert permission.cancel_request.requested_by == "tester"
        assert not completed.done
        assert completed.cancel_request is not None
        assert finish_result.done
        assert (stored.status, stored.result) == (RunStatus.CANCELLED, {"answer": "4"})

    async def test_the_first_cancel_request_counts(self, ports: Ports) -> None:
        """This holds for a run and for an ID without a run."""
        other = CancelRequest(requested_by="somebody else")
        await ports.claimed()
        for key in (KEY, RunKey("default", "early")):
            await ports.runs.cancel(key, CANCEL_REQUEST)
            again = await ports.runs.cancel(key, other)
            assert again.cancel_request is not None
            assert again.cancel_request.requested_by == "tester"

    async def test_a_finished_run_stays_as_it_is(self, ports: Ports) -> None:
        """No cancel request is stored, and the answer says that the run had already finished."""
        run = await ports.claimed()
        await ports.journal.finish(end_of(run))
        cancelled = await ports.runs.cancel(KEY, CANCEL_REQUEST)

        assert cancelled.already_finished
        assert cancelled.cancel_request is None
        assert (await ports.stored()).status is RunStatus.COMPLETED

    async def test_the_receipt_names_the_calls_that_had_begun(self, ports: Ports) -> None:
        """The receipt lists LLM and tool calls, but no root and no steps."""
        await ports.claimed()
        records = records_of(graph_with_calls("case-1", llm_calls=2))
        await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=records))
        await ports.runs.cancel(KEY, CANCEL_REQUEST)
        calls = await ports.runs.started_calls(KEY)

        assert [record.node_id for record in calls] == ["n000002", "n000003"]

    async def test_a_stopped_run_that_nobody_owns_is_claimed_once_to_end_it(
        self, ports: Ports
    ) -> None:
        """Only a run that has started and was stopped can be claimed for its end."""
        run = await ports.claimed()
        assert await ports.runs.claim_stopped(KEY, "w2") is None
        await ports.runs.release(run, active_seconds=1, calls=(), counted=False)
        assert await ports.runs.claim_stopped(KEY, "w2") is None
        cancelled = await ports.runs.cancel(KEY, CANCEL_REQUEST)
        claimed = await ports.runs.claim_stopped(KEY, "w2")

        assert cancelled.status is RunStatus.QUEUED
        assert claimed is not None
        assert (claimed.fence, claimed.worker_id) == (2, "w2")
        assert claimed.cancel_request is not None
        assert await ports.runs.claim_stopped(KEY, "w3") is None


class TestBeating:
    async def test_a_beat_tells_what_is_owned_and_what_must_stop(self, ports: Ports) -> None:
        """The heartbeat covers only unfinished runs of this worker."""
        for n in range(3):
            await ports.claimed(f"case-{n}")
        await ports.claimed("foreign", worker_id="w2")
        await ports.runs.cancel(RunKey("default", "case-1"), CANCEL_REQUEST)
        await ports.runs.cancel(RunKey("default", "foreign"), CANCEL_REQUEST)
        ended = await ports.stored(RunKey("default", "case-2"))
        await ports.journal.finish(end_of(ended))
        beat = await ports.workers.beat("w1")

        assert sorted(key.run_id for key in beat.owned) == ["case-0", "case-1"]
        assert [key.run_id for key in beat.cancelled] == ["case-1"]
        assert beat.cancelled[RunKey("default", "case-1")].requested_by == "tester"
        await ports.workers.leave("w1")
        await ports.workers.leave("w1")


@on_postgres
class TestListing:
    async def test_pages_show_every_run_once_newest_first(self, ports: Ports) -> None:
        """Pages stay complete while new runs are added."""
        for n in range(5):
            await ports.claimed(f"case-{n}")
        seen: list[str] = []
        cursor = None
        while True:
            page = await ports.runs.find("default", RunFilter(limit=2, cursor=cursor))
            seen += [run.key.run_id for run in page.items]
            await ports.claimed(f"later-{len(seen)}")
            cursor = page.next_cursor
            if cursor is None:
                break

        assert seen == [f"case-{n}" for n in reversed(range(5))]

    async def test_a_page_has_no_results_and_ends_where_its_bytes_do(self, ports: Ports) -> None:
        """The next page continues after the last run; an oversized run gets its own page."""
        for n in range(5):
            large = {"text": "x" * 4000}
            new = replace(new_run(f"large-{n}", text=f"{n}"), metadata=large)
            run = (await ports.runs.accept(new, worker_id="worker")).run
            await ports.journal.finish(end_of(run))
        assert (await ports.stored(run.key)).result is not None
        seen: list[list[str]] = []
        cursor = None
        while cursor is not None or not seen:
            wanted = RunFilter(limit=4, cursor=cursor, max_bytes=9000)
            page = await ports.runs.find("default", wanted)
            assert all(run.result is None for run in page.items)
            seen.append([run.key.run_id for run in page.items])
            cursor = page.next_cursor
        alone = await ports.runs.find("default", RunFilter(max_bytes=1))

        assert seen == [["large-4", "large-3"], ["large-2", "large-1"], ["large-0"]]
        assert [run.key.run_id for run in alone.items] == ["large-4"]

    async def test_runs_are_found_by_status_and_time(self, ports: Ports) -> None:
        """Pending cancels are not listed."""
        await ports.claimed("case-1")
        await ports.queued("case-2")
        await ports.runs.cancel(RunKey("default", "early"), CANCEL_REQUEST)
        now = datetime.now(UTC)

        async def found(wanted: RunFilter) -> list[str]:
            return [run.key.run_id for run in (await ports.runs.find("default", wanted)).items]

        assert await found(RunFilter()) == ["case-2", "case-1"]
        assert await found(RunFilter(status=RunStatus.QUEUED)) == ["case-2"]
        assert await found(RunFilter(created_after=now + timedelta(minutes=1))) == []
        assert len(await found(RunFilter(created_before=now + timedelta(minutes=1)))) == 2

    async def test_runs_are_found_by_what_they_execute_and_by_their_metadata(
        self, ports: Ports
    ) -> None:
        """A number matches as a number and as text; pending cancels match neither filter."""
        agent = replace(
            new_run("agent").request,
            kind=RunKind.AGENT,
            graph={"steps": []},
            definition_ref=DefinitionRef("helper", 2, DefinitionKind.AGENT),
        )
        graph = replace(agent, kind=RunKind.GRAPH, definition_ref=DefinitionRef("helper", 1))
        about: list[dict[str, Any]] = [{"n": 7, "a": "x"}, {"n": "7"}, {"n": True, "a": "x"}, {}]
        for number, request in enumerate([agent, graph, new_run("case").request, agent]):
            new = replace(new_run(f"r{number}"), request=request, metadata=about[number])
            await ports.runs.accept(new, worker_id=None)
        await ports.runs.cancel(RunKey("default", "early"), CANCEL_REQUEST)

        async def found(**wanted: Any) -> list[str]:
            page = await ports.runs.find("default", RunFilter(**wanted))
            return [run.key.run_id for run in page.items]

        assert await found(kind=RunKind.AGENT) == ["r3", "r0"]
        assert await found(kind=RunKind.GRAPH) == ["r1"]
        assert await found(kind=RunKind.CASE) == ["r2"]
        assert await found(agent="helper") == ["r3", "r0"]
        assert await found(agent="other") == []
        assert await found(agent="helper", kind=RunKind.GRAPH) == []
        assert await found(metadata={"n": "7"}) == ["r1", "r0"]
        assert await found(metadata={"n": "true"}) == ["r2"]
        assert await found(metadata={"n": "7", "a": "x"}) == ["r0"]
        assert await found(metadata={"a": "x"}, limit=1) == ["r2"]
        assert await found(metadata={"b": "null"}) == []

    @pytest.mark.parametrize("cursor", ["?", "e30", "WzEsMl0", "W1tbW1tb", "\u00e4", "bnVsbA"])
    async def test_a_cursor_of_somebody_elses_making_is_refused(
        self, ports: Ports, cursor: str
    ) -> None:
        """The error is reported as a mistake of the caller."""
        with pytest.raises(InvalidRunError):
            await ports.runs.find("default", RunFilter(cursor=cursor))
