"""Anthropic's Messages API, and servers with a compatible API."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from caseworker.models.counts import message_usage
from caseworker.models.forms import ReplyForm, in_form
from caseworker.models.ports import (
    Delta,
    Message,
    ModelEndpoint,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolCall,
    ToolDefinition,
)
from caseworker.models.wires.endpoint import (
    STREAM,
    EndpointProvider,
    WireFormat,
    provider_at,
    provider_of,
)
from caseworker.models.wires.finish_reasons import (
    Finish,
    finish_reason_text,
    incomplete_of,
    meaning_of,
)
from caseworker.models.wires.message_rules import ANTHROPIC_IDS, object_in, sent_back, state_of
from caseworker.models.wires.reply import (
    Accumulator,
    WrittenCall,
    joined_text,
)
from caseworker.models.wires.schemas import plain_object

DEFAULT_MAX_OUTPUT_TOKENS = 4096
"""Output limit, in tokens, for requests that set none; the API requires one."""

_VERSION = "2023-06-01"
_NO_TEMPERATURE = re.compile(r"claude-(opus-4-[7-9]|(opus|sonnet|fable|mythos)-[5-9]|haiku-5-5)")
"""Models that reject a temperature."""
_REPLY = "reply"


class Messages(WireFormat):
    """Implements ``WireFormat`` for the Anthropic Messages API."""

    name = "anthropic"
    default_base_url = "https://api.anthropic.com"
    path = "/v1/messages"
    adaptable = ("temperature", STREAM)

    def headers_with(self, api_key: str) -> dict[str, str]:
        """Return the headers of the API."""
        return {"x-api-key": api_key, "anthropic-version": _VERSION}

    def body(self, model: str, request: ModelRequest, omitted: frozenset[str]) -> dict[str, Any]:
        """Build the request body without the parameters in ``omitted``, which the model rejects.

        A JSON reply is requested as the arguments of a tool call.
        """
        replying = _replying(request)
        if request.json_schema is not None and replying is None:
            request = in_form(request, ReplyForm.TEXT)
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": request.max_output_tokens or DEFAULT_MAX_OUTPUT_TOKENS,
            **self._conversation(sent_back(request.messages, ANTHROPIC_IDS, self.origin)),
        }
        if STREAM not in omitted:
            body[STREAM] = request.stream
        tools = [tool.form(_tool) for tool in request.tools]
        if replying is not None:
            document = ToolDefinition(
                name=replying, description="Give the reply.", parameters=request.json_schema or {}
            )
            body |= {"tools": [*tools, _tool(document)], "tool_choice": {"type": "any"}}
        elif tools:
            body |= {"tools": tools, "tool_choice": {"type": "auto"}}
        refused = "temperature" in omitted or _NO_TEMPERATURE.match(model.rpartition("/")[2])
        if request.temperature is not None and not refused:
            body["temperature"] = request.temperature
        return body

    def limit_field(self, model: str, omitted: frozenset[str]) -> str:
        """Return the parameter that limits the output."""
        return "max_tokens"

    def accumulator(self, model: str, request: ModelRequest) -> "MessageReply":
        """Create an accumulator for the reply to a request."""
        return MessageReply(model, self.origin, _replying(request))

    def _conversation(self, messages: list[Message]) -> dict[str, Any]:
        """Return the messages, of which a user message must be first, and the system prompt."""
        texts = [one.content for one in messages if one.role == "system" and one.content.strip()]
        turns, system = list(self._turns(messages)), "\n\n".join(texts)
        if not turns:
            return {"messages": [{"role": "user", "content": [_text(system)]}] if system else []}
        if turns[0]["role"] == "assistant":
            turns.insert(0, {"role": "user", "content": [_text("Begin.")]})
        return {"messages": turns, "system": system} if system else {"messages": turns}

    def _turns(self, messages: list[Message]) -> Iterator[dict[str, Any]]:
        results = list[dict[str, Any]]()
        for message in messages:
            if message.role == "tool":
                results.append(
                    {
                        "type": "tool_result",
                        "tool_use_id": message.tool_call_id,
                        "content": [_text(message.content)] if message.content.strip() else [],
                        "is_error": False,
                    }
                )
                continue
            if results:
                yield {"role": "user", "content": results}
                results = []
            if message.role == "assistant":
                yield {"role": "assistant", "content": list(self._blocks(message))}
            elif message.role == "user" and message.content.strip():
                yield {"role": "user", "content": [_text(message.content)]}
        if results:
            yield {"role": "user", "content": results}

    def _blocks(self, message: Message) -> Iterator[dict[str, Any]]:
        """Yield the blocks of a reply in the order in which they came."""
        state, chars, calls = state_of(message, self.origin), 0, iter(message.tool_calls)
        text = message.content.rstrip()  # the last block must not end in whitespace
        is_same = state.get("text_chars") == len(message.content)
        for thought in state.get("thinking", ()):
            before = thought.get("text_chars", 0) if is_same else 0
            yield from _texts(text[chars:before])
            chars = max(chars, before)
            yield from map(_called, islice(calls, thought.get("calls", 0)))
            signature = thought.get("signature")
            if thought.get("id") == "redacted_thinking":
                yield {"type": "redacted_thinking", "data": signature}
            elif signature:
                yield {"type": "thinking", "thinking": thought["content"], "signature": signature}
        yield from _texts(text[chars:])
        yield from map(_called, calls)


anthropic_provider = partial(provider_of, Messages)


def from_endpoint(endpoint: ModelEndpoint) -> EndpointProvider:
    """Create the provider ``anthropic`` from its endpoint configuration."""
    return provider_at(Messages, endpoint)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _texts(text: str) -> Iterator[dict[str, Any]]:
    if text.strip():  # the API rejects blank blocks
        yield _text(text)


def _called(call: ToolCall) -> dict[str, Any]:
    called = {"type": "tool_use", "id": call.id, "name": call.name}
    return {**called, "input": object_in(call.arguments)}


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    schema = plain_object(tool.parameters)
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _replying(request: ModelRequest) -> str | None:
    """Return the name of the tool whose arguments are the reply; None for a plain reply."""
    if request.json_schema is None or request.json_schema.get("type") != "object":
        return None
    name, names = _REPLY, {tool.name for tool in request.tools}
    while name in names:
        name += "_"
    return name


@dataclass(slots=True)
class _Block:
    """One content block of a message."""

    call: WrittenCall | None = None
    initial_input: str = ""
    """The arguments sent with the start of a tool call."""
    thought: list[str] | None = None
    """The pieces of a thinking block."""
    sealed: dict[str, str] = field(default_factory=dict)
    """The signature of a thinking block, and its type if it is redacted."""
    text_chars: int = 0
    """Length of the text of a block."""


class MessageReply(Accumulator):
    """Builds a reply from one JSON document or from stream events."""

    def __init__(self, model: str, origin: str, replying: str | None) -> None:
        super().__init__(model, origin)
        self._replying = replying
        self._blocks: list[_Block] = []
        self._at: dict[Any, _Block] = {}
        """The newest block at each index."""
        self._counts: dict[str, Any] = {}
        """The usage document; the latest value of a field holds, unless it is zero."""

    def add(self, document: Mapping[str, Any]) -> None:
        """Process a message document or a stream event, and add its parts to ``deltas``."""
        match document.get("type"):
            case "message_start":
                self._message(document.get("message"))
            case "content_block_start":
                self._block(document.get("index"), document.get("content_block"))
            case "content_block_delta":
                self._fragment(document.get("index"), document.get("delta"))
            case "message_delta":
                self._stopped(document.get("delta"))
                self._count(document.get("usage"))
                self.has_final_counts = self.ended and self.counted() is not None
            case _ if "content" in document:
                self._message(document)

    def reply(self) -> ModelReply | None:
        """Return the reply; None if no message has arrived."""
        if not self.has_started:
            return None
        incomplete = incomplete_of([self.finish_reason])
        written = [
            block.call
            if block.call.arguments.strip()
            or (incomplete is not None and block.initial_input == "{}")
            else replace(block.call, fragments=[block.initial_input])
            for block in self._blocks
            if block.call is not None
        ]
        replies = [call.arguments for call in written if call.name == self._replying]
        if thoughts := list(self._thoughts()):
            self.state["thinking"] = thoughts
            if any("text_chars" in thought for thought in thoughts):
                self.state["text_chars"] = sum(block.text_chars for block in self._blocks)
        calls = [call for call in written if call.name != self._replying]
        return self.finished(calls, incomplete, text=replies[0] if replies else None)

    def _thoughts(self) -> Iterator[dict[str, Any]]:
        """Yield the thinking blocks, each with the text before it and the calls since the last."""
        text_chars = calls = 0
        for block in self._blocks:
            text_chars += block.text_chars
            calls += block.call is not None and block.call.name != self._replying
            if block.thought is not None:
                place = {"text_chars": text_chars, "calls": calls}
                place = {name: count for name, count in place.items() if count}
                yield {"content": "".join(block.thought), **block.sealed, **place}
                calls = 0

    def _message(self, message: Any) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("content", []), list | str):
            return
        self.has_started = True
        self.note_identity(message)
        usage = message.get("usage")
        if isinstance(usage, dict) and message.get("stop_reason") is None:
            usage = {name: each for name, each in usage.items() if name != "output_tokens"}
        self._count(usage)
        self.has_final_counts = message.get("stop_reason") is not None and "output_tokens" in (
            usage or ()
        )
        content = message.get("content", [])
        blocks = [_text(content)] if isinstance(content, str) else content
        for index, block in enumerate(blocks):
            self._block(index, block)
        self._stopped(message)

    def _block(self, index: Any, block: Any) -> None:
        if not isinstance(block, dict):
            return
        opened = self._open(index)
        kind = block.get("type")
        self.is_hiding = kind in _HIDING
        self.received_calls += kind in ("tool_use", "server_tool_use")
        if kind == "server_tool_use" and isinstance(name := block.get("name"), str):
            self.tool_uses = {**self.tool_uses, name: self.tool_uses.get(name, 0) + 1}
        self.received += [text for text in _texts_below(block) if text]
        if kind == "tool_use":
            call_id, written = block.get("id"), block.get("input")
            opened.call = WrittenCall(
                id=call_id if isinstance(call_id, str) else "", name=joined_text(block.get("name"))
            )
            opened.initial_input = (
                written if isinstance(written, str) else json.dumps(written or {})
            )
            if written and opened.call.name == self._replying:
                self.deltas.append(Delta("content", opened.initial_input))
        elif kind == "redacted_thinking":
            opened.thought, opened.sealed = (
                [],
                {"id": kind, "signature": joined_text(block.get("data"))},
            )
        elif kind == "thinking":
            opened.thought = [joined_text(block.get("thinking"))]
            if signature := joined_text(block.get("signature")):
                opened.sealed["signature"] = signature
            self.prose.add_thinking(opened.thought[0])
        else:
            self._say(opened, block)

    def _say(self, opened: _Block, part: Mapping[str, Any]) -> None:
        text = joined_text(part.get("text"))
        opened.text_chars += len(text)
        self.prose.add_content(text)

    def _fragment(self, index: Any, delta: Any) -> None:
        if not isinstance(delta, dict):
            return
        opened = self._at.get(index) or self._open(index)
        self.received += [text for text in _texts_below(delta) if text]
        match delta.get("type"):
            case "text_delta":
                self._say(opened, delta)
            case "thinking_delta":
                opened.thought = opened.thought or []
                opened.thought.append(joined_text(delta.get("thinking")))
                self.prose.add_thinking(opened.thought[-1])
            case "signature_delta":
                before = opened.sealed.get("signature", "")
                opened.sealed["signature"] = before + joined_text(delta.get("signature"))
            case "input_json_delta":
                piece = delta.get("partial_json") or ""
                piece = piece if isinstance(piece, str) else json.dumps(piece)
                calls = (block.call for block in reversed(self._blocks) if block.call is not None)
                call = opened.call or next(calls, None)
                if call is not None:
                    call.fragments.append(piece)
                if call is not None and piece and call.name == self._replying:
                    self.deltas.append(Delta("content", piece))

    def _open(self, index: Any) -> _Block:
        self.has_started = True
        self._at[index] = _Block()
        self._blocks.append(self._at[index])
        return self._at[index]

    def _stopped(self, delta: Any) -> None:
        if not isinstance(delta, dict) or not (
            reason := finish_reason_text(delta.get("stop_reason"))
        ):
            return
        self.ended, self.finish_reason = True, reason
        if meaning_of(reason) is Finish.UNKNOWN:
            self.repairs["finish_reason_unknown"] = None
        details = delta.get("stop_details")
        if isinstance(details, dict):
            explanation = details.get("explanation") or details.get("category")
            self.explanation = explanation if isinstance(explanation, str) else ""

    def _count(self, usage: Any) -> None:
        for name, value in usage.items() if isinstance(usage, dict) else ():
            self._counts[name] = value or self._counts.get(name, value)

    def counted(self, *, so_far: bool = False) -> TokenUsage | None:
        """Return the counts; ``so_far`` also without the output, as a stream begins."""
        return message_usage(self._counts, is_complete=not so_far)


_HIDING = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks that show only a summary of the thinking, or nothing."""
_NOT_WRITTEN = frozenset({"id", "type", "index", "signature", "data", "tool_use_id", "citation"})
"""Fields of a block that the model does not write."""


def _texts_below(block: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts that the model wrote in a block, or in a part of it."""
    if str(block.get("type")).endswith("_tool_result"):
        return
    for name, value in block.items():
        if isinstance(value, str) and name not in _NOT_WRITTEN:
            yield value
        elif name == "input" and value:
            yield json.dumps(value, ensure_ascii=False)
