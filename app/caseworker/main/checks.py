"""Check graphs and models with the configuration of this machine, without a service."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from caseworker.core.graph.problems import Problem
from caseworker.features.definitions.definitions import problems_alone
from caseworker.main.agents import build_catalog, build_models, build_tools
from caseworker.main.configuration import read_settings
from caseworker.main.errors import StartupError
from caseworker.main.limits import api_limits
from caseworker.main.plugins import Toolbox, installed_agents, installed_functions
from caseworker.models.ports import Message, ModelError, ModelReply, ModelRequest, ToolDefinition
from caseworker.models.table import ChatModel
from caseworker.platform.suggestions import suggestion
from caseworker.settings.schema import Settings

_SCHEMA: Final = {
    "type": "object",
    "properties": {"country": {"type": "string"}},
    "required": ["country"],
    "additionalProperties": False,
}
_TOOL: Final = ToolDefinition(
    name="get_capital", description="Return the capital of a country.", parameters=_SCHEMA
)

Check = dict[str, Any]
"""The outcome of the check of one capability: its name, whether it works, and a reply or error."""
Evidence = Callable[[ModelReply], Any]
"""Returns the part of a reply that proves a capability."""


def check_model(name: str, *, only_answer: bool = False) -> list[Check]:
    """Send requests to the configured model ``name``, without its fallbacks, and return checks.

    The first check is a plain answer. If it fails, or with ``only_answer``, no other request is
    sent.

    Raises:
        StartupError: the configuration is invalid, or no model has this name.
    """
    models = build_models(read_settings().settings)
    if name not in models.table:
        model_names = ", ".join(models.table)
        raise StartupError(
            f"No model is named {name!r}.{suggestion(name, models.table)} Models: {model_names}."
        )

    async def checked() -> list[Check]:
        try:
            return await _checks(models.table[name], only_answer=only_answer)
        finally:
            await models.aclose()

    return asyncio.run(checked())


async def _checks(model: ChatModel, *, only_answer: bool) -> list[Check]:
    question = "What is the capital of France? Answer with one word."
    checks = await _check(model, "plain answer", lambda reply: reply.text, question)
    if only_answer or not checks[0]["works"]:
        return checks
    parts: list[Any] = []
    capabilities: Sequence[tuple[str, Evidence, str, dict[str, Any]]] = (
        ("streaming", lambda reply: parts and reply.text, question, {"on_delta": parts.append}),
        (
            "tools",
            lambda reply: _arguments(reply.tool_calls[0]),
            "Call the tool to get the capital of France.",
            {"tools": (_TOOL,)},
        ),
        (
            "JSON schema",
            _country,
            "Name a country in Europe as a JSON object with the field country.",
            {"json_schema": _SCHEMA},
        ),
    )
    for capability, find, text, fields in capabilities:
        checks += await _check(model, capability, find, text, **fields)
    return checks


async def _check(
    model: ChatModel, capability: str, find: Evidence, text: str, **fields: Any
) -> list[Check]:
    """Send a request; return the check of a capability, and of the usage if it is reported."""
    request = ModelRequest(
        messages=(Message(role="user", content=text),),
        max_output_tokens=model.max_output_tokens,
        temperature=model.temperature,
        timeout_seconds=model.timeout_seconds,
        **fields,
    )
    try:
        async with asyncio.timeout(model.timeout_seconds):
            reply = await model.provider.complete(model.model, request)
    except (ModelError, TimeoutError) as error:
        problem = str(error) or "no answer in time"
        return [{"capability": capability, "works": False, "detail": problem}]
    try:
        evidence = find(reply)
    except (ValueError, TypeError, LookupError):
        evidence = None
    detail = evidence or f"not in the reply {reply.text!r} {reply.incomplete_reason or ''}".strip()
    check = {"capability": capability, "works": bool(evidence), "detail": detail}
    if capability not in ("plain answer", "streaming"):
        return [check]
    counts = reply.usage and f"{reply.usage.tokens_in} in, {reply.usage.tokens_out} out"
    usage = {"works": bool(counts), "detail": counts or "not reported"}
    return [check, {"capability": f"usage of {capability}", **usage}]


def _arguments(call: Any) -> str:
    return f"{call.name}({json.dumps(json.loads(call.arguments))})"


def _country(reply: ModelReply) -> Any:
    return isinstance(json.loads(reply.text)["country"], str) and reply.text


def graph_problems(
    settings: Settings, graphs: Sequence[Mapping[str, Any]]
) -> Sequence[Sequence[Problem]]:
    """Return all problems of each graph, checked with the tools and functions of this machine.

    Calls no model and starts no tool server. Registered graphs and agents are not looked up.

    Raises:
        StartupError: a configured provider, tool or function cannot be created.
    """

    async def examined() -> Sequence[Sequence[Problem]]:
        toolbox = Toolbox(settings.tools)
        tools = build_tools(settings, toolbox.tools, toolbox.servers)
        models = build_models(settings)
        try:
            functions, code = installed_functions(), installed_agents(settings.agents.plugins)
            catalog = build_catalog(settings, models, tools, toolbox, functions, code)
            limits = api_limits(settings).of_graphs
            return [problems_alone(catalog, limits, graph) for graph in graphs]
        finally:
            await models.aclose()
            await toolbox.aclose()

    return asyncio.run(examined())
