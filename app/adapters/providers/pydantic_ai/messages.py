"""Prompts, tools and replies in the words of pydantic-ai, and back.

What an assistant was thinking goes back to the provider that wrote it, with its signature, as part
of the message: some refuse the results of tools without it. Other providers are not shown it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pydantic_ai import messages as ai
from pydantic_ai.tools import ToolDefinition as AIToolDefinition
from pydantic_ai.usage import RequestUsage

from app.llm.ports import (
    Delta,
    Incomplete,
    Message,
    ModelReply,
    TokenUsage,
    ToolCall,
    ToolDefinition,
)

_THINKING = "thinking"
_PROVIDER = "provider"
_INCOMPLETE = {"length": Incomplete.LENGTH, "content_filter": Incomplete.CONTENT_FILTER}
_KEPT = ("id", "signature", "provider_details")
"""What is kept of a thought beside its words."""


def history(messages: Sequence[Message], provider: str) -> list[ai.ModelMessage]:
    """Return a prompt; results of tools that stand together are one message."""
    said: list[ai.ModelMessage] = []
    for role, group in groupby(messages, lambda message: message.role):
        if role == "tool":
            said.append(ai.ModelRequest(parts=[_returned(message) for message in group]))
        else:
            said.extend(_message(message, provider) for message in group)
    return said


def _message(message: Message, provider: str) -> ai.ModelMessage:
    if message.role == "system":
        return ai.ModelRequest(parts=[ai.SystemPromptPart(content=message.content)])
    if message.role == "user":
        return ai.ModelRequest(parts=[ai.UserPromptPart(content=message.content)])
    parts: list[ai.ModelResponsePart] = [*_thoughts(message.provider_state or {}, provider)]
    if message.content or not message.tool_calls:
        parts.append(ai.TextPart(content=message.content))
    parts += (ai.ToolCallPart(call.name, call.arguments, call.id) for call in message.tool_calls)
    return ai.ModelResponse(parts=parts, provider_name=provider)


def _returned(message: Message) -> ai.ToolReturnPart:
    name, call_id = message.tool_name or "tool", message.tool_call_id or ""
    return ai.ToolReturnPart(tool_name=name, content=message.content, tool_call_id=call_id)


def _thoughts(state: Mapping[str, Any], provider: str) -> Iterator[ai.ThinkingPart]:
    if state.get(_PROVIDER) == provider:
        for thought in state[_THINKING]:
            yield ai.ThinkingPart(provider_name=provider, **thought)


def offered(tool: ToolDefinition, *, strict: bool | None) -> AIToolDefinition:
    """Return a tool as a model is offered it."""
    return AIToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json_schema=dict(tool.parameters),
        strict=strict,
    )


class Deltas:
    """Reads the parts of a reply from the events of a stream.

    The arguments of a call of one of ``replying`` are the reply.
    """

    def __init__(self, replying: Collection[str]) -> None:
        self._replying = replying
        self._reply_parts: set[int] = set()

    def of(self, event: ai.ModelResponseStreamEvent) -> Delta | None:
        """Return the part that an event brings; None if it brings no text."""
        match event:
            case ai.PartStartEvent(part=ai.TextPart(content=text)):
                return _delta("content", text)
            case ai.PartStartEvent(part=ai.ThinkingPart(content=text)):
                return _delta("thinking", text)
            case ai.PartStartEvent(part=ai.ToolCallPart(tool_name=name) as call):
                if name in self._replying:
                    self._reply_parts.add(event.index)
                    return _delta("content", call.args)
            case ai.PartDeltaEvent(delta=ai.TextPartDelta(content_delta=text)):
                return _delta("content", text)
            case ai.PartDeltaEvent(delta=ai.ThinkingPartDelta(content_delta=text)):
                return _delta("thinking", text)
            case ai.PartDeltaEvent(delta=ai.ToolCallPartDelta(args_delta=text)):
                return _delta("content", text) if event.index in self._reply_parts else None
        return None


def _delta(kind: Any, text: object) -> Delta | None:
    return Delta(kind, text) if isinstance(text, str) and text else None


def reply_of(
    response: ai.ModelResponse, model: str, provider: str, replying: Collection[str]
) -> ModelReply:
    """Translate the provider's answer; its text is empty when it declined to give one.

    A call of one of ``replying`` is the reply itself; the other calls are asked for.
    """
    called = [part for part in response.parts if isinstance(part, ai.ToolCallPart)]
    replies = [part for part in called if part.tool_name in replying]
    asked = [part for part in called if part.tool_name not in replying]
    texts = [part.content for part in response.parts if isinstance(part, ai.TextPart)]
    thoughts = [part for part in response.parts if isinstance(part, ai.ThinkingPart)]
    text = _arguments(replies[0]) if replies else "".join(texts)
    incomplete = _INCOMPLETE.get(response.finish_reason or "")
    if incomplete is None and not asked and not text.strip():
        incomplete = Incomplete.EMPTY
    return ModelReply(
        text=text,
        model=response.model_name or model,
        usage=_usage_of(response.usage),
        finish_reason="stop"
        if replies and not asked and incomplete is None
        else response.finish_reason,
        incomplete=incomplete,
        tool_calls=tuple(
            ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=_arguments(part))
            for part in asked
        ),
        thinking="".join(part.content for part in thoughts),
        provider_state=_state(thoughts, provider) if thoughts else None,
    )


def _arguments(part: ai.ToolCallPart) -> str:
    """Return arguments as the model wrote them, and an object where it wrote none."""
    written = part.args
    return written if isinstance(written, str) and written.strip() else part.args_as_json_str()


def _state(thoughts: Sequence[ai.ThinkingPart], provider: str) -> dict[str, Any]:
    kept = [
        {"content": part.content}
        | {name: value for name in _KEPT if (value := getattr(part, name)) is not None}
        for part in thoughts
    ]
    return {_PROVIDER: provider, _THINKING: kept}


def _usage_of(usage: RequestUsage) -> TokenUsage | None:
    """Return the counted tokens; None when there are none, or impossible ones."""
    tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
    if usage.unmeasured_requests or min(tokens_in, tokens_out) < 0 or tokens_in + tokens_out == 0:
        return None
    reasoning = usage.output_reasoning_tokens or usage.details.get("reasoning_tokens", 0)
    return TokenUsage(
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=max(0, min(usage.cache_read_tokens, tokens_in)),
        tokens_reasoning=max(0, min(reasoning, tokens_out)),
    )
