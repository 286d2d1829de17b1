"""Raw replies of endpoints, complete and in parts, for tests of odd ones."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.fake_provider.script import Step

Json = dict[str, Any]
CALCULATOR = "calculator"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def stream(*events: Any, done: bool = True) -> Step:
    """Return a stream of Chat Completions; an event is a document, or raw text."""
    texts = [each if isinstance(each, str) else f"data: {json.dumps(each)}\n\n" for each in events]
    body = "".join((*texts, "data: [DONE]\n\n" if done else ""))
    return Step(raw_body=body, headers={"content-type": "text/event-stream"})


def chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> Json:
    """Return one chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    made = {"id": "c", "model": "m", "choices": [choice]}
    return made if usage is None else {**made, "usage": usage}


def calling(*pieces: Sequence[Any]) -> Step:
    """Return a stream with tool calls; a piece is an index, an ID, a name and arguments."""
    chunks = [
        chunk(
            tool_calls=[
                {
                    "index": at,
                    "id": call_id,
                    "function": {"name": name, "arguments": stream_with_usage},
                }
            ]
        )
        for at, call_id, name, stream_with_usage in pieces
    ]
    return stream(*chunks, chunk("tool_calls", USAGE))


def chat_completion(message: Json, finish: str = "stop") -> Step:
    """Return a chat completion that is not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return Step(raw_body=json.dumps({"id": "c", "choices": [choice], "usage": USAGE}))


def document(value: Any, status: int = 200) -> Step:
    """Return a JSON value as the body of a reply."""
    return Step(raw_body=json.dumps(value), status=status)


def anthropic(*calls: Json, text: str = "") -> Step:
    """Return a message of Anthropic that is not streamed."""
    blocks = [{"type": "text", "text": text}] if text else []
    content = [*blocks, *({"type": "tool_use", **call} for call in calls)]
    reason = "tool_use" if calls else "end_turn"
    usage = {"input_tokens": 100, "output_tokens": 10}
    return document({"type": "message", "content": content, "stop_reason": reason, "usage": usage})


def use(call_id: str, arguments: str) -> Json:
    """Return a call of the calculator in a message of Anthropic."""
    return {"id": call_id, "name": "calculator", "input": json.loads(arguments)}


def beside(total: int, reasoning: int) -> Json:
    """Return usage whose reasoning tokens are not part of the output tokens."""
    details = {"reasoning_tokens": reasoning}
    return {**USAGE, "total_tokens": total, "completion_tokens_details": details}


def so_far(tokens: int) -> Json:
    """Return usage with this number of output tokens."""
    return {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}


def stream_with_usage(usage: Any) -> Step:
    """Return a stream that ends with this usage."""
    return stream(chunk(content="a"), chunk("stop", usage))
