"""The durable memory of one run while it is executed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
import structlog

from app.control import stops
from app.control.budget import Dimension
from app.control.stops import HandOver
from app.engine.cancellation import CancellationToken
from app.engine.ports import CallOutcome, Entry
from app.runs.journal import ASKS, LostRunError, RunJournal
from app.runs.ports import JournalWrite, Permission, Settled
from app.runs.run import CallRecord, RunKey, Settlement, StopWish
from app.trace.execution_graph import ExecutionGraph
from tests.unit.runs.world import loop, play

KEY = RunKey("t", "r0")
YES = Permission(owned=True, wish=None)


@dataclass
class Store:
    """A journal store that answers what a test says, after a while."""

    seconds: float = 0.01
    answers: list[Permission | BaseException] = field(default_factory=list)
    """One for each write; then yes."""
    writes: list[JournalWrite] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)

    async def write(self, write: JournalWrite) -> Permission:
        self.writes.append(write)
        self.arrived.append(loop().time())
        await asyncio.sleep(self.seconds)
        answer = self.answers.pop(0) if self.answers else YES
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def settle(self, settlement: Settlement) -> Settled:
        raise AssertionError

    def names(self, index: int = -1) -> list[str]:
        """The nodes of a write."""
        return [record.node["name"] for record in self.writes[index].calls]


@dataclass
class Open:
    """An open journal and what it stands on."""

    store: Store = field(default_factory=Store)
    earlier: Sequence[CallRecord] = ()
    graph: ExecutionGraph = field(default_factory=lambda: ExecutionGraph("r0"))
    snapshot_interval_seconds: float = 60.0

    def __post_init__(self) -> None:
        self.token = CancellationToken()
        if self.graph.root_id is None:
            self.graph.create_root("run")
        self.root = self.graph.root_id or ""
        self.journal = RunJournal(
            key=KEY,
            fence=1,
            graph=self.graph,
            token=self.token,
            store=self.store,
            earlier=self.earlier,
            permitted_at=loop().time(),
            snapshot_interval_seconds=self.snapshot_interval_seconds,
            clock=loop().time,
        )

    def begin(self, name: str, **entry: Any) -> str:
        """Begin a call and note it."""
        node = self.graph.begin_node(self.root, "tool", name)
        self.note(node, name, **entry)
        return node

    def note(self, node: str, name: str, **entry: Any) -> None:
        self.journal.note(node, Entry(**({"call_key": name, **HASH, "charge": {}} | entry)))

    def end(self, node: str, name: str, value: Any = "value") -> None:
        """End a call well and note it."""
        self.note(node, name, outcome=CallOutcome.RESULT, value=value)
        self.graph.mark_success(node, 0)


HASH = {"request_hash": "h"}


def told(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()
        await asyncio.sleep(10)

    play(main)


# -- the barrier -------------------------------------------------------------------------------


def test_an_external_call_begins_when_everything_before_it_is_stored() -> None:
    """The root, the call itself, and what belongs to it; later only what has changed since."""

    async def story() -> None:
        run = Open()
        first = run.begin("first", charge={Dimension.COST_USD: Decimal("0.10")})
        await run.journal.barrier(external=True)
        assert run.store.names() == ["run", "first"]
        record = run.store.writes[0].calls[1]
        assert (record.call_key, record.charge) == ("first", {"cost_usd": "0.10"})
        assert (run.store.writes[0].key, run.store.writes[0].fence) == (KEY, 1)

        run.end(first, "first")
        run.begin("second")
        await run.journal.barrier(external=True)
        assert run.store.names() == ["first", "second"]
        assert run.store.writes[1].calls[0].value == "value"

    told(story)


def test_a_call_inside_the_process_relies_on_a_permission_of_a_tenth_of_a_second() -> None:
    """An older one is asked for again."""

    async def story() -> None:
        run = Open()
        await run.journal.barrier(external=False)
        await asyncio.sleep(0.1)
        await run.journal.barrier(external=False)
        assert run.store.writes == []

        await asyncio.sleep(0.001)
        await run.journal.barrier(external=False)
        await asyncio.sleep(0.09)
        await run.journal.barrier(external=False)
        assert len(run.store.writes) == 1

    told(story)


def test_an_answer_that_took_too_long_is_asked_for_again() -> None:
    """Somebody may have wished the run to stop since it was given."""

    async def story() -> None:
        run = Open(Store(seconds=0.101))
        asyncio.get_running_loop().call_later(0.05, setattr, run.store, "seconds", 0.09)
        await run.journal.barrier(external=True)
        assert run.store.arrived == [0, 0.101]

    told(story)


def test_a_database_that_never_answers_in_time_gives_the_run_up() -> None:
    """Another process may be nearer to it."""

    async def story() -> None:
        run = Open(Store(seconds=0.2))
        with pytest.raises(HandOver, match="slowly"):
            await run.journal.barrier(external=True)
        assert len(run.store.writes) == ASKS

    told(story)


@pytest.mark.req("000/C3")
def test_a_wish_to_stop_refuses_at_the_barrier() -> None:
    """The token knows as well, so that everything else of the run ends."""
    wish = StopWish(requested_by="ops", reason="too dear")

    async def story() -> None:
        run = Open(Store(answers=[Permission(owned=True, wish=wish)]))
        with pytest.raises(stops.CancelledError, match="too dear"):
            await run.journal.barrier(external=True)
        assert run.token.stop is not None
        assert run.token.stop.cause.requested_by == "ops"

    told(story)


def test_a_run_that_belongs_to_another_worker_is_lost() -> None:
    """Nothing that this one says counts any more."""

    async def story() -> None:
        run = Open(Store(answers=[Permission(owned=False, wish=None)]))
        with pytest.raises(LostRunError):
            await run.journal.barrier(external=True)
        assert isinstance(run.token.stop, LostRunError)

    told(story)


# -- what happens without a barrier ------------------------------------------------------------


def test_a_change_is_stored_soon() -> None:
    """Together with those of the next moment, so that a trace can be followed elsewhere."""

    async def story() -> None:
        run = Open()
        run.begin("first")
        await asyncio.sleep(0.03)
        run.begin("second")
        await asyncio.sleep(0.2)
        assert run.store.arrived == [0.05]
        assert run.store.names() == ["run", "first", "second"]

    told(story)


def test_a_change_while_others_are_being_stored_is_stored_soon_afterwards() -> None:
    """Also one of the graph alone."""

    async def story() -> None:
        run = Open(Store(seconds=0.5))
        node = run.begin("first")
        await asyncio.sleep(0.2)
        run.graph.mark_failure(node, "Broken")
        run.journal.touch()
        await asyncio.sleep(2)
        assert run.store.arrived == [0.05, pytest.approx(0.6)]
        assert run.store.writes[1].calls[0].node["status"] == "fail"

    told(story)


@pytest.mark.parametrize(
    "answer", [Permission(owned=True, wish=StopWish(requested_by="ops")), Permission(False, None)]
)
def test_what_is_stored_soon_may_bring_a_stop_as_well(answer: Permission) -> None:
    """There is no need to wait for the next barrier."""

    async def story() -> None:
        run = Open(Store(answers=[answer]))
        run.begin("first")
        await asyncio.sleep(1)
        assert run.token.is_cancelled
        assert len(run.store.writes) == 1

    told(story)


def test_a_store_that_refuses_is_not_asked_for_ever() -> None:
    """The next barrier brings what it refused, and hears of it."""

    async def story() -> None:
        run = Open(Store(answers=[RuntimeError("refused"), RuntimeError("again")]))
        with structlog.testing.capture_logs() as logs:
            run.begin("first")
            await asyncio.sleep(5)
        assert [line["event"] for line in logs] == ["journal.refused"]
        with pytest.raises(RuntimeError, match="again"):
            await run.journal.barrier(external=True)
        await run.journal.barrier(external=True)
        assert [run.store.names(index) for index in range(3)] == [["run", "first"]] * 3

    told(story)


def test_what_a_cancelled_barrier_was_storing_is_stored_with_the_next_write() -> None:
    """Nobody knows whether it arrived; storing it twice does no harm."""

    async def story() -> None:
        run = Open(Store(seconds=1))
        node = run.begin("first")
        barrier = asyncio.create_task(run.journal.barrier(external=True))
        await asyncio.sleep(0.5)
        barrier.cancel()
        await asyncio.wait({barrier})
        run.graph.mark_halt(node, "enough")
        records = run.journal.close()
        assert [record.node["name"] for record in records] == ["run", "first"]
        assert [record.call_key for record in records] == [None, "first"]

    told(story)


@pytest.mark.parametrize(
    "what",
    [object(), float("nan"), {"deep": {1, 2}}, b"bytes"],
    ids=["an object", "no number", "a set", "bytes"],
)
def test_a_value_that_cannot_be_stored_is_refused_when_it_is_noted(what: Any) -> None:
    """Not when it is too late."""

    async def story() -> None:
        run = Open()
        node = run.begin("first")
        with pytest.raises(ValueError, match=r"JSON"):
            run.note(node, "first", outcome=CallOutcome.RESULT, value=[what])
        run.journal.close()

    told(story)


def test_what_was_noted_does_not_change_with_what_its_owner_does() -> None:
    """The node goes on working with the answer it got."""

    async def story() -> None:
        run = Open()
        node, answer = run.begin("first"), {"rows": [1]}
        run.end(node, "first", answer)
        answer["rows"].append(2)
        assert run.journal.close()[1].value == {"rows": [1]}

    told(story)


# -- the end -----------------------------------------------------------------------------------


def test_the_end_brings_what_may_not_be_stored_yet() -> None:
    """Also what is on its way: nobody waits for its answer any more."""

    async def story() -> None:
        run = Open(Store(seconds=1))
        run.begin("first")
        await asyncio.sleep(0.2)
        run.begin("second")
        records = run.journal.close()
        assert [record.node["name"] for record in records] == ["run", "first", "second"]

        run.graph.mark_halt(run.root)
        run.journal.touch()
        await asyncio.sleep(5)
        assert len(run.store.writes) == 1

    told(story)


def test_what_is_stored_is_not_brought_again() -> None:
    """The end is as small as it can be."""

    async def story() -> None:
        run = Open()
        run.begin("first")
        await run.journal.barrier(external=True)
        assert run.journal.close() == ()

    told(story)


def test_what_a_lost_barrier_tried_to_store_is_part_of_what_comes_late() -> None:
    """Abandoned work asks after the run was settled; its costs are added all the same."""

    async def story() -> None:
        run = Open()
        node = run.begin("first")
        run.journal.close()
        run.store.answers = [Permission(owned=False, wish=None)]
        run.note(node, "first", charge={Dimension.TOKENS: 5})
        with pytest.raises(LostRunError):
            await run.journal.barrier(external=True)
        [record] = run.journal.close()
        assert record.charge == {"tokens": 5}

    told(story)


def test_another_graph_at_the_end_is_stored_as_a_whole() -> None:
    """With what was noted of its nodes before."""

    async def story() -> None:
        run = Open()
        run.end(run.begin("first"), "first")
        await run.journal.barrier(external=True)
        nodes = run.graph.snapshot()["nodes"].values()
        again = ExecutionGraph.restore("r0", [dict(node) for node in nodes])
        again.mark_halt(again.root_id or "", "cancelled")
        records = run.journal.close(again)
        assert [(record.node["status"], record.value) for record in records] == [
            ("halt", None),
            ("success", "value"),
        ]

    told(story)


def test_snapshots_are_rare_and_become_rarer() -> None:
    """At the interval first, and at a tenth of the run's age later."""

    async def story() -> None:
        run, taken = Open(snapshot_interval_seconds=2), []
        for number in range(100):
            run.begin(str(number))
            await run.journal.barrier(external=True)
            if run.store.writes[-1].snapshot is not None:
                taken.append(round(loop().time()))
            await asyncio.sleep(1)
        gaps = [later - sooner for sooner, later in pairwise(taken)]
        assert gaps[:3] == [2, 2, 2]
        assert min(gaps[-2:]) >= 8

    told(story)


# -- earlier executions ------------------------------------------------------------------------


def record(graph: ExecutionGraph, node: str, **noted: Any) -> CallRecord:
    return CallRecord(node=graph.node(node), **({"call_key": None} | noted))


def lost_run() -> tuple[ExecutionGraph, list[CallRecord]]:
    """A run with one call that has ended and one that was in flight."""
    graph = ExecutionGraph("r0")
    root = graph.create_root("run")
    graph.mark_running(root)
    ended = graph.begin_node(root, "tool", "ended")
    graph.mark_success(ended, 0)
    flying = graph.begin_node(root, "tool", "flying")
    graph.mark_running(flying)
    return graph, [
        record(graph, root),
        record(
            graph,
            ended,
            call_key="ended",
            request_hash="h",
            charge={"cost_usd": "0.10"},
            outcome="result",
            value={"rows": [1]},
        ),
        record(graph, flying, call_key="flying", request_hash="h", charge={"tokens": 7}),
    ]


def test_the_first_write_of_the_next_execution_wipes_nothing_out() -> None:
    """Or a second loss of a worker would make every call again."""

    async def story() -> None:
        graph, earlier = lost_run()
        graph.mark_halt("n000003", "worker_lost")
        run = Open(earlier=earlier, graph=graph)
        run.begin("new")
        await run.journal.barrier(external=True)

        written = {record.node["name"]: record for record in run.store.writes[0].calls}
        assert set(written) == {"run", "flying", "new"}
        flying = written["flying"]
        assert (flying.call_key, flying.request_hash, flying.charge) == (
            "flying",
            "h",
            {"tokens": 7},
        )
        assert flying.node["status"] == "halt"

    told(story)


def test_a_graph_that_takes_the_place_of_another_keeps_what_was_noted_long_ago() -> None:
    """Every row is written then."""

    async def story() -> None:
        graph, earlier = lost_run()
        run = Open(earlier=earlier, graph=graph)
        again = ExecutionGraph.restore("r0", [dict(record.node) for record in earlier])
        records = {record.node["name"]: record for record in run.journal.close(again)}
        assert records["ended"].value == {"rows": [1]}
        assert records["ended"].outcome == "result"
        assert records["ended"].charge == {"cost_usd": "0.10"}

    told(story)


def test_the_last_try_that_began_is_what_is_known_of_a_call() -> None:
    """One that was refused before it began leaves nothing."""

    async def story() -> None:
        graph, earlier = lost_run()
        refused = graph.begin_node("n000001", "tool", "flying")
        graph.mark_halt(refused, "enough")
        earlier.append(record(graph, refused, call_key="flying", outcome="not_made"))
        run = Open(earlier=earlier, graph=graph)

        flying, ended = run.journal.recorded("flying"), run.journal.recorded("ended")
        assert flying is not None
        assert ended is not None
        assert (flying.outcome, flying.node_id) == (CallOutcome.UNKNOWN, "n000003")
        assert (ended.outcome, ended.value) == (CallOutcome.RESULT, {"rows": [1]})
        assert run.journal.recorded("other") is None

    told(story)
