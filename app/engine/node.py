"""What a step executes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.engine.context import FlowContext


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What a step produced: JSON values by output handle."""

    outputs: Mapping[str, Any] = field(default_factory=dict)


class Node(Protocol):
    """Executes the steps of one type (seed 004)."""

    async def execute(
        self, data: Mapping[str, Any], inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Do the step's work.

        ``data`` configures the step, ``inputs`` are the values routed to its input handles. Any
        Exception is a failure of the step; a stop passes through.
        """
        ...
