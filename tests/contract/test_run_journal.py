"""Contract of the journal and of the end of a run, tested on every implementation."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Dimension
from caseworker.engine.ports import CallOutcome
from caseworker.runs.ports import (
    FinishResult,
    JournalWrite,
    LateResult,
    Permission,
)
from caseworker.runs.run import RunKey, RunStatus
from tests.support.ports import KEY, Ports, on_postgres
from tests.support.stores import (
    CANCEL_REQUEST,
    end_of,
    graph_with_calls,
    new_run,
    records_of,
)


class TestJournaling:
    async def test_what_is_written_is_read_in_the_order_of_the_nodes(self, ports: Ports) -> None:
        """A record keeps everything that a replay needs."""
        await ports.claimed()
        records = records_of(
            graph_with_calls("case-1", llm_calls=2),
            call_key="case/1",
            request_hash="abc",
            charge={"tokens": 15, "cost_usd": "0.5"},
            outcome="result",
            value={"content": "4"},
        )
        permission = await ports.journal.write(
            JournalWrite(key=KEY, fence=1, calls=tuple(reversed(records)))
        )

        assert permission == Permission(owned=True, cancel_request=None)
        assert list(await ports.runs.calls(KEY)) == list(records)

    async def test_a_call_that_has_ended_is_not_opened_again(self, ports: Ports) -> None:
        """A late, older state is dropped; a charge that becomes known later is added."""
        await ports.claimed()
        *_, ended = records_of(graph_with_calls("case-1"))
        opened = replace(ended, node={**ended.node, "status": "running"})
        charged = replace(ended, charge={"tokens": 7})
        for record in (opened, ended, opened, charged):
            await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=(record,)))

        assert list(await ports.runs.calls(KEY)) == [charged]

    async def test_a_node_that_was_stored_before_its_entry_gets_its_key_later(
        self, ports: Ports
    ) -> None:
        """The next owner needs the key to recognise the call; an existing key stays."""
        await ports.claimed()
        *_, bare = records_of(graph_with_calls("case-1"))
        noted = replace(bare, call_key="case/1", request_hash="abc")
        other = replace(bare, call_key="case/2", request_hash="def")
        for record in (bare, noted, other):
            await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=(record,)))

        assert list(await ports.runs.calls(KEY)) == [noted]

    async def test_what_a_run_has_spent_is_the_sum_of_what_its_calls_are_charged(
        self, ports: Ports
    ) -> None:
        """Money is exact, and a run without charged calls has spent nothing."""
        await ports.claimed()
        assert (await ports.runs.spent(KEY)).charge == {}
        charge = {"tokens": 15, "tokens_estimated": 4, "cost_usd": "0.1", "api_calls": 1}
        records = records_of(graph_with_calls("case-1", llm_calls=3), charge=charge)
        await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=tuple(records)))

        spent = await ports.runs.spent(KEY)
        calls = sum(bool(record.charge) for record in records)
        assert calls >= 3
        assert spent.charge == {
            Dimension.TOKENS: 15 * calls,
            Dimension.TOKENS_ESTIMATED: 4 * calls,
            Dimension.COST_USD: Decimal("0.1") * calls,
            Dimension.API_CALLS: calls,
        }
        assert spent.seconds >= 0

    @on_postgres
    async def test_a_call_is_read_with_what_it_asked_its_attempts_and_the_root(
        self, ports: Ports
    ) -> None:
        """A request is stored once, and the workers that execute the run do not read it."""
        await ports.claimed()
        graph = graph_with_calls("case-1", llm_calls=2)
        call = graph.begin_node("n000001", "tool", "search")
        attempt = graph.begin_node(call, "system", "attempt")
        noted: dict[str, Any] = {
            "call_key": "case/1",
            "outcome": "result",
            "value": {"content": "4"},
        }
        records = [
            replace(record, **noted, request={"of": record.node_id}) for record in records_of(graph)
        ]
        later = [replace(record, request=None) for record in records]
        for calls in (records, later):
            await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=tuple(calls)))

        found = await ports.runs.call(KEY, call)
        first = await ports.runs.payloads(KEY, max_bytes=80)
        nobody = await ports.runs.call(KEY, "n000099")
        wanted = await ports.runs.payloads(KEY, max_bytes=10_000, call_keys=("case/1", "x"))
        others = await ports.runs.payloads(KEY, max_bytes=10_000, call_keys=("x",))

        assert [(each.node_id, each.request) for each in found] == [
            (node_id, {"of": node_id}) for node_id in ("n000001", call, attempt)
        ]
        assert 1 <= len(first) <= 3
        assert first[0].request == {"of": "n000001"}
        assert len(await ports.runs.payloads(KEY, max_bytes=10_000)) == len(records)
        assert (len(wanted), others) == (len(records), [])
        assert [each.node_id for each in nobody] == ["n000001"]

    @on_postgres
    async def test_the_calls_of_a_conversation_come_with_those_that_they_name(
        self, ports: Ports
    ) -> None:
        """The calls come in order up to a node; the oldest are omitted if they are too large."""
        await ports.claimed()
        root, *nodes = records_of(graph_with_calls("case-1", llm_calls=4))
        after = {"call_key": "k0", "messages": 1}
        named = [{"role": "tool", "result_of": "k1"}, {"role": "assistant", "reply_of": "k0"}]
        asked: list[dict[str, Any] | None] = [
            {"messages": [{"role": "user", "content": "x"}]},
            None,
            {"messages": named, "after": after},
            {"messages": [], "after": {"call_key": "other", "messages": 9}},
        ]
        calls = [
            replace(node, call_key=f"k{at}", outcome=CallOutcome.RESULT, value=at, request=request)
            for at, (node, request) in enumerate(zip(nodes, asked, strict=False))
        ]
        await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=(root, *calls)))

        async def found(until: int, max_bytes: int = 10_000) -> list[str | None]:
            last = calls[until]
            stored = await ports.runs.conversation(KEY, "k0", until=last, max_bytes=max_bytes)
            return [each.call_key for each in stored]

        assert await found(3) == ["k0", "k1", "k2"]
        assert await found(1) == ["k0"]
        assert await found(2, 160) == ["k1", "k2"]

    async def test_the_nodes_of_a_run_are_its_graph(self, ports: Ports) -> None:
        """Nodes come in order, also while the run is executing; a missing run has none."""
        run = await ports.claimed()
        before = await ports.runs.nodes(KEY)
        records = records_of(graph_with_calls("case-1"))
        await ports.journal.write(JournalWrite(key=KEY, fence=run.fence, calls=records[::-1]))

        assert list(before) == []
        assert list(await ports.runs.nodes(KEY)) == [record.node for record in records]
        assert list(await ports.runs.nodes(RunKey("default", "nobody"))) == []

    async def test_only_the_owner_writes(self, ports: Ports) -> None:
        """A write under an older fence, without a run or after the end is refused."""
        run = await ports.claimed()
        await ports.runs.release(run, active_seconds=0, calls=(), counted=True)
        again = await ports.runs.claim(KEY, "w2")
        assert again is not None
        (root,) = records_of(graph_with_calls("case-1", llm_calls=0))
        old = await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=(root,)))
        nobody = await ports.journal.write(JournalWrite(key=RunKey("default", "x"), fence=1))
        await ports.journal.finish(end_of(again))
        ended = await ports.journal.write(JournalWrite(key=KEY, fence=2, calls=(root,)))

        assert [each.owned for each in (old, nobody, ended)] == [False, False, False]
        assert list(await ports.runs.calls(KEY)) == []

    @on_postgres
    @pytest.mark.parametrize("worker_id", ["w2", None])
    async def test_nothing_of_a_run_that_was_erased_reaches_a_new_one_with_its_id(
        self, ports: Ports, worker_id: str | None
    ) -> None:
        """Late writes, a repeated end and a late result of the old run are dropped."""
        erased = await ports.claimed()
        end = end_of(erased, calls=records_of(graph_with_calls("case-1")))
        late = LateResult(key=KEY, fence=erased.fence, calls=end.calls, usage={"tokens": 99})
        await ports.journal.finish(end)
        await ports.runs.erase(KEY)
        await ports.runs.late(late)
        run = (await ports.runs.accept(new_run(KEY.run_id), worker_id=worker_id)).run
        if worker_id is None:
            claimed = await ports.runs.claim(KEY, "w2")
            assert claimed is not None
            run = claimed

        write = JournalWrite(key=KEY, fence=erased.fence, calls=end.calls)
        assert not (await ports.journal.write(write)).owned
        assert not (await ports.journal.finish(end)).done
        await ports.runs.release(erased, active_seconds=9, calls=end.calls, counted=True)
        await ports.runs.late(late)
        assert (await ports.stored()) == replace(run, last_seq=0)
        assert list(await ports.runs.calls(KEY)) == []

        assert (await ports.journal.finish(end_of(run))).done
        ended = await ports.stored()
        await ports.runs.late(late)
        assert (await ports.stored()) == ended
        assert (ended.attempts, ended.usage) == (1, end_of(run).usage)

    @on_postgres
    @pytest.mark.parametrize("cancelled", ["early", "in the queue"])
    async def test_nothing_of_it_reaches_a_new_one_that_never_begins(
        self, ports: Ports, cancelled: str
    ) -> None:
        """The erased run ended under a fence of its own, so its late result is dropped."""
        erased = await ports.claimed()
        end = end_of(erased, calls=records_of(graph_with_calls("case-1")))
        await ports.journal.finish(end)
        await ports.runs.erase(KEY)
        if cancelled == "early":
            await ports.runs.cancel(KEY, CANCEL_REQUEST)
        await ports.runs.accept(new_run(KEY.run_id), worker_id=None)
        if cancelled != "early":
            await ports.runs.cancel(KEY, CANCEL_REQUEST)
        ended = await ports.stored()
        calls = list(await ports.runs.calls(KEY))

        usage = {"tokens": 99}
        late = LateResult(key=KEY, fence=erased.fence, calls=end.calls, usage=usage)
        await ports.runs.late(late)

        assert ended.status is RunStatus.CANCELLED
        assert (await ports.stored()) == ended
        assert list(await ports.runs.calls(KEY)) == calls


class TestEnding:
    async def test_a_run_ends_once(self, ports: Ports) -> None:
        """The run's result, usage and last calls are stored together."""
        run = await ports.claimed()
        records = records_of(graph_with_calls("case-1"))
        end = end_of(run, calls=records)
        first = await ports.journal.finish(end)
        second = await ports.journal.finish(end_of(run, RunStatus.FAILED, active_seconds=9.0))
        stored = await ports.stored()

        assert first == FinishResult(done=True, finished_at=stored.finished_at)
        assert second == FinishResult(done=False)
        assert (stored.status, stored.worker_id) == (RunStatus.COMPLETED, None)
        assert (stored.result, stored.usage) == (end.result, end.usage)
        assert stored.active_seconds == end.active_seconds
        assert stored.finished_at is not None
        assert list(await ports.runs.calls(KEY)) == list(records)

    async def test_a_run_that_was_lost_cannot_be_ended(self, ports: Ports) -> None:
        """The run of the new owner stays unchanged."""
        run = await ports.claimed()
        await ports.runs.release(run, active_seconds=0, calls=(), counted=True)
        await ports.runs.claim(KEY, "w2")

        assert not (await ports.journal.finish(end_of(run))).done
        assert (await ports.stored()).status is RunStatus.RUNNING

    @pytest.mark.parametrize(("counted", "attempts"), [(True, 2), (False, 1)])
    async def test_a_run_that_is_given_back_is_taken_under_a_higher_fence(
        self, ports: Ports, counted: bool, attempts: int
    ) -> None:
        """A released run's calls are kept, and the attempt counts only if the release says so."""
        run = await ports.claimed()
        records = records_of(graph_with_calls("case-1"))
        await ports.runs.release(run, active_seconds=2.5, calls=records, counted=counted)
        await ports.runs.release(run, active_seconds=9.0, calls=(), counted=counted)
        queued = await ports.stored()
        taken = await ports.runs.claim(KEY, "w2")

        assert (queued.status, queued.worker_id) == (RunStatus.QUEUED, None)
        assert queued.active_seconds == 2.5
        assert list(await ports.runs.calls(KEY)) == list(records)
        assert taken is not None
        assert (taken.fence, taken.attempts) == (2, attempts)

    async def test_a_cancel_request_for_a_run_between_two_attempts_keeps_its_calls(
        self, ports: Ports
    ) -> None:
        """The worker that claims the run for its end finds them unchanged and ends the run."""
        run = await ports.claimed()
        graph = graph_with_calls("case-1")
        graph.begin_node("n000001", "tool", "calculator")
        records = records_of(graph)
        await ports.runs.release(run, active_seconds=1, calls=records, counted=True)
        await ports.runs.cancel(KEY, CANCEL_REQUEST)
        claimed = await ports.runs.claim_stopped(KEY, "w2")

        assert claimed is not None
        assert claimed.active_seconds == 1
        assert list(await ports.runs.calls(KEY)) == list(records)
        assert not (await ports.journal.finish(end_of(claimed))).done
        assert (await ports.journal.finish(end_of(claimed, RunStatus.CANCELLED))).done

    async def test_a_late_result_adds_what_it_cost_and_changes_nothing_else(
        self, ports: Ports
    ) -> None:
        """Status and result stay unchanged."""
        run = await ports.claimed()
        records = records_of(graph_with_calls("case-1"))
        await ports.journal.finish(end_of(run, calls=records))
        late = replace(records[1], node={**records[1].node, "cost_usd": 0.75})
        await ports.runs.late(LateResult(key=KEY, fence=1, calls=(late,), usage={"tokens": 99}))
        stored = await ports.stored()

        assert (stored.status, stored.result) == (RunStatus.COMPLETED, {"answer": "4"})
        assert stored.usage == {"tokens": 99}
        assert (await ports.runs.calls(KEY))[1].node["cost_usd"] == 0.75
