"""What the case agent needs of others. ModelGateway, ToolDispatch and DateReader fit."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from app.engine.context import FlowContext
from app.llm.gateway import Completion, Tier, TierModel
from app.llm.ports import Message
from app.tools.ports import ToolContext, ToolResult, ToolSpec

Clock = Callable[[], datetime]
"""Tells the time for logs, with an offset."""


class Models(Protocol):
    """Asks the model of a tier, inside the limits of the run."""

    def model_of(self, tier: Tier) -> TierModel:
        """Return the configuration of a tier."""
        ...

    async def complete(
        self,
        context: FlowContext,
        *,
        tier: Tier,
        name: str,
        key: str,
        messages: Sequence[Message],
        json_schema: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Completion:
        """Ask; ``key`` is the path of the call inside its step.

        Raises:
            CallFailedError: the provider failed, its retries included.
            Stop: a limit or somebody's wish keeps it from being asked, or ended it.
        """
        ...


class Tools(Protocol):
    """Runs the tools that may be used, inside the limits of the run."""

    def usable(self) -> Sequence[ToolSpec]:
        """Return the tools that may be used, by name."""
        ...

    async def run(
        self,
        context: FlowContext,
        *,
        name: str,
        args: Mapping[str, Any],
        key: str,
        tool_context: ToolContext,
    ) -> ToolResult:
        """Run a tool; whatever goes wrong with it is a dict with ``error`` and ``code``.

        Raises:
            Stop: a limit or somebody's wish keeps it from being run, or ended it.
        """
        ...


class Recomputation(Protocol):
    """Works out again what deterministic tools found. It is no tool call and counts as none."""

    async def again(
        self, name: str, args: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | None:
        """Return what the tool finds now; None if the tool cannot be worked out again."""
        ...
