"""Named models from the environment, and a process killed during a call of a fallback."""

import json
from itertools import pairwise

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, finished

STEPS = ("one", "two", "three")


@pytest.mark.req("cw/14.named", "cw/14.priced")
async def test_a_run_goes_on_at_the_fallback_at_which_its_process_was_killed(
    database_url: str, provider: FakeProvider
) -> None:
    """The failed model is not called again, and each logical call counts once."""
    named = {
        "fast": {
            "provider": "openai",
            "base_url": provider.openai_url,
            "api_key": "sk-fast",
            "model": "fake-fast",
            "fallbacks": ["dear"],
        },
        "dear": {
            "provider": "anthropic",
            "base_url": provider.url,
            "api_key": "sk-dear",
            "model": "fake-dear",
        },
    }
    steps = [
        {"id": name, "type": "llm", "data": {"prompt": f"{name}?", "model": {"name": "fast"}}}
        for name in STEPS
    ]
    edges = [
        {"source": source, "target": target, "data": {"channel": "flow"}}
        for source, target in pairwise(STEPS)
    ]
    graph = {"steps": steps, "edges": edges}
    run = {"run_id": "r", "kind": "graph", "graph": graph, "budget": {"max_llm_calls": 2}}
    await provider.script("", [Step(status=401)], model="fake-fast", repeat_last=True)
    await provider.script("one?", [Step(hang=True), Step(text="1")], model="fake-dear")
    settings = {"MODELS_NAMED": json.dumps(named)}
    async with ServiceProcess(database_url, settings=settings) as service:
        async with service.client() as client:
            await client.post_run(run)
            await provider.wait_for_arrivals(2, "one?")
        service.child.kill()
        await provider.release()
        await service.start()
        async with service.client() as client:
            ended = await finished(client, "r")
            trace = await client.trace("r")
        logged = service.child.stderr

    asked = {name: [one.model for one in await provider.arrivals(f"{name}?")] for name in STEPS}
    usage, nodes = ended["usage"], trace["snapshot"]["nodes"].values()
    assert (ended["status"], ended["stop"]["dimension"], ended["attempts"]) == (
        *("halted", "llm_calls", 2),
    )
    assert asked == {
        "one": ["fake-fast", "fake-dear", "fake-dear"],
        "two": ["fake-fast", "fake-dear"],
        "three": [],
    }
    assert (usage["llm_calls"], usage.get("llm_calls_small", 0)) == (2, 0)
    calls = [(n["metadata"]["provider"], n["model"]) for n in nodes if n["kind"] == "llm"]
    assert set(calls) == {("openai", "fake-fast"), ("anthropic", "fake-dear")}
    assert "model.fallback" in logged
    assert "sk-dear" not in logged
