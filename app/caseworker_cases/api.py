"""The HTTP API of runs of kind ``case``."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from caseworker.core.budget.budget import Budget
from caseworker.models.gateway import ModelGateway
from caseworker.models.table import ModelTable, Tier
from caseworker.nodes.model_spec import no_model
from caseworker.platform.http.problems import Violation
from caseworker.platform.suggestions import suggestion
from caseworker.runs.http.admission import (
    MCP_BUDGET,
    Admission,
    Fields,
    KindApi,
    McpTool,
    require_none,
)
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.run import RunKind, RunRequest
from caseworker.tools.dispatch import ToolDispatch
from caseworker_cases.kind import EXPECTED_TOOLS, GOLD_ANSWER, MODE
from caseworker_cases.schemas import CaseBody, CaseFields, CaseRun, Mode


class CaseAdmission(Admission):
    """Validates request bodies of kind ``case`` and converts them to runs."""

    kind = RunKind.CASE

    def __init__(
        self,
        limits: ApiLimits,
        tools: ToolDispatch,
        models: ModelTable,
        *,
        budget: Budget,
        mode: Mode,
    ) -> None:
        """``budget`` and ``mode`` apply if the caller sends none."""
        super().__init__(limits, models, budget)
        self._tools = tools
        self._mode = mode

    def fields_of(self, request: RunRequest, document: Mapping[str, Any]) -> Fields:
        """Return the question, expected tools, gold answer and mode."""
        return {"input": request.input, **request.options}

    async def _own_fields(self, body: CaseBody, tenant: str) -> tuple[Fields, Fields]:
        options = {
            EXPECTED_TOOLS: list(body.expected_tools or ()),
            GOLD_ANSWER: body.gold_answer,
            MODE: body.mode or self._mode,
        }
        of_request = {
            "input": body.input,
            "options": {name: value for name, value in options.items() if value not in (None, [])},
        }
        return of_request, {"require_models": self._require_models}

    async def _require_models(self, allowed: Collection[str]) -> None:
        require_none(list(self._without_model(self._models.restricted(allowed))))

    def _violations(self, body: CaseBody) -> Iterator[Violation]:
        yield from self._without_model(self._models)
        if body.expected_tools:
            usable = [spec.name for spec in self._tools.usable()]
            for index, name in enumerate(body.expected_tools):
                if name not in usable:
                    message = f"Unknown tool. Available tools: {', '.join(usable)}."
                    yield Violation(f"expected_tools.{index}", message + suggestion(name, usable))

    def _without_model(self, models: ModelTable) -> Iterator[Violation]:
        if Tier.SMALL not in models:
            yield Violation("kind", no_model(Tier.SMALL, models))


_EXAMPLES: Final = {
    "arithmetic": {
        "summary": "A calculation",
        "value": {"input": "What is 12.5 % of 1840, plus 7?"},
    },
    "checked": {
        "summary": "A case with a known answer, a caller-supplied run ID and limits",
        "value": {
            "run_id": "case-2025-09-08.1",
            "input": "Which day comes 45 days after 2025-09-08?",
            "expected_tools": ["calendar"],
            "gold_answer": "Thursday, October 23, 2025",
            "mode": "fallback_only",
            "budget": {"max_seconds": 30, "max_tool_calls": 4, "max_cost_usd": 0.05},
            "deadline": "2030-01-01T12:00:00Z",
            "timezone": "Europe/Paris",
            "seed": 7,
            "metadata": {"ticket": "A-1024"},
        },
    },
}

_RUN_CASE: Final = McpTool(
    name="run_case",
    description=(
        "Answers a question whose answer can be checked (arithmetic, dates, stock prices, plots),"
        " within a hard budget. Returns the run: its status, its answer under result, its usage"
        " and why it stopped."
    ),
    parameters={
        "input": {"type": "string", "minLength": 1, "description": "The question."},
        "mode": {"enum": ["hrm_small_then_escalate", "escalate", "fallback_only"]},
        "timezone": {"type": "string", "description": "IANA time zone that defines today."},
        "expected_tools": {"type": "array", "items": {"type": "string"}},
        "budget": MCP_BUDGET,
        "seed": {"type": "integer"},
    },
    required=("input",),
)

CASE_API: Final = KindApi(
    kind=RunKind.CASE,
    body=CaseBody,
    view=CaseRun,
    admission=lambda services: CaseAdmission(
        services.service(ApiLimits),
        services.service(ToolDispatch),
        services.service(ModelGateway).table,
        budget=services.settings.budget.limits,
        mode=services.settings.flags.mode,
    ),
    resume=CaseFields,
    secret_fields=frozenset({GOLD_ANSWER}),
    examples=_EXAMPLES,
    mcp_tools=(_RUN_CASE,),
)
