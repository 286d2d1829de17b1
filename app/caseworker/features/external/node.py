"""The only step of an external run, which waits for the end that the client reports."""

from collections.abc import (
    Mapping,
)
from typing import Any, Final

from caseworker.core.budget.stops import HandOver
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.features.external.session import ExternalData, GatewaySession
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.tools import (
    CHILD,
)
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.node_type import ONE_OUTPUT, NodeType
from caseworker.nodes.reading import StepData
from caseworker.runs.outcome import RESULT
from caseworker.runs.run import RunKey

PARENT_SECONDS: Final = 5.0
"""Seconds that a child waits for its parent to start, after both were recovered."""


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


def external_type(agents: Agents) -> NodeType:
    """Return the step type of external runs; ``agents`` resolves and executes their tools."""
    return NodeType(
        name="external",
        description="Waits for an agent outside of the service; only runs of kind external use it.",
        node=ExternalNode(agents),
        data=ExternalStep,
        handles=ONE_OUTPUT,
    )
