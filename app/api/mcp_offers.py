"""What the service offers to MCP clients: tools of which each call is an ordinary run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.api.api_request import ApiRequest
from app.api.run_body import CaseBody
from app.runs.ports import Accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool of which each call is a run."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments."""
    accept: Callable[[ApiRequest, Mapping[str, Any]], Awaitable[Accepted]]
    """Accepts the run of a call: gets the fields ``run_id`` (may be null) and ``metadata`` besides
    the arguments. It raises what a route that accepts runs raises, or a ValidationError."""


Offers = Callable[[ApiRequest], Awaitable[Sequence[OfferedTool]]]
"""Returns the tools that the sender of a request may call now."""


async def case_tools(request: ApiRequest) -> Sequence[OfferedTool]:
    """Return the tool that runs cases."""
    return (_RUN_CASE,)


async def _accept_case(request: ApiRequest, fields: Mapping[str, Any]) -> Accepted:
    body = CaseBody.model_validate(dict(fields))
    return await request.runs.accept(request.api.cases.new_run(body, request.caller.tenant, None))


_RUN_CASE = OfferedTool(
    name="run_case",
    description=(
        "Answers a question whose answer can be checked (arithmetic, dates, stock prices, plots),"
        " inside a hard budget. Returns the run: its status, its answer under result, what it has"
        " spent and why it stopped."
    ),
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["input"],
        "properties": {
            "input": {"type": "string", "minLength": 1, "description": "The question."},
            "mode": {"enum": ["hrm_small_then_escalate", "escalate", "fallback_only"]},
            "timezone": {"type": "string", "description": "IANA name: where today begins."},
            "expected_tools": {"type": "array", "items": {"type": "string"}},
            "budget": {"type": "object", "description": "Limits, as in POST /runs."},
            "seed": {"type": "integer"},
        },
    },
    accept=_accept_case,
)
