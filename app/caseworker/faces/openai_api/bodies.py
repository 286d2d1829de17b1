"""Converts the bodies of OpenAI's requests to the bodies of agent runs.

Every field of the installed API is in one of three tables: fields that a run honours, fields
without effect, and fields that cannot be honoured. The last ones are refused by name unless their
value asks for nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from caseworker.gateway.refusals import Refusal, RefusedError
from caseworker.models.ports import Message, Role, ToolCall
from caseworker.nodes.agent.conversation import plain_messages

_AGENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,63})(?:@([1-9][0-9]{0,8}))?", re.ASCII)
_BLANK: Final[Sequence[Any]] = (None, [], {}, "")
METADATA_KEY: Final = "openai"
"""Key in the metadata of a run for the fields of its request that only this API has."""
CLIENT_SYSTEM: Final = "[System message of the client]\n{}\n[End of the client's system message]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of the requests of one API."""

    honoured: frozenset[str]
    without_effect: frozenset[str]
    """Fields that are accepted and have no effect: the agent or the service decides."""
    refused: Mapping[str, Sequence[Any]]
    """Fields that cannot be honoured, with values that ask for nothing, next to null and empty
    ones."""


CHAT_FIELDS: Final = Fields(
    honoured=frozenset(
        {"messages", "metadata", "model", "seed", "stream", "stream_options", "tools"}
    ),
    without_effect=frozenset(
        {
            *("frequency_penalty", "parallel_tool_calls", "prediction", "presence_penalty"),
            *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
            *("reasoning_effort", "safety_identifier", "service_tier", "store", "temperature"),
            *("top_p", "user", "verbosity"),
        }
    ),
    refused={
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": (),
        "logit_bias": (),
        "logprobs": (False,),
        "max_completion_tokens": (),
        "max_tokens": (),
        "modalities": (["text"],),
        "moderation": (),
        "n": (1,),
        "response_format": ({"type": "text"},),
        "stop": (),
        "tool_choice": ("none", "auto"),
        "top_logprobs": (0,),
        "web_search_options": (),
    },
)
RESPONSE_FIELDS: Final = Fields(
    honoured=frozenset(
        {
            *("background", "input", "instructions", "metadata", "model", "previous_response_id"),
            *("stream", "stream_options"),
        }
    ),
    without_effect=frozenset(
        {
            *("include", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options"),
            *("prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store"),
            *("temperature", "top_p", "truncation", "user", "access_programs"),
        }
    ),
    refused={
        "background_options": (),
        "context_management": (),
        "conversation": (),
        "image": (),
        "max_output_tokens": (),
        "max_tool_calls": (),
        "moderation": (),
        "prompt": (),
        "text": (),
        "tool_choice": ("none", "auto"),
        "tools": (),
        "top_logprobs": (0,),
    },
)
_REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("functions", "function_call"), "send tools instead"),
    "tools": "agents call their own tools; POST /v1/chat/completions takes tools of the client",
    "tool_choice": "the agent chooses; only none and auto are offered",
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_tool_calls"),
        "the limits of the agent and the quotas of the tenant apply; set them there",
    ),
    **dict.fromkeys(
        ("response_format", "text"), "the agent's definition determines the format of its answer"
    ),
    "conversation": "conversations are not offered; send previous_response_id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """A request for an answer of an agent."""

    agent: Mapping[str, Any]
    """Reference to the registered agent: its name, and its version if the request names one."""
    messages: Sequence[Message]
    """Messages of the conversation, without system messages."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Tools of the client, each with ``name``, ``description`` and ``parameters``."""
    system: Sequence[str] = ()
    """System messages of the client."""
    streams: bool = False
    includes_usage: bool = False
    background: bool = False
    previous: str | None = None
    """ID of the response that the request follows."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None

    def run_body(
        self,
        earlier: Sequence[Mapping[str, str]],
        *,
        appends_system: bool,
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the body of the run. ``earlier`` messages precede those of the request.

        ``appends_system`` adds the system messages of the client to its first user message.
        ``about`` is stored in the metadata of the run.
        """
        messages = [
            {"role": each.role, "content": each.content} for each in plain_messages(self.messages)
        ]
        first = next((each for each in messages if each["role"] == "user"), None)
        if appends_system and self.system and first is not None:
            marked = CLIENT_SYSTEM.format("\n\n".join(self.system))
            first["content"] = f"{marked}\n\n{first['content']}"
        return {
            "kind": "agent",
            "agent": dict(self.agent),
            "messages": [*map(dict, earlier), *messages],
            "metadata": {**self.metadata, METADATA_KEY: about},
            "seed": self.seed,
            "client_tools": list(self.tools) or None,
        }


def chat_call(document: Any) -> AgentCall:
    """Read the body of a chat completion.

    Raises:
        RefusedError: the body is invalid, or has a field that cannot be honoured.
    """
    body = _checked(document, CHAT_FIELDS)
    messages, system = _conversation(body.get("messages"), "messages", has_calls=True)
    options = body.get("stream_options") or {}
    return AgentCall(
        **_common(body),
        messages=messages,
        system=system,
        tools=() if body.get("tool_choice") == "none" else _tools(body.get("tools")),
        includes_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        seed=_typed(body, "seed", int),
    )


def response_call(document: Any) -> AgentCall:
    """Read the body of a request for a response.

    Raises:
        RefusedError: the body is invalid, or has a field that cannot be honoured.
    """
    body = dict(document) if isinstance(document, dict) else document
    if isinstance(body, dict) and isinstance(text := body.get("text"), dict):
        # The verbosity has no effect; the format of text asks for nothing.
        is_plain = text.get("format") in (None, {"type": "text"})
        body["text"] = None if is_plain else text
    body = _checked(body, RESPONSE_FIELDS)
    input_, instructions = body.get("input"), _typed(body, "instructions", str)
    if isinstance(input_, str):
        input_ = [{"role": "user", "content": input_}]
    messages, system = _conversation(input_, "input")
    return AgentCall(
        **_common(body),
        messages=messages,
        system=[*([instructions] if instructions else []), *system],
        background=bool(_typed(body, "background", bool)),
        previous=_typed(body, "previous_response_id", str),
    )


def agent_named(model: Any) -> Mapping[str, Any]:
    """Return the reference to the agent with a model name such as ``support@3``.

    Raises:
        RefusedError: no agent can have this name.
    """
    if not isinstance(model, str):
        refuse("model", "The field model must be the name of an agent, such as support@3.")
    if (match := _AGENT.fullmatch(model)) is None:
        raise unknown_agent(model)
    name, version = match.groups()
    return {"name": name} if version is None else {"name": name, "version": int(version)}


def unknown_agent(model: str) -> RefusedError:
    """Return the refusal of a model name without a registered agent."""
    message = (
        f"No agent is registered as {model[:128]!r}. GET /v1/models lists the agents. To call"
        " models instead, use a key that begins with cwa_ or cwr_."
    )
    return RefusedError(Refusal(status=404, code="model_not_found", message=message, field="model"))


def refuse(
    field_name: str | None, message: str, *, code: str = "invalid_request", status: int = 400
) -> NoReturn:
    """Raise the refusal of a field.

    Raises:
        RefusedError: always.
    """
    raise RefusedError(Refusal(status=status, code=code, message=message, field=field_name))


def _common(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = _typed(body, "metadata", dict) or {}
    if METADATA_KEY in metadata:
        refuse("metadata", f"The key {METADATA_KEY} of metadata is reserved.")
    return {
        "agent": agent_named(body.get("model")),
        "streams": bool(_typed(body, "stream", bool)),
        "metadata": metadata,
    }


def _typed(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and value is True)):
        refuse(name, f"The field {name} has the wrong type.")
    return value


def _checked(document: Any, fields: Fields) -> Mapping[str, Any]:
    """Return a body whose fields are all known and can be honoured."""
    if not isinstance(document, dict):
        refuse(None, "The body must be a JSON object.")
    for name, value in document.items():
        if name in fields.refused:
            if value not in (*_BLANK, *fields.refused[name]):
                reason = _REASONS.get(name, "agents do not offer it")
                message = f"The field {name} is not supported: {reason}."
                refuse(name, message, code="unsupported_field")
        elif name not in fields.honoured and name not in fields.without_effect:
            refuse(name[:128], f"The field {name[:128]} is unknown.", code="unknown_field")
    return document


def _tools(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the functions of a client as tools of a run."""
    if not isinstance(value, list | None):
        refuse("tools", "The field tools must be a list.")
    tools = []
    for index, tool in enumerate(value or ()):
        at = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            refuse(at, f"{at}: agents take only tools of type function.", code="unsupported_field")
        fields = {name: function.get(name) for name in ("name", "description", "parameters")}
        tools.append({name: value for name, value in fields.items() if value not in (None, {})})
    return tools


def _conversation(
    value: Any, place: str, *, has_calls: bool = False
) -> tuple[Sequence[Message], Sequence[str]]:
    """Return the messages without those of the system, and the texts of these.

    With ``has_calls``, messages may have calls of the client's tools, or their results.
    """
    if not isinstance(value, list) or not value:
        refuse(place, f"The field {place} must be a list of messages.")
    messages, system = list[Message](), list[str]()
    names = dict[str, str]()
    roles = ("system", "developer", "user", "assistant", *(("tool",) if has_calls else ()))
    for index, item in enumerate(value):
        at = f"{place}[{index}]"
        if not isinstance(item, dict):
            refuse(at, f"{at} must be an object.")
        role, kind = item.get("role"), item.get("type", "message")
        if kind == "reasoning":
            continue  # an item of an earlier response, which an agent does not read
        if kind != "message" or role not in roles:
            what = f"items of type {kind}" if kind != "message" else f"messages of role {role}"
            refuse(at, f"{at}: {what} are not supported.", code="unsupported_field")
        calls = _calls(item.get("tool_calls"), f"{at}.tool_calls") if has_calls else ()
        if item.get("function_call") or (item.get("tool_calls") and not calls):
            refuse(f"{at}.tool_calls", f"{at}: tool calls are not supported.")
        text = _text(item.get("content"), f"{at}.content")
        names |= {call.id: call.name for call in calls}
        if role in ("system", "developer"):
            system.append(text)
        elif role == "tool":
            if not isinstance(call_id := item.get("tool_call_id"), str):
                refuse(f"{at}.tool_call_id", f"{at}.tool_call_id must be the ID of a call.")
            name = names.get(call_id, "a tool")
            messages.append(
                Message(role="tool", content=text, tool_call_id=call_id, tool_name=name)
            )
        elif calls or text.strip():
            author: Role = "assistant" if role == "assistant" else "user"
            messages.append(Message(role=author, content=text, tool_calls=calls))
        elif role == "user":
            refuse(f"{at}.content", f"{at}.content must not be blank.")
    return messages, [each for each in system if each.strip()]


def _calls(value: Any, place: str) -> tuple[ToolCall, ...]:
    calls = []
    for index, call in enumerate(value or ()):
        function = call.get("function") if isinstance(call, dict) else None
        fields = {"id": call.get("id"), **function} if isinstance(function, dict) else {}
        if not all(isinstance(fields.get(each), str) for each in ("id", "name", "arguments")):
            refuse(f"{place}[{index}]", f"{place}[{index}] must be a call of a function.")
        calls.append(ToolCall(id=fields["id"], name=fields["name"], arguments=fields["arguments"]))
    return tuple(calls)


def _text(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(place, f"{place} must be a text or a list of parts.")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            message = f"{place}[{index}]: agents read only parts of text, not {kind}."
            refuse(f"{place}[{index}]", message, code="unsupported_field")
        texts.append(part["text"])
    return "".join(texts)
