"""The mapping of the OpenAI and Anthropic protocols to a common form."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_provider import embeddings
from tests.support.fake_provider.script import Step
from tests.support.fake_provider.strictness import refused_by_anthropic, refused_by_openai

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
PATHS = (CHAT, MESSAGES, RESPONSES, EMBEDDINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The content of a request, independent of its protocol."""

    path: str
    model: str
    texts: tuple[str, ...]
    stream: bool
    forced_tool: str | None
    """The tool that the reply must call (the Anthropic way to request a JSON document)."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The request for embeddings; empty for other APIs."""

    @property
    def text(self) -> str:
        """All texts, joined."""
        return "\n".join(self.texts)

    @property
    def question(self) -> str | None:
        """``question`` of the last message that is a JSON document with this field."""
        for text in reversed(self.texts):
            try:
                document = json.loads(text)
            except ValueError:
                continue
            question = document.get("question") if isinstance(document, dict) else None
            if isinstance(question, str):
                return question
        return None


def read_prompt(path: str, body: dict[str, Any]) -> Prompt:
    """Parse a request of either protocol."""
    fields = ("system", "instructions", "messages", "input")
    messages = [text for name in fields for text in _texts(body.get(name))]
    tools = body.get("tools") or []
    choice = body.get("tool_choice") or {}
    forced = isinstance(choice, dict) and choice.get("type") in ("any", "tool")
    return Prompt(
        path=path,
        model=str(body.get("model")),
        texts=tuple(messages),
        stream=bool(body.get("stream")),
        forced_tool=tools[-1].get("name") if forced and tools else None,
        body=body if path == EMBEDDINGS else {},
    )


def read(path: str, body: dict[str, Any]) -> tuple[Prompt, Step | None]:
    """Parse a request; return it with its refusal, which a malformed one always gets."""
    try:
        return read_prompt(path, body), refusal(path, body)
    except (AttributeError, KeyError, TypeError, ValueError):
        model = str(body.get("model"))
        prompt = Prompt(path=path, model=model, texts=(), stream=False, forced_tool=None)
        return prompt, Step(status=400, text="malformed")


def refusal(path: str, body: dict[str, Any]) -> Step | None:
    """Return the refusal of a request that the real API would refuse."""
    if path in (RESPONSES, EMBEDDINGS):
        return None
    said = refused_by_openai(body) if path == CHAT else refused_by_anthropic(body)
    return None if said is None else Step(status=400, text=said)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
    elif isinstance(value, dict):
        yield from _texts(value.get("content") or value.get("text"))


def reply(prompt: Prompt, step: Step) -> dict[str, Any]:
    """Return the complete answer to a prompt."""
    text = step.reply_text(prompt.question)
    if step.status != 200:
        return {"error": {"type": "fake_error", "message": text, "code": None}}
    if prompt.path == CHAT:
        return _chat_completion(prompt, step, text)
    if prompt.path == RESPONSES:
        return _response(prompt, step, text)
    if prompt.path == EMBEDDINGS:
        return embeddings.reply(prompt.body, _tokens(prompt, step, "")[0])
    return _message(prompt, step, text)


def _chat_completion(prompt: Prompt, step: Step, text: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if step.thinking is not None:
        message["reasoning_content"] = step.thinking
    if step.tool_calls:
        message["tool_calls"] = [_chat_call(call) for call in step.tool_calls]
    asks = step.tool_calls and step.finish_reason == "stop"
    reason = "tool_calls" if asks else step.finish_reason
    choice = {"index": 0, "message": message, "finish_reason": reason}
    document: dict[str, Any] = {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": prompt.model,
        "choices": [choice],
    }
    return document if step.omit_usage else {**document, "usage": _chat_usage(prompt, step, text)}


def _chat_usage(prompt: Prompt, step: Step, text: str) -> dict[str, Any]:
    tokens_in, tokens_out = _tokens(prompt, step, text)
    return {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
        "prompt_tokens_details": {"cached_tokens": step.tokens_cached},
        "completion_tokens_details": {"reasoning_tokens": step.tokens_reasoning},
    }


def _response(prompt: Prompt, step: Step, text: str) -> dict[str, Any]:
    note = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "msg_fake", "type": "message", "role": "assistant", "status": "completed"}
    output: list[dict[str, Any]] = [{**message, "content": [note]}] if text else []
    for call in step.tool_calls:
        called = {"name": call["name"], "arguments": call["arguments"], "status": "completed"}
        item = {"id": f"fc_{call['id']}", "type": "function_call", "call_id": call["id"]}
        output.append({**item, **called})
    tokens_in, tokens_out = _tokens(prompt, step, text)
    status = "completed" if step.finish_reason == "stop" else step.finish_reason
    failed = {"code": "server_error", "message": "it failed"} if status == "failed" else None
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    usage = {
        "input_tokens": tokens_in,
        "input_tokens_details": {"cached_tokens": step.tokens_cached},
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": step.tokens_reasoning},
        "total_tokens": tokens_in + tokens_out,
    }
    return {
        "id": step.response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": prompt.model,
        "status": status,
        "error": failed,
        "incomplete_details": cut,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if step.omit_usage else usage,
    }


def _message(prompt: Prompt, step: Step, text: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": prompt.model,
        "content": list(_blocks(prompt, step, text)),
        "stop_reason": "tool_use" if prompt.forced_tool or step.tool_calls else "end_turn",
        "stop_sequence": None,
    }
    if step.omit_usage:
        return document
    tokens_in, tokens_out = _tokens(prompt, step, text)
    written, written_1h = step.tokens_cache_written, step.tokens_cache_written_1h
    usage = {
        "input_tokens": tokens_in - step.tokens_cached - written,
        "cache_read_input_tokens": step.tokens_cached,
        "cache_creation_input_tokens": written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": written - written_1h,
            "ephemeral_1h_input_tokens": written_1h,
        },
        "output_tokens": tokens_out,
        "output_tokens_details": {"thinking_tokens": step.tokens_reasoning},
    }
    return {**document, "usage": usage}


def _chat_call(call: dict[str, str]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": call["id"], "type": "function", "function": function}


def _blocks(prompt: Prompt, step: Step, text: str) -> Iterator[dict[str, Any]]:
    if step.thinking is not None:
        yield {"type": "thinking", "thinking": step.thinking, "signature": step.signature}
    if prompt.forced_tool is not None and not step.tool_calls:
        called = {"type": "tool_use", "id": "toolu_fake", "name": prompt.forced_tool}
        yield {**called, "input": json.loads(text)}
    elif text or not step.tool_calls:
        yield {"type": "text", "text": text}
    for call in step.tool_calls:
        called = {"type": "tool_use", "id": call["id"], "name": call["name"]}
        yield {**called, "input": _object(call["arguments"])}


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _tokens(prompt: Prompt, step: Step, text: str) -> tuple[int, int]:
    tokens_in = counted(prompt) if step.tokens_in is None else step.tokens_in
    tokens_out = len(text) // 4 + 1 if step.tokens_out is None else step.tokens_out
    if prompt.path == EMBEDDINGS:
        tokens_out = 0
    return tokens_in, tokens_out


def counted(prompt: Prompt) -> int:
    """Return the number of tokens of a prompt."""
    if prompt.body:
        return embeddings.counted(prompt.body)
    return len(prompt.text) // 4 + 1


def charged(prompt: Prompt, step: Step) -> dict[str, int] | None:
    """Return the usage in a complete answer; None if it reports none."""
    whole = not (step.omit_usage or step.cut or (prompt.stream and step.breaks_off))
    if step.status != 200 or not whole or step.raw_body is not None:
        return None
    tokens_in, tokens_out = _tokens(prompt, step, step.reply_text(prompt.question))
    return {
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "tokens_cached": step.tokens_cached,
    }


STREAM_ERROR = (
    b"event: error\n"
    b'data: {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}\n\n'
)
"""The error that replaces the rest of a stream, valid in both protocols."""


def stream(prompt: Prompt, step: Step) -> Iterator[bytes]:
    """Return the same answer as server-sent events of a few characters each."""
    events = {CHAT: _chat_events, MESSAGES: _message_events, RESPONSES: _response_events}
    yield from events[prompt.path](reply(prompt, step), step)


def _pieces(text: str, step: Step) -> Iterator[str]:
    for start in range(0, len(text), step.chunk_chars):
        yield text[start : start + step.chunk_chars]


def _chat_events(document: dict[str, Any], step: Step) -> Iterator[bytes]:
    common = {**document, "object": "chat.completion.chunk", "usage": None}
    (choice,) = document["choices"]

    def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _data({**common, "choices": [choice]})

    message = choice["message"]
    for piece in _pieces(message.get("reasoning_content", ""), step):
        yield chunk(role="assistant", reasoning_content=piece)
    for piece in _pieces(message["content"], step):
        yield chunk(role="assistant", content=piece)
    for index, call in enumerate(message.get("tool_calls", ())):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield chunk(tool_calls=[{**call, "index": index, "function": function}])
        for piece in _pieces(call["function"]["arguments"], step):
            yield chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}])
    yield chunk(choice["finish_reason"])
    if "usage" in document:
        yield _data({**common, "choices": [], "usage": document["usage"]})
    yield b"data: [DONE]\n\n"


def _response_events(document: dict[str, Any], step: Step) -> Iterator[bytes]:
    begun = {**document, "status": "in_progress", "output": [], "usage": None, "error": None}
    events: list[tuple[str, dict[str, Any]]] = [("created", {"response": begun})]
    for index, item in enumerate(document["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        added = {**item, **({"content": []} if "content" in item else {"arguments": ""})}
        events.append(("output_item.added", {"output_index": index, "item": added}))
        if "content" in item:
            at["content_index"] = 0
            (part,) = item["content"]
            events.append(("content_part.added", {**at, "part": {**part, "text": ""}}))
            text = {"text": part["text"], "logprobs": []}
            events += [
                ("output_text.delta", {**at, "delta": piece, "logprobs": []})
                for piece in _pieces(part["text"], step)
            ]
            events.append(("output_text.done", {**at, **text}))
            events.append(("content_part.done", {**at, "part": part}))
        else:
            events += [
                ("function_call_arguments.delta", {**at, "delta": piece})
                for piece in _pieces(item["arguments"], step)
            ]
            written = {"arguments": item["arguments"], "name": item["name"]}
            events.append(("function_call_arguments.done", {**at, **written}))
        events.append(("output_item.done", {"output_index": index, "item": item}))
    events.append((document["status"], {"response": document}))
    for number, (kind, fields) in enumerate(events):
        yield _event(f"response.{kind}", sequence_number=number, **fields)


def _message_events(document: dict[str, Any], step: Step) -> Iterator[bytes]:
    start = {**document, "content": [], "stop_reason": None}
    if "usage" in document:
        start["usage"] = {**document["usage"], "output_tokens": 1}
    yield _event("message_start", message=start)
    written = {call["id"]: call["arguments"] for call in step.tool_calls}
    for index, block in enumerate(document["content"]):
        yield _event("content_block_start", index=index, content_block=_empty(block))
        for delta in _block_deltas(block, written.get(block.get("id", "")), step):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    delta = {"stop_reason": document["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage=document.get("usage"))
    yield _event("message_stop")


def _empty(block: dict[str, Any]) -> dict[str, Any]:
    nothing: dict[str, Any] = {"text": "", "thinking": "", "signature": "", "input": {}}
    return block | {name: empty for name, empty in nothing.items() if name in block}


def _block_deltas(
    block: dict[str, Any], arguments: str | None, step: Step
) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            for piece in _pieces(block["text"], step):
                yield {"type": "text_delta", "text": piece}
        case "thinking":
            for piece in _pieces(block["thinking"], step):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            text = json.dumps(block["input"]) if arguments is None else arguments
            for piece in _pieces(text, step):
                yield {"type": "input_json_delta", "partial_json": piece}


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})


def _data(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()
