"""Tool calls that a client executes itself, as its model calls report them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.retry import RetryPolicy
from caseworker.engine.call import Call, Reply
from caseworker.engine.context import FlowContext
from caseworker.models.gateway import ModelGateway

_ONCE: Final = RetryPolicy(
    max_retries=0, base_seconds=0.0, factor=1.0, jitter=0.0, max_delay_seconds=0.0
)


@dataclass(kw_only=True, eq=False)
class ReportedTool(Call):
    """A tool call that the client has executed; it is recorded and counted, but not made."""

    result: Any

    async def send(self, attempt: int) -> Reply:
        """Return the result that the client reported."""
        return Reply({"result": self.result})


def reported_tool(context: FlowContext, asked: Mapping[str, Any], result: Any) -> ReportedTool:
    """Return the call for a tool call that a reply requested, and its result."""
    name, arguments = str(asked["name"]), str(asked["arguments"])
    digest = hashlib.sha256(json.dumps([asked["id"], name, arguments]).encode()).hexdigest()[:32]
    return ReportedTool(
        key=context.path.call("tool", digest),
        kind="tool",
        name=name,
        request_hash=digest,
        per_attempt={Dimension.TOOL_CALLS: 1},
        external=False,
        retry=_ONCE,
        metadata={"reported": True, "args": context.service(ModelGateway).shown(_read(arguments))},
        result=result,
    )


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
