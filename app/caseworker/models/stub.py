"""A substitute for a model: it calls the tools that it is offered and repeats their results."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from caseworker.models.ports import (
    ModelEndpoint,
    ModelError,
    ModelFault,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolCall,
)
from caseworker.models.recorded import streamed

_FINISH: Final = "finish"
"""Tool of every agent that ends it; a text ends it as well."""
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")


class StubProvider:
    """A ModelProvider that needs no key and no network, for trying out agents and their tools.

    It answers the first message with a call of each tool whose required arguments it can take from
    the message, and then repeats the results of the tools. Four characters count as one token.
    """

    name = "stub"
    external = True  # its calls are journaled and charged like those of a real model

    def __init__(self, endpoint: ModelEndpoint) -> None:
        """Ignore the endpoint, because nothing is called."""

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Return calls of tools, or a text.

        Raises:
            ModelError: the request requires JSON.
        """
        if request.json_schema or request.json_object:
            problem = "stub: it cannot answer in JSON; configure a model, such as OPENAI_API_KEY"
            raise ModelError(problem, retryable=False, fault=ModelFault.MISCONFIGURED)
        last = max(at for at, each in enumerate(request.messages) if each.role != "tool")
        results = [each for each in request.messages[last + 1 :] if each.role == "tool"]
        question = request.messages[last].content
        calls = tuple(
            ToolCall(id=f"stub-{number}", name=tool.name, arguments=json.dumps(arguments))
            for number, tool in enumerate(() if results else request.tools, 1)
            if tool.name != _FINISH
            and (arguments := _arguments(tool.parameters, question)) is not None
        )
        results_text = "; ".join(f"{each.tool_name} returned {each.content}" for each in results)
        text = (
            "" if calls else f"This is the stub model. {results_text or f'You wrote: {question}'}"
        )
        usage = TokenUsage(
            tokens_in=sum(len(each.canonical_json()) for each in request.messages) // 4,
            tokens_out=(len(text) + sum(len(each.arguments) for each in calls)) // 4 + 1,
        )
        reason = "tool_calls" if calls else "stop"
        reply = ModelReply(
            text=text, model=model, usage=usage, finish_reason=reason, tool_calls=calls
        )
        return streamed(reply, request)

    async def aclose(self) -> None:
        """Do nothing, because this provider opens no connection."""


def _arguments(schema: Mapping[str, Any], question: str) -> dict[str, Any] | None:
    """Return values for the required arguments; None if one of them has no simple type."""
    numbers = iter(_NUMBER.findall(question))
    arguments: dict[str, Any] = {}
    for name in schema.get("required", ()):
        of = schema["properties"].get(name, {})
        match of.get("type"):
            case "integer":
                arguments[name] = int(float(next(numbers, "1")))
            case "number":
                arguments[name] = float(next(numbers, "1"))
            case "string":
                arguments[name] = of.get("enum", [next(numbers, question)])[0]
            case "boolean":
                arguments[name] = True
            case _:
                return None
    return arguments
