"""Chat Completions over the wire, split into any parts."""

import json
from typing import Any

import pytest

from caseworker.models.ports import Delta, Message, ModelError, ModelReply, ModelRequest
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider.virtual import Replied
from tests.unit.models.wires.captured import Player

SAID = "Zwei\u2028Zeilen, größer"


def _playing(*parts: bytes) -> Player:
    return Player(Replied(parts, held=parts[-1].startswith(b"data: [DONE]")))


def _chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return json.dumps({"id": "c", "model": "m", "choices": [choice], **more}, ensure_ascii=False)


async def _ask(wire: Player, deltas: list[Delta]) -> ModelReply:
    provider = openai_provider(base_url="http://models.test/v1/", api_key="key", wire=wire)
    message = Message(role="user", content="a question")
    request = ModelRequest(messages=(message,), on_delta=deltas.append, timeout_seconds=20)
    return await provider.complete("gpt-5-nano", request)


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_a_stream_is_read_in_whatever_parts_it_comes(size: int, end: str) -> None:
    """The format allows comments, event names and data of several lines."""
    begins, ends = _chunk({"role": "assistant", "content": SAID}), _chunk({}, "stop", created=1)
    lines = [
        ": wait",
        "",
        "event: m",
        f"data: {begins}",
        "",
        *_over_lines(ends),
        "",
        "data: [DONE]",
    ]
    stream = (end.join(lines) + end + end).encode()
    wire = _playing(*(stream[at : at + size] for at in range(0, len(stream), size)))
    deltas = list[Delta]()

    reply = await _ask(wire, deltas)

    assert (reply.text, reply.finish_reason) == (SAID, "stop")
    assert deltas == [Delta("content", SAID)]
    assert wire.url == "http://models.test/v1/chat/completions"
    assert wire.headers["authorization"] == "Bearer key"


async def test_the_end_of_a_connection_is_not_waited_for() -> None:
    """The reply is complete once the provider has sent its finish reason."""
    complete = [_chunk({"content": SAID}), _chunk({}, "stop")]
    events = (f"data: {each}\n\n".encode() for each in complete)

    assert (await _ask(_playing(*events, b"data: [DONE]\n\n"), [])).text == SAID


@pytest.mark.parametrize("error", [{"message": "all is lost", "code": 503}, "all is lost"])
async def test_an_error_within_a_stream_is_a_failure(error: object) -> None:
    """Text received before the error is discarded."""
    events = [_chunk({"content": "so far"}), _chunk({}, "stop", error=error)]

    with pytest.raises(ModelError) as caught:
        await _ask(_playing(*(f"data: {each}\n\n".encode() for each in events)), [])

    assert caught.value.retryable


def _over_lines(document: str) -> list[str]:
    indented = json.dumps(json.loads(document), indent=1)
    return [f"data:{line}" for line in indented.split("\n")]
