"""OpenAI's Chat Completions API, and servers with a compatible API."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from caseworker.models.counts import chat_usage
from caseworker.models.ports import (
    Message,
    ModelEndpoint,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolDefinition,
)
from caseworker.models.wires import responses
from caseworker.models.wires.endpoint import MAX_IN_FLIGHT, STREAM, EndpointProvider
from caseworker.models.wires.finish_reasons import (
    Finish,
    finish_reason_text,
    incomplete_of,
    meaning_of,
)
from caseworker.models.wires.message_rules import MISTRAL_IDS, OPENAI_IDS, sent_back, state_of
from caseworker.models.wires.reply import (
    Accumulator,
    WrittenCall,
    is_object,
    joined_text,
)
from caseworker.models.wires.responses import ResponseReply
from caseworker.models.wires.schemas import is_strict, plain_object, tidy
from caseworker.models.wires.transport import ModelTransport, Wire

DEFAULT_BASE_URL = "https://api.openai.com/v1"
EMBEDDINGS_PATH = "/embeddings"

_NAME = "openai"
_NO_KEY = "none"  # some servers require a key, local ones ignore it

_REASONS = re.compile(r"o[134](-|$)|gpt-5(?!-chat)|gpt-[6-9]")
"""OpenAI's models that accept only ``max_completion_tokens``."""
_TAKES_TEMPERATURE = re.compile(r"gpt-5\.[1-4](?!-chat|-pro|-codex)")
"""Those of ``_REASONS`` that reason only on request, and otherwise accept a temperature."""
_THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")


def from_endpoint(endpoint: ModelEndpoint) -> EndpointProvider:
    """Create the provider ``openai`` from its endpoint configuration."""
    by_path = {EMBEDDINGS_PATH: endpoint.max_embeddings_bytes}
    wire = ModelTransport(endpoint.max_reply_bytes, by_path)
    return openai_provider(base_url=endpoint.base_url, api_key=endpoint.api_key, wire=wire)


def openai_provider(
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    wire: Wire | None = None,
) -> EndpointProvider:
    """Create the provider ``openai`` for OpenAI itself, or the server at ``base_url``.

    Only the given key is sent, never one from the environment. The provider closes ``wire``, which
    defaults to a new transport.
    """
    dialect = ChatCompletions(base_url or DEFAULT_BASE_URL, api_key or _NO_KEY)
    return EndpointProvider(dialect, wire or ModelTransport(), max_in_flight)


class ChatCompletions:
    """Implements ``WireFormat`` for the OpenAI Chat Completions API."""

    name = _NAME
    path = "/chat/completions"
    other_apis: Mapping[str, type[Accumulator]] = MappingProxyType({responses.PATH: ResponseReply})

    def __init__(self, base_url: str, api_key: str) -> None:
        self.adaptable: tuple[str, ...] = (
            *("max_tokens", "max_completion_tokens", "temperature", "seed", "stream_options"),
            STREAM,
        )
        self.base_url = base_url.rstrip("/")
        self.headers = {"authorization": f"Bearer {api_key}"}
        self._host = urlsplit(base_url).hostname or ""
        self._is_openai = self._host == urlsplit(DEFAULT_BASE_URL).hostname
        self._origin = _NAME if self._is_openai else f"{_NAME} at {self._host}"

    def body(self, model: str, request: ModelRequest, omitted: frozenset[str]) -> dict[str, Any]:
        """Build the request body without the parameters in ``omitted``."""
        of_mistral = self._host.endswith("mistral.ai") or "mistral" in model.lower()
        ids = MISTRAL_IDS if of_mistral else OPENAI_IDS
        messages = sent_back(request.messages, ids, self._origin)
        body: dict[str, Any] = {
            "model": model,
            "messages": [self._message(message) for message in messages],
        }
        if request.tools:
            body |= {
                "tools": [tool.form(_offered) for tool in request.tools],
                "tool_choice": "auto",
            }
        body["stream"] = request.stream and STREAM not in omitted
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        family = model.lower().rpartition("/")[2]
        reasons = _REASONS.match(family) is not None
        if request.max_output_tokens is not None:
            body[self.limit_field(model, omitted)] = request.max_output_tokens
        if not reasons or _TAKES_TEMPERATURE.match(family):
            body["temperature"] = request.temperature
        body["seed"] = request.seed
        if request.json_schema is not None:
            schema = tidy(request.json_schema)
            form = {"name": "reply", "schema": schema, "strict": is_strict(request.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        elif request.json_object:
            body["response_format"] = {"type": "json_object"}
        rejected = omitted - {"max_tokens", "max_completion_tokens"}
        return {
            name: value
            for name, value in body.items()
            if value is not None and name not in rejected
        }

    def limit_field(self, model: str, omitted: frozenset[str]) -> str:
        """Return the parameter that limits the output; many servers do not know OpenAI's own."""
        names = ["max_completion_tokens", "max_tokens"]
        reasons = _REASONS.match(model.lower().rpartition("/")[2]) is not None
        if not (reasons or self._is_openai):
            names.reverse()
        return names[names[0] in omitted]

    def accumulator(self, model: str, request: ModelRequest) -> "ChatReply":
        """Create an accumulator for the reply to a request."""
        return ChatReply(model, self._origin, frozenset(tool.name for tool in request.tools))

    def _message(self, message: Message) -> dict[str, Any]:
        written: dict[str, Any] = {"role": message.role}
        if message.role == "tool":
            written["tool_call_id"] = message.tool_call_id
        written["content"] = message.content
        if message.role != "assistant":
            return written
        state = state_of(message, self._origin)
        for thought in state.get("thinking", ()):
            if (name := thought.get("id")) in _THINKING_FIELDS:
                written[name] = written.get(name, "") + thought["content"]
        if details := state.get("reasoning_details"):
            written["reasoning_details"] = details
        if message.tool_calls:
            written["content"] = message.content or None
            written["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                    **state.get("calls", {}).get(call.id, {}),
                }
                for call in message.tool_calls
            ]
        return written


def _offered(tool: ToolDefinition) -> dict[str, Any]:
    plain = plain_object(tool.parameters)
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    function["parameters"] = tidy(plain)
    if is_strict(plain):
        function["strict"] = True
    return {"type": "function", "function": function}


class ChatReply(Accumulator):
    """Builds a reply from one JSON document or from stream chunks."""

    def __init__(self, model: str, origin: str, offered: frozenset[str]) -> None:
        super().__init__(model, origin)
        self._offered = offered
        self._in_parts = False
        self._calls: list[WrittenCall] = []
        self._by_id: dict[str, WrittenCall] = {}
        self._by_index: dict[int, WrittenCall] = {}
        """The newest call with each ID and each index."""
        self._index: Any = None
        """Index of the choice that is read; other choices are ignored."""
        self._native_reason: str | None = None
        self._field: str | None = None
        """Field of this reply that holds the thinking."""
        self._usage: TokenUsage | None = None
        self._choices_started, self._choices_ended = set[Any](), set[Any]()

    def add(self, document: Mapping[str, Any]) -> None:
        """Process a completion document or a stream chunk, and add its parts to ``deltas``."""
        choices = document.get("choices")
        if self._is_plain(document, choices):
            return
        is_counted = self._count(document.get("usage"))
        self.note_identity(document)
        if isinstance(groq := document.get("x_groq"), dict):
            is_counted = self._count(groq.get("usage")) or is_counted
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                index = choice.get("index")
                self._index = index if self._index is None else self._index
                is_counted = self._count(choice.get("usage")) or is_counted  # Kimi
                self._receive(choice, index)
                if index in (None, self._index):  # only one answer was requested
                    self._choice(choice)
        if is_counted:
            all_ended = len(self._choices_started) == len(self._choices_ended)
            self.has_final_counts = self.ended and (not choices or all_ended)

    def counted(self, *, so_far: bool = False) -> TokenUsage | None:
        """Return the latest counts; some endpoints send running totals."""
        return self._usage

    def reply(self) -> ModelReply | None:
        """Return the reply; None if no choice has arrived."""
        if not self.has_started:
            return None
        if self._field is not None:
            self.state["thinking"] = [{"id": self._field, "content": self.prose.thinking}]
        reasons = (self.finish_reason, self._native_reason)
        return self.finished(self._calls, incomplete_of(reasons, refusal=self.explanation))

    def _is_plain(self, document: Mapping[str, Any], choices: Any) -> bool:
        """Process a chunk that only adds text to a begun answer, as almost all do."""
        if not self._in_parts or self._calls or type(choices) is not list or len(choices) != 1:
            return False
        choice = choices[0]
        delta = choice.get("delta") if type(choice) is dict else None
        if type(delta) is not dict or not delta.keys() <= _PLAIN or choice.get("finish_reason"):
            return False
        if document.get("usage") or choice.get("usage") or "x_groq" in document:
            return False
        text, index = delta.get("content"), choice.get("index")
        if type(text) is not str or index != self._index or "message" in choice:
            return False
        if text:
            self.received.append(text)
            self.prose.add_content(text)
        return True

    def _receive(self, choice: Mapping[str, Any], index: Any) -> None:
        """Keep the text of a choice, including ignored choices."""
        message = choice.get("delta")
        if not isinstance(message, dict) and not self._in_parts:
            message = choice.get("message")
        self._choices_started.add(index)
        if finish_reason_text(choice.get("finish_reason")):
            self._choices_ended.add(index)
        if not isinstance(message, dict):
            return
        names = next(((name,) for name in _THINKING_FIELDS if message.get(name)), ())
        for name in ("content", *names, "refusal"):
            if text := joined_text(message.get(name)):
                self.received.append(text)
        if audio := message.get("audio"):
            self.received += [each for each in _texts_below(audio) if each]
        for name in ("tool_calls", "function_call"):
            if called := message.get(name):
                self.received += [each for each in _texts_below(called) if each]
                self.received_calls += sum(map(_is_named, _each(called)))

    def _choice(self, choice: Mapping[str, Any]) -> None:
        message = choice.get("delta")
        if isinstance(message, dict):
            self._in_parts = True
        elif not self._in_parts:  # some repeat the whole message with each delta
            message = choice.get("message")
        if isinstance(message, dict):
            self.has_started = True
            self._add_message(message)
        self._native_reason = (
            finish_reason_text(choice.get("native_finish_reason")) or self._native_reason
        )
        if reason := finish_reason_text(choice.get("finish_reason")):
            self.has_started = self.ended = True
            if incomplete_of([self.finish_reason]) is None:
                self.finish_reason = reason
            if meaning_of(reason) is Finish.UNKNOWN:
                self.repairs["finish_reason_unknown"] = None

    def _add_message(self, message: Mapping[str, Any]) -> None:
        for name in _THINKING_FIELDS:
            if (value := message.get(name)) and (thought := joined_text(value)):
                self._field = self._field or name
                if self._field == name:
                    self.prose.add_thinking(thought)
        if isinstance(details := message.get("reasoning_details"), list) and details:
            self.state.setdefault("reasoning_details", []).extend(details)
        content = message.get("content")
        for part in content if isinstance(content, list) else (content,):
            kind = part.get("type") if isinstance(part, dict) else "text"
            if isinstance(part, dict) and kind in ("thinking", "reasoning"):
                self.prose.add_thinking(joined_text(part.get("thinking", part)))
            elif isinstance(part, dict) and kind == "refusal":
                self.explanation += joined_text(part.get("refusal"))
            else:
                self.prose.add_content(joined_text(part))
        if refusal := message.get("refusal"):
            self.explanation += joined_text(refusal)
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._call(call)
        if isinstance(function := message.get("function_call"), dict):
            self._call({"index": 0, "function": function})

    def _call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function")
        function = function if isinstance(function, dict) else piece
        call_id, name, index = piece.get("id"), function.get("name"), _index(piece.get("index"))
        call_id = call_id if isinstance(call_id, str) else ""
        name = name if isinstance(name, str) else ""
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            self.repairs["arguments_object"] = None
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not (call_id or name or arguments):
            return
        call = self._started_by(index, call_id, name) if self._in_parts else None
        if call is None:
            call = WrittenCall()
            self._calls.append(call)
        call.id = call.id or call_id
        if call_id:
            self._by_id[call_id] = call
        if index is not None:
            self._by_index[index] = call
            call.index = index
        if name and call.name != name:
            call.name += name
        elif name and call.fragments:
            self.repairs["call_name_repeated"] = None
        call.fragments.append(arguments or "")
        if isinstance(extra := piece.get("extra_content"), dict):  # Gemini
            call.more["extra_content"] = extra

    def _started_by(self, index: int | None, call_id: str, name: str) -> WrittenCall | None:
        """Return the call that a fragment continues; None if it starts a new call.

        Some endpoints give all calls the same index or ID, or change index or ID in a later
        fragment.
        """
        call = self._by_id.get(call_id)
        if call is None and index is not None:
            call = self._by_index.get(index)
        if call is None and self._calls and not name and (index is None or not call_id):
            call = self._calls[-1]
        if call is None or not name or not call.name:
            return call
        other = bool(call_id) and bool(call.id) and call_id != call.id
        is_next_call = index != call.index and is_object(call.arguments)
        renamed = name != call.name and call.name + name not in self._offered
        if other or renamed:
            self.repairs["call_index_repeated"] = None
        return None if other or is_next_call or renamed else call

    def _count(self, usage: Any) -> bool:
        """Update the token counts and return whether there are some; the latest values win."""
        if not isinstance(usage, dict) or (counted := chat_usage(usage)) is None:
            return False
        if self._usage not in (None, counted):
            self.repairs["usage_repeated"] = None
        beside = counted.tokens_out - (usage.get("completion_tokens") or counted.tokens_out)
        if beside > 0 and counted.tokens_reasoning == beside:
            self.repairs["reasoning_beside_output"] = None
        self._usage = counted
        return True


_PLAIN = frozenset({"content", "role"})
_NOT_WRITTEN = frozenset({"id", "type", "index", "expires_at", "extra_content"})
"""Fields of a tool call, or of a sound, that the model does not write."""


def _each(calls: Any) -> Sequence[Any]:
    return calls if isinstance(calls, list) else (calls,)


def _is_named(call: Any) -> bool:
    """Return whether a part of a tool call has its name, with which it begins."""
    function = call.get("function", call) if isinstance(call, dict) else None
    return isinstance(function, dict) and bool(function.get("name"))


def _texts_below(value: Any) -> Iterator[str]:
    """Yield the texts that the model wrote in a tool call."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts_below(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NOT_WRITTEN:
                yield from _texts_below(each)


def _index(value: Any) -> int | None:
    """Return the index of a call, also from a string; None if the endpoint omitted it."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() else None
