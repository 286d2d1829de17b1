"""Invalid replies of a model endpoint harm neither the service nor the usage of the run."""

import json
from typing import Any

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient

LLM = {"id": "first", "type": "llm", "data": {"prompt": "${default}"}}
THEN = {"id": "second", "type": "llm", "data": {"prompt": "and ${default}"}}
EDGE = {
    "source": "first",
    "source_handle": "default",
    "target": "second",
    "target_handle": "default",
    "data": {"channel": "flow"},
}


def reply(content: str) -> str:
    """Return a chat completion whose content is raw JSON text, including its escapes."""
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m\ud800",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "CONTENT"},
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    return json.dumps(body).replace("CONTENT", content)


async def ask(client: JsonClient, question: str, *steps: Any) -> dict[str, Any]:
    graph = {"steps": [LLM, *steps], "edges": [EDGE] if steps else []}
    return await client.run_graph(
        graph, inputs={"default": question}, wait_seconds=120, budget={"max_seconds": 120}
    )


async def test_halves_of_characters_in_a_reply_hurt_nothing(
    client: JsonClient, provider: FakeProvider
) -> None:
    """Lone surrogates cannot be stored or sent, so they become a replacement character."""
    await provider.script("halves", [Step(raw_body=reply(r"a\ud800\u0000 \udfff\ud83d\ude00b"))])

    run = await ask(client, "halves", THEN)

    assert run["status"] == "completed"
    assert run["result"]["outputs"]["first"]["default"] == "a\ufffd\ufffd \ufffd\U0001f600b"
    assert run["usage"]["api_calls"] == len(await provider.arrivals()) == 2
    assert (await provider.arrivals("and a"))[0].prompt.endswith("and a\ufffd\ufffd \ufffd😀b")


@pytest.mark.parametrize("packed", [True, False], ids=["compressed", "plain"])
@pytest.mark.guarantee(22)
async def test_a_reply_of_many_megabytes_is_refused(
    client: JsonClient, provider: FakeProvider, packed: bool
) -> None:
    """A reply of many megabytes is neither decompressed nor stored nor requested again."""
    step = Step(text="x" * 20_000_000, chunk_chars=100_000, gzip=packed)
    await provider.script("huge", [step], repeat_last=True)

    run = await ask(client, "huge")

    assert run["status"] == "failed"
    assert "too long" in run["stop"]["reason"]
    assert len(await provider.arrivals("huge")) == 1
