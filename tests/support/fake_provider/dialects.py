"""How the OpenAI and the Anthropic protocol say the same things."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.fake_provider.script import Step

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a request asks, whichever protocol it came in."""

    path: str
    model: str
    texts: tuple[str, ...]
    stream: bool
    forced_tool: str | None
    """The tool that the reply has to call (the Anthropic way to ask for a JSON document)."""

    @property
    def text(self) -> str:
        """All texts, joined."""
        return "\n".join(self.texts)

    @property
    def question(self) -> str | None:
        """``question`` of the last message that is a JSON document which has one."""
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
    """Understand a request of either protocol."""
    messages = [*_texts(body.get("system")), *_texts(body.get("messages"))]
    tools = body.get("tools") or []
    choice = body.get("tool_choice") or {}
    forced = isinstance(choice, dict) and choice.get("type") in ("any", "tool")
    return Prompt(
        path=path,
        model=str(body.get("model")),
        texts=tuple(messages),
        stream=bool(body.get("stream")),
        forced_tool=tools[0].get("name") if forced and tools else None,
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
    elif isinstance(value, dict):
        yield from _texts(value.get("content") or value.get("text"))


def reply(prompt: Prompt, step: Step) -> dict[str, Any]:
    """The complete answer to a prompt."""
    text = step.reply_text(prompt.question)
    if step.status != 200:
        return {"error": {"type": "fake_error", "message": text, "code": None}}
    if prompt.path == CHAT:
        return _chat_completion(prompt, step, text)
    return _message(prompt, step, text)


def _chat_completion(prompt: Prompt, step: Step, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": step.finish_reason}
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


def _message(prompt: Prompt, step: Step, text: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": prompt.model,
        "content": [_block(prompt, text)],
        "stop_reason": "tool_use" if prompt.forced_tool else "end_turn",
        "stop_sequence": None,
    }
    if step.omit_usage:
        return document
    tokens_in, tokens_out = _tokens(prompt, step, text)
    usage = {
        "input_tokens": tokens_in - step.tokens_cached,
        "cache_read_input_tokens": step.tokens_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": tokens_out,
        "output_tokens_details": {"thinking_tokens": step.tokens_reasoning},
    }
    return {**document, "usage": usage}


def _block(prompt: Prompt, text: str) -> dict[str, Any]:
    if prompt.forced_tool is None:
        return {"type": "text", "text": text}
    called = {"type": "tool_use", "id": "toolu_fake", "name": prompt.forced_tool}
    return {**called, "input": json.loads(text)}


def _tokens(prompt: Prompt, step: Step, text: str) -> tuple[int, int]:
    tokens_in = len(prompt.text) // 4 + 1 if step.tokens_in is None else step.tokens_in
    tokens_out = len(text) // 4 + 1 if step.tokens_out is None else step.tokens_out
    return tokens_in, tokens_out


def charged(prompt: Prompt, step: Step) -> dict[str, int] | None:
    """What a complete answer counts; None if it counts nothing."""
    if step.status != 200 or step.omit_usage or step.cut or step.raw_body is not None:
        return None
    tokens_in, tokens_out = _tokens(prompt, step, step.reply_text(prompt.question))
    return {
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "tokens_cached": step.tokens_cached,
    }


def stream(prompt: Prompt, step: Step) -> Iterator[bytes]:
    """The same answer as server-sent events, a few characters at a time."""
    document = reply(prompt, step)
    text = step.reply_text(prompt.question)
    pieces = [text[start : start + 8] for start in range(0, len(text), 8)]
    events = _chat_events if prompt.path == CHAT else _message_events
    yield from events(document, pieces)


def _chat_events(document: dict[str, Any], pieces: list[str]) -> Iterator[bytes]:
    common = {**document, "object": "chat.completion.chunk", "usage": None}
    for piece in pieces:
        delta = {"role": "assistant", "content": piece}
        yield _data({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    last = {"index": 0, "delta": {}, "finish_reason": document["choices"][0]["finish_reason"]}
    yield _data({**common, "choices": [last]})
    if "usage" in document:
        yield _data({**common, "choices": [], "usage": document["usage"]})
    yield b"data: [DONE]\n\n"


def _message_events(document: dict[str, Any], pieces: list[str]) -> Iterator[bytes]:
    start = {**document, "content": [], "stop_reason": None}
    yield _event("message_start", message=start)
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for piece in pieces:
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    yield _event("content_block_stop", index=0)
    delta = {"stop_reason": document["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage=document.get("usage"))
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})


def _data(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()
