"""Work of a client outside of the service: tool calls that it reports, and child runs."""

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

CHILD: Final = "child_run_id"
"""Metadata of the node of a child run, and the kind in its key."""
_ONCE: Final = RetryPolicy(
    max_retries=0, base_seconds=0.0, factor=1.0, jitter=0.0, max_delay_seconds=0.0
)


@dataclass(kw_only=True, eq=False)
class Reported(Call):
    """Work of the client; it is recorded and may be counted, but not done here."""

    result: Any

    async def send(self, attempt: int) -> Reply:
        """Return the result of the work."""
        return Reply({"result": self.result})


def reported_tool(context: FlowContext, asked: Mapping[str, Any], result: Any) -> Reported:
    """Return the call for a tool call that a reply requested, and its result."""
    name, arguments = str(asked["name"]), str(asked["arguments"])
    digest = hashlib.sha256(json.dumps([asked["id"], name, arguments]).encode()).hexdigest()[:32]
    shown = context.service(ModelGateway).shown(_read(arguments))
    return Reported(
        key=context.path.call("tool", digest),
        kind="tool",
        name=name,
        request_hash=digest,
        per_attempt={Dimension.TOOL_CALLS: 1},
        external=False,
        retry=_ONCE,
        metadata={"reported": True, "args": shown},
        result=result,
    )


def child_run(context: FlowContext, run_id: str) -> Reported:
    """Return the record of a child run, which costs nothing itself."""
    return Reported(
        key=context.path.call(CHILD, run_id),
        kind="tool",
        name="child run",
        request_hash=run_id,
        per_attempt={},
        external=False,
        retry=_ONCE,
        metadata={CHILD: run_id},
        result=run_id,
    )


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
