"""What the actions of a case brought."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.llm.gateway import Tier
from app.tools.ports import ToolResult

UNKNOWN_TOOL = "unknown_tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One action and its result, or why it was refused."""

    number: int
    """Its place among all evidence of the case, from 1."""
    tier: Tier
    act_step: int
    """The number of the pass in its tier, from 1."""
    tool: str
    args: Mapping[str, Any]
    result: ToolResult
    """What the tool returned; a failure is a dict with ``error``."""
    warning: str | None = None
    """Set for an action that was refused and never ran."""
    files: tuple[str, ...] = ()
    """The names of the files that the action has made."""

    @property
    def refused(self) -> bool:
        """True if the action never ran."""
        return self.warning is not None

    @property
    def failed(self) -> bool:
        """True if the result is an error."""
        return "error" in self.result

    def to_dict(self) -> dict[str, Any]:
        """Return the evidence as the case's result shows it."""
        shown = {
            "tool": self.tool,
            "args": dict(self.args),
            "result": dict(self.result),
            "tier": self.tier.value,
            "act_step": self.act_step,
        }
        return shown if self.warning is None else {**shown, "warning": self.warning}
