"""Replies of providers, played to their clients."""

import json
from typing import Any

from caseworker.models.ports import Delta, Message, ModelReply, ModelRequest, ToolDefinition
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider.virtual import Replied
from tests.unit.models.wires.captured import Player

Document = dict[str, Any]

TOOL = ToolDefinition(name="now", description="", parameters={"type": "object"})


def chunk(delta: Document, reason: str | None = None, **more: Any) -> Document:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def event_stream(*documents: Document | str, done: bool = True) -> bytes:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in documents]
    texts += ["[DONE]"] if done else []
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def message_stream(*events: Document, stop: Document | None = None, **usage: int) -> bytes:
    """Return the events of a message; ``usage`` is that of its first event."""
    documents: list[Document | str] = [
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": usage}},
        *events,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}} if stop is None else stop,
        {"type": "message_stop"},
    ]
    return event_stream(*documents, done=False)


def text_block(text: str) -> Document:
    return {"type": "content_block_start", "index": 0, "content_block": {"text": text}}


async def reply_of(
    body: bytes, *, streamed: bool = True, held: bool = False, messages: bool = False
) -> ModelReply:
    build = anthropic_provider if messages else openai_provider
    provider = build(base_url="http://models.test", wire=Player(Replied((body,), held=held)))
    request = ModelRequest(
        messages=(Message(role="user", content="a question"),),
        tools=(TOOL,),
        on_delta=list[Delta]().append if streamed else None,
        timeout_seconds=60,
    )
    return await provider.complete("m", request)
