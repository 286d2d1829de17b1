"""A step that sends a value on by conditions."""

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field

from app.engine.context import FlowContext
from app.engine.node import ExecutionResult
from app.kernel.validation import Handles
from app.nodes.conditions import Condition
from app.nodes.node_type import NONE, NodeType
from app.nodes.reading import HandleName, PathField, StepData, usual_path


class Route(StepData):
    """Where a value goes, and when."""

    when: Condition
    to: HandleName
    """The output handle."""


class RouterData(StepData):
    """The routes of a value."""

    routes: Annotated[list[Route], Field(min_length=1, max_length=100)]
    """Tried in their order."""
    otherwise: HandleName | None = None
    """The output handle where no route applies; left out, the value goes nowhere."""
    mode: Literal["first", "all"] = "first"
    """Whether the first route that applies is taken, or all that do."""
    value: PathField = usual_path()
    """What is sent on."""

    @property
    def ways(self) -> frozenset[str]:
        """The handles on which a value may leave."""
        named = {route.to for route in self.routes}
        return frozenset(named if self.otherwise is None else {*named, self.otherwise})

    def taken(self, inputs: Mapping[str, Any]) -> list[str]:
        """Return the handles on which the value leaves."""
        applying = (route.to for route in self.routes if route.when.holds(inputs))
        ways = list(islice(applying, 1 if self.mode == "first" else None))
        return ways or ([] if self.otherwise is None else [self.otherwise])


class RouterNode:
    """Routes the value of its step; a branch without a value is dead."""

    async def execute(
        self, data: RouterData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Put the value on the handles whose conditions the inputs meet.

        Raises:
            MissingValueError: there is no value to send.
        """
        ways = data.taken(inputs)
        if not ways:
            return ExecutionResult()
        return ExecutionResult(dict.fromkeys(ways, data.value.value_in(inputs)))


def router_type() -> NodeType:
    """Return the type of steps that send a value on by conditions."""
    return NodeType(
        name="router",
        description="Sends its input on to the handles whose conditions it meets."
        " Steps behind the other handles are skipped.",
        node=RouterNode(),
        data=RouterData,
        handles=Handles(link_inputs=NONE, link_outputs=NONE),
        flow_outputs=lambda data: data.ways,
    )
