"""One agent runs against both model protocols, and a caller sees no difference."""

from itertools import groupby
from typing import Any

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, finished, model_settings

SAYS = "I look it up twice, side by side, and then I say what both have brought."
CALLS = [
    {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'},
    {"id": "c2", "name": "calculator", "arguments": '{"expression": "6 +"}'},
]
SHAPE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "why": {"type": "string"}},
    "required": ["value", "why"],
    "additionalProperties": False,
}
WHY = "because six times seven has been forty-two for as long as anybody can remember"
TURNS = [
    Step(text=SAYS, thinking="Let me see: two sums.", tool_calls=CALLS, chunk_chars=7),
    Step(text="It is 42.", thinking="Done?", chunk_chars=7),
    Step(text=f'{{"value": 42, "why": "{WHY}"}}', chunk_chars=7),
]
AGENT = {
    "name": "sums",
    "prompt": {"system": "Work out ${what}."},
    "inputs": {"what": {"type": "string"}},
    "tools": ["calculator"],
    "output": {"schema": SHAPE},
}


def _body(run_id: str) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "kind": "agent",
        "agent": AGENT,
        "input": "6 times 7? (protocols)",
        "inputs": {"what": "sums"},
    }


@pytest.mark.req("003/FR2.5", "003/FR3.4")
async def test_both_protocols_bring_the_same_events_and_messages(
    database_url: str, provider: FakeProvider
) -> None:
    """The script has thinking, streamed texts, calls, a broken call, a reprompt and JSON."""
    told = {}
    for name, base_url in (("openai", provider.openai_url), ("anthropic", provider.url)):
        await provider.reset()
        await provider.script("(protocols)", TURNS)
        settings = model_settings(base_url)
        settings |= {key: name for key in settings if key.endswith("_PROVIDER")}
        settings |= {f"MODELS_{tier}_API_KEY": "fake" for tier in ("SMALL", "BIG")}
        async with (
            ServiceProcess(database_url, settings=settings) as service,
            service.client() as client,
        ):
            await client.post_run(_body(name))
            run = await finished(client, name)
            events = [event async for event in client.events(name)]
        assert run["status"] == "completed", run
        assert len(await provider.arrivals("(protocols)")) == 3
        assert run["result"].pop("models") == [
            {"provider": name, "model": settings["MODELS_SMALL_MODEL"], "calls": 3}
        ]
        told[name] = (run["result"], _merged(events), run["usage"]["turns"])

    assert told["openai"] == told["anthropic"]
    result, shown, _ = told["openai"]
    assert result["output"] == {"value": 42, "why": WHY}
    assert (result["output_valid"], result["terminate_reason"]) == (True, "goal")
    kinds = {kind for kind, _ in shown}
    assert {"thinking", "content_chunk", "tool_call_start", "tool_call_end", "usage"} <= kinds


def _merged(events: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return the turn events with merged text parts and without provider counts.

    The number of parts and the order of parallel calls depend on timing, so parallel calls are
    sorted.
    """
    merged: list[tuple[str, Any]] = []
    for event in events:
        kind, data = event["type"], dict(event["data"])
        if "turn_number" not in data:
            continue
        if kind == "usage":
            data = {"turn_number": data["turn_number"]}
        if kind in ("thinking", "content_chunk"):
            key = (kind, data["turn_number"])
            text, offset = data["content"], data["offset"]
            if offset and merged[-1][0] == kind:
                assert merged[-1][1][0] == key
                assert len(merged[-1][1][1]) == offset
                merged[-1] = kind, (key, merged[-1][1][1] + text)
            else:
                merged.append((kind, (key, text)))
            continue
        merged.append((kind, data))
    return [
        event
        for _, group in groupby(merged, key=lambda event: event[0].startswith("tool_call_"))
        for event in sorted(group, key=_call_id)
    ]


def _call_id(event: tuple[str, Any]) -> str:
    kind, data = event
    match kind:
        case "tool_call_start":
            return str(data["tool_call"]["id"])
        case "tool_call_end":
            return str(data["tool_call_id"])
        case _:
            return ""
