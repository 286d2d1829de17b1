"""The sessions that a process has open, and the step of an external run, which opens one."""

import asyncio
import secrets
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from cachetools import TTLCache

from caseworker.core.budget.stops import HandOver, Stop
from caseworker.core.budget.usage import Charge, sum_of
from caseworker.engine.context import ExecutionResult, FlowContext, GraphView, RunContext
from caseworker.engine.step_path import StepPath
from caseworker.features.external.session import ExternalData, GatewaySession, ProviderObjects
from caseworker.features.external.step_keys import key_of_step
from caseworker.features.external.tools import (
    CHILD,
)
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.node_type import ONE_OUTPUT, NodeType
from caseworker.nodes.strict_parsing import StepData
from caseworker.runs.execute.outcome import RESULT
from caseworker.runs.journal.replay import spent_before
from caseworker.runs.run import CallRecord, RunKey, RunRequest

CallsOf = Callable[[RunKey], Awaitable[Sequence[CallRecord]]]
Reply = Callable[
    [GatewaySession, str, Mapping[str, str], bytes],
    Awaitable[tuple[int, Mapping[str, str], bytes | AsyncIterator[bytes]]],
]
"""Function that answers a request of a session; it gets its path below a base URL, its headers and
its body. It returns status, headers and body, which is an iterator for a stream."""
PARENT_SECONDS: Final = 5.0
"""Seconds that a child waits for its parent to start, after both were recovered."""
CLOSED_SECONDS: Final = 60.0
"""Seconds for which a process remembers why a session has ended."""
MAX_CLOSED: Final = 10_000


class Sessions:
    """The external runs that this process owns, by key."""

    addresses: Mapping[str, str]
    """Paths of the gateway by the name of the field with their URL, such as ``mcp_url``."""
    reply: Reply
    """Makes a model call of a step of this process, without a socket."""

    def __init__(self, calls: CallsOf, *, stuck_seconds: Callable[[], float] = lambda: 0.0) -> None:
        """``calls`` returns the journal of a run.

        ``stuck_seconds`` returns for how long the writes of this process have made no progress.
        """
        self._calls = calls
        self.stuck_seconds = stuck_seconds
        self._open: dict[RunKey, GatewaySession] = {}
        self._closed: TTLCache[RunKey, Stop | None] = TTLCache(MAX_CLOSED, CLOSED_SECONDS)
        self._opened = asyncio.Event()
        self._of_steps: dict[str, GatewaySession] = {}
        self.secret = secrets.token_hex(32)
        """Secret of this process, which makes the keys of its steps."""
        self.url: str | None = None
        """URL at which this process serves HTTP; None if it does not."""
        self.objects = ProviderObjects()
        """Objects at providers to which requests may refer."""

    def get(self, key: RunKey) -> GatewaySession | None:
        """Return the session of a run; None if this process does not own it."""
        return self._open.get(key)

    def is_owned_elsewhere(self, key: RunKey) -> bool:
        """Return whether another process may own a run or will own it, or none does yet."""
        if (session := self._open.get(key)) is not None:
            return session.is_leaving
        return isinstance(self.stop_of(key), HandOver)

    def starts_calls(self, key: RunKey) -> bool:
        """Return whether this process owns a run and may start its calls."""
        return (session := self._open.get(key)) is not None and not session.is_leaving

    def with_key(self, key: str) -> GatewaySession | None:
        """Return the session of a step that this process executes, by the key of the step."""
        return self._of_steps.get(key)

    def offer(self, session: GatewaySession) -> str:
        """Offer the session of a step to the gateway; return the key of the step."""
        key = key_of_step(session.key, self.secret)
        self._of_steps[key] = session
        return key

    def withdraw(self, key: str) -> None:
        """Withdraw the session of a step that has ended."""
        del self._of_steps[key]

    def stop_of(self, key: RunKey) -> Stop | None:
        """Return the stop of a run whose session is not open here; its end may not be stored yet.

        None means that the client has finished it. A run that was not open here is handed over.
        """
        return self._closed.get(key, HandOver("This process does not own the run."))

    async def spent_by(self, key: RunKey, children: Iterable[str]) -> Charge:
        """Return the total charge of the children of a run, and of their children."""
        charges = list[Charge]()
        for run_id in children:
            child = RunKey(key.tenant, run_id)
            calls = await self._calls(child)
            child_ids = [
                child_id for each in calls if (child_id := each.node["metadata"].get(CHILD))
            ]
            charges += [spent_before(calls), await self.spent_by(child, child_ids)]
        return sum_of(charges)

    async def get_within(self, key: RunKey, seconds: float) -> GatewaySession | None:
        """Return the session of a run that this process has claimed, once it can start calls."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.starts_calls(key):
                    self._opened.clear()
                    await self._opened.wait()
        return self._open.get(key)

    @contextmanager
    def opened(self, session: GatewaySession) -> Iterator[None]:
        """Offer a session to the gateway during the block."""
        self._open[session.key] = session
        self._opened.set()
        try:
            yield
        finally:
            if self._open.get(session.key) is session:
                del self._open[session.key]
                self._closed[session.key] = session.stop


class ExternalStep(StepData):
    """The data of the only step of an external run."""

    external: ExternalData


class ExternalNode:
    """Waits for the end of an external run."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def execute(
        self, data: ExternalStep, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Offer the run to the gateway until it ends.

        Raises:
            Stop: a limit was reached, or the client sent nothing for too long.
            HandOver: the parent run did not start in this process within ``PARENT_SECONDS``;
                another process must execute this run.
            RecordedFailureError: the client reported an error.
        """
        sessions, key = context.service(Sessions), RunKey(context.run.tenant, context.run_id)
        parent = None
        if data.external.parent is not None:
            parent_key = RunKey(key.tenant, data.external.parent)
            parent = await sessions.get_within(parent_key, PARENT_SECONDS)
            if parent is None:
                raise HandOver("The parent of the run has not started.")
        children = context.calls.journal.recorded_below(context.path.call(CHILD, "").text)
        child_results = (each.value["result"] for each in children.values() if each.value)
        context.run.scope.restore(await sessions.spent_by(key, child_results))
        session = GatewaySession(data.external, context, self._agents, parent)
        with sessions.opened(session):
            return ExecutionResult({RESULT: await session.wait()})


def session_of_draft(request: RunRequest, run: RunContext) -> GatewaySession:
    """Return the session of an external run that is not stored."""
    [step] = (request.graph or {})["steps"]
    context = FlowContext(
        run=run,
        view=cast("GraphView", None),  # the step asks for no other step
        node_id=step["id"],
        path=StepPath(step["id"]),
        trace_parent=run.root,
        scope=run.scope,
        keep=lambda _: None,
    )
    data = ExternalStep.model_validate(step["data"]).external
    return GatewaySession(data, context, is_draft=True)


def external_type(agents: Agents) -> NodeType:
    """Return the step type of external runs; ``agents`` resolves and executes their tools."""
    return NodeType(
        name="external",
        description="Waits for an agent outside of the service; only runs of kind external use it.",
        node=ExternalNode(agents),
        data=ExternalStep,
        handles=ONE_OUTPUT,
    )
