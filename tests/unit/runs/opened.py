"""An open journal over a scripted store."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS, ValueLimits
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.events import Event
from caseworker.engine.ports import CallOutcome, Entry
from caseworker.runs.journal.journal import RunJournal
from caseworker.runs.ports import FinishResult, JournalWrite, Permission
from caseworker.runs.postgres.rows import accepted_run
from caseworker.runs.run import CallRecord, FinishRun, RunKey
from tests.support.stores import new_run

KEY = RunKey("t", "r0")


YES = Permission(owned=True, cancel_request=None)


@dataclass
class Store:
    """A journal store that returns scripted answers after a delay."""

    seconds: float = 0.01
    answers: list[Permission | BaseException] = field(default_factory=list)
    """One answer per write; later writes are permitted."""
    writes: list[JournalWrite] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    """For each write, how late its answer is processed, in seconds; later answers are not late."""
    rows: dict[str, CallRecord] = field(default_factory=dict)
    """The records of the successful writes, by node."""

    async def write(self, write: JournalWrite) -> Permission:
        self.writes.append(write)
        self.arrived.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        answer = self.answers.pop(0) if self.answers else YES
        if isinstance(answer, BaseException):
            raise answer
        self.rows |= {record.node_id: record for record in write.calls}
        age = self.late.pop(0) if self.late else 0.0
        return replace(answer, answered_at=asyncio.get_running_loop().time() - age)

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        raise AssertionError

    def names(self, index: int = -1) -> list[str]:
        """Return the names of the nodes in a write."""
        return [record.node["name"] for record in self.writes[index].calls]


@dataclass
class Open:
    """An open journal with its store, graph and token."""

    store: Store = field(default_factory=Store)
    earlier: Sequence[CallRecord] = ()
    graph: ExecutionGraph = field(default_factory=lambda: ExecutionGraph("r0"))
    limits: ValueLimits = DEFAULT_VALUE_LIMITS
    open_starts: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        self.token = CancellationToken()
        if self.graph.root_id is None:
            self.graph.create_root("run")
        self.root = self.graph.root_id or ""
        run = accepted_run(new_run("r0", tenant="t"), "w1", datetime.now(UTC))
        self.journal = RunJournal(
            run=replace(run, open_starts=self.open_starts),
            graph=self.graph,
            token=self.token,
            store=self.store,
            earlier=self.earlier,
            permitted_at=asyncio.get_running_loop().time(),
            clock=asyncio.get_running_loop().time,
            limits=self.limits,
        )

    def begin(self, name: str, **entry: Any) -> str:
        """Start a call and journal it."""
        node = self.graph.begin_node(self.root, "tool", name)
        self.note(node, name, **entry)
        return node

    def note(self, node: str, name: str, **entry: Any) -> None:
        self.journal.note(node, Entry(**({"call_key": name, **HASH, "charge": {}} | entry)))

    def end(self, node: str, name: str, value: Any = "value") -> None:
        """Finish a call successfully and journal it."""
        self.note(node, name, outcome=CallOutcome.RESULT, value=value)
        self.graph.mark_success(node, 0)


HASH = {"request_hash": "h"}
