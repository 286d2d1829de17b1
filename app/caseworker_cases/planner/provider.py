"""The model provider ``offline``, which parses a planning prompt and plans without a model."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from caseworker.models.ports import (
    Message,
    ModelError,
    ModelFault,
    ModelReply,
    ModelRequest,
    TokenUsage,
)
from caseworker_cases.planner.sentences import PlannedCall, readings
from caseworker_cases.planner.table import ROWS

MAX_PROMPT_CHARS: Final = 200_000
MAX_REASON_CHARS: Final = 300
_COVERED = re.compile(r"The prices of (\S{1,20}) cover (\d{4}-\d\d-\d\d) to ", re.ASCII)
"""Message of the stock tools that states the first day with prices."""


class UnreadablePromptError(ValueError):
    """The user messages are not the JSON documents of a planning prompt."""


@dataclass(frozen=True, slots=True)
class PlanningPrompt:
    """The parts of a planning prompt that the built-in planner uses."""

    question: str
    tools: frozenset[str] | None
    """Names of the allowed tools; None if the prompt does not list them."""
    expected_tools: tuple[str, ...]
    """Names of the tools that the request expects the plan to use."""
    evidence: tuple[Mapping[str, Any], ...]
    """Results of earlier actions, each as ``{"tool", "args", "result"}``."""
    failure: str
    """Why an earlier plan failed; empty if none failed."""

    @classmethod
    def of(cls, request: ModelRequest) -> "PlanningPrompt":
        """Parse the user messages of a planning request.

        The first message contains the question. Later ones contain evidence and failures. The tools
        are the functions that the reply schema allows.

        Raises:
            UnreadablePromptError: the question is missing; the message names the problem without
                quoting the prompt.
        """
        documents = [_document(each) for each in request.messages if each.role == "user"]
        first, *later = documents or [{}]
        if not isinstance(first.get("question"), str):
            raise UnreadablePromptError("the prompt has no question")
        return cls(
            question=first["question"],
            tools=_tools_in(request.json_schema),
            expected_tools=_names(first.get("expected_tools")),
            evidence=tuple(one for document in documents for one in _evidence(document)),
            failure=_reason((later or [first])[-1].get("failure")),
        )

    def error(self) -> str:
        """Return the last error message; empty if nothing failed."""
        for piece in reversed(self.evidence):
            result = piece.get("result", piece)
            if isinstance(result, Mapping) and (reason := _reason(result.get("error"))):
                tool = piece.get("tool")
                return f"{tool}: {reason}" if isinstance(tool, str) else reason
        return self.failure

    def first_days(self) -> Mapping[str, str]:
        """Map each symbol whose start date was too early to its first day with prices.

        The mapping is empty after any other error.
        """
        days: dict[str, str] = {}
        for result in (piece.get("result") for piece in self.evidence):
            if not isinstance(result, Mapping) or "error" not in result:
                continue
            covered = _COVERED.match(str(result["error"]))
            if result.get("code") != "out_of_range" or covered is None:
                return {}
            days[covered[1]] = covered[2]
        return days

    def tried(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments was already executed."""
        return (tool, args) in [(piece.get("tool"), piece.get("args")) for piece in self.evidence]


def _document(message: Message) -> Mapping[str, Any]:
    if len(message.content) > MAX_PROMPT_CHARS:
        raise UnreadablePromptError("the prompt is too long")
    try:
        document = json.loads(message.content)
    except (ValueError, RecursionError):
        raise UnreadablePromptError("the prompt is not a JSON document") from None
    if not isinstance(document, dict):
        raise UnreadablePromptError("the prompt has no question")
    return document


def _evidence(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = document.get("evidence")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _tools_in(schema: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Return the tool names in the schema of plans: the titles of the action's alternatives."""
    try:
        branches = (schema or {})["properties"]["actions"]["items"]["anyOf"]
        return frozenset(str(branch["title"]) for branch in branches)
    except (KeyError, TypeError):
        return None


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _reason(value: object) -> str:
    """Return a failure as one line of printable text, whatever form it has."""
    text = value if isinstance(value, str) else json.dumps(value) if value else ""
    line = " ".join(text.split())[:MAX_REASON_CHARS]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


Plan = dict[str, Any]
"""A plan as JSON: ``{"actions": [{"tool", "args"}]}``, or ``{"cannot": why}``."""

NOT_READ: Final = (
    "I do not understand this question: the built-in planner reads only the sentences of"
    " docs/planner.md (arithmetic, dates, prices of the packaged stocks); for other questions"
    " configure a model, with MODELS_SMALL_BASE_URL or OPENAI_API_KEY in the environment."
)
NO_MODEL: Final = (
    "The built-in planner plans cases and nothing else: for agents and llm steps configure a model,"
    " with MODELS_SMALL_BASE_URL or OPENAI_API_KEY in the environment."
)
_FAILED: Final = "My plan failed, and I know no other."


class OfflineProvider:
    """A ModelProvider that parses the question with a table; it needs no key, network or model.

    The first user message is a JSON document with the ``question``; later ones hold ``evidence``
    and ``failure``. The reply schema names the tools. The reply is a JSON plan ``{"actions":
    [{"tool", "args"}]}``, or ``{"cannot": why}`` for a question that matches no sentence of the
    table. The same prompt always gets the same reply. Its usage is always zero tokens.
    """

    name = "offline"
    external = False

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Return a plan; ``model`` is only repeated in the reply.

        Raises:
            ModelError: the request does not ask for the plan of a case.
        """
        try:
            planned = plan(PlanningPrompt.of(request))
        except UnreadablePromptError as error:
            message = f"{NO_MODEL} ({error})"
            raise ModelError(message, retryable=False, fault=ModelFault.MISCONFIGURED) from None
        usage = TokenUsage(tokens_in=0, tokens_out=0)
        return ModelReply(text=json.dumps(planned), model=model, usage=usage, finish_reason="stop")

    async def aclose(self) -> None:
        """Do nothing, because this provider opens no connection."""


def plan(prompt: PlanningPrompt) -> Plan:
    """Return the plan for a question, or the reason why there is none.

    There is no plan if the question matches no sentence or requires a forbidden tool. A plan
    that was already tried or has failed is not returned again, with one exception. After a failure,
    it is changed to skip the days of a month or year that have no prices yet.
    """
    error, first_days = prompt.error(), prompt.first_days()
    if error and not first_days:
        return {"cannot": f"{_FAILED} {error}"}
    reading = next(readings(ROWS, prompt.question), None)
    if reading is None:
        return {"cannot": NOT_READ}
    calls = with_expected(reading.calls, prompt.expected_tools)
    for call in calls:
        if prompt.tools is not None and call.tool not in prompt.tools:
            return {"cannot": f"I do not know how to answer without the tool {call.tool}."}
    if error:
        calls, failed = tuple(_moved(call, first_days) for call in calls), calls
        if calls == failed or not reading.flexible:
            return {"cannot": f"{_FAILED} {error}"}
    if repeated_call := next((call for call in calls if prompt.tried(call.tool, call.args)), None):
        return {"cannot": f"I asked the tool {repeated_call.tool} already, and know no other plan."}
    return {"actions": [{"tool": call.tool, "args": dict(call.args)} for call in calls]}


def calls_for(question: str, expected: Sequence[str]) -> tuple[PlannedCall, ...] | None:
    """Return the tool calls for a question; None if it matches no sentence of the table."""
    reading = next(readings(ROWS, question), None)
    return None if reading is None else with_expected(reading.calls, expected)


def with_expected(
    calls: tuple[PlannedCall, ...], expected: Sequence[str]
) -> tuple[PlannedCall, ...]:
    """Add the expected tools that fetch or plot the prices, if the only call is a stock metric."""
    figure = calls[0]
    if len(calls) > 1 or figure.tool != "numeric_analysis" or "symbol" not in figure.args:
        return calls
    figure_args = {name: figure.args[name] for name in ("symbol", "start", "end")}
    before = (
        (PlannedCall("data_fetch_stock", figure_args),) if "data_fetch_stock" in expected else ()
    )
    after = (
        (PlannedCall("plotter", {"kind": "line", **figure_args}),) if "plotter" in expected else ()
    )
    return (*before, figure, *after)


def _moved(call: PlannedCall, first_days: Mapping[str, str]) -> PlannedCall:
    """Return the call with its start moved to the first day that all its stocks have prices."""
    symbols = [call.args.get("symbol"), *call.args.get("symbols", ())]
    firsts = [first_days[symbol] for symbol in symbols if symbol in first_days]
    if not firsts or not call.args["start"] < max(firsts) <= call.args["end"]:
        return call
    return replace(call, args={**call.args, "start": max(firsts)})
