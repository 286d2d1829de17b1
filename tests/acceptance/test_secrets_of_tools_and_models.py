"""Secrets that callers never sent come from tools and models, in answers and in failures.

A third-party tool breaks, fails and answers with canaries. A model provider puts them into headers,
pages, broken plans and names of unknown tools, long enough to be truncated. Their answers belong to
the caller; no other surface may show them.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.canary_requests import CanaryRequests
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings
from tests.support.surfaces import Surface, columns_of, plain, views_of

KEPT = frozenset({"runs.request", "runs.result", "calls.value"})
"""Columns that keep the original text: the request, the result and the journal."""

TORN = ("ada.king.countess.of.lovelace", "hunter-of-secrets-2")
"""Parts of an address and of a password at the position where names are truncated."""


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Return the settings of a service with a third-party tool that outputs secrets everywhere."""
    return {
        **model_settings(running_provider.openai_url),
        "LOGGING_LEVEL": "debug",
        "TOOLS_PLUGINS": '["tests.support.talkative_tool:TalkativeTool"]',
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def requests(
    service: ServiceProcess, running_provider: FakeProvider
) -> AsyncIterator[CanaryRequests]:
    """Send all requests, and return them with their results."""
    timeout = httpx.Timeout(60)
    async with httpx.AsyncClient(base_url=service.url, timeout=timeout, trust_env=False) as http:
        requests = CanaryRequests(http, running_provider)
        for name, step in steps(requests).items():
            await ask(requests, name, step)
        await look_for(requests)
        yield requests


def steps(requests: CanaryRequests) -> dict[str, Step]:
    """Return named replies of the provider."""
    for place in ("tool cause", "tool exception", "tool error", "tool code", "tool result"):
        requests.plant(place)
    page = f"<html><body>{requests.plant('page')}</body></html>"
    limits = {"x-request-id": requests.plant_one("request id", "model key"), "retry-after": "0"}
    limits["www-authenticate"] = f'Bearer realm="{requests.plant_one("realm", "email")}"'
    strange = {"how": "answer", f"{'x' * 25}.{TORN[0]}@mail.example.org": 1}
    return {
        "breaks": Step(plan=action("talk", how="break")),
        "fails": Step(plan=action("talk", how="fail")),
        "answers": Step(plan=action("talk", how="answer")),
        "page": Step(status=503, raw_body=page, headers=limits),
        "teapot": Step(status=418, raw_body=page, headers=limits),
        "half a plan": Step(text='{"actions": [{"tool": "' + requests.plant("half")),
        "no tool": Step(plan=action(f"{'x' * 45} {TORN[0]}@mail.example.org")),
        "no tool either": Step(plan=action(f"{'x' * 35} password={TORN[1]}")),
        "no argument": Step(plan=action("talk", **strange)),
        "no json": Step(raw_body=requests.plant("no json")),
    }


def action(tool: str, **args: Any) -> dict[str, Any]:
    return {"actions": [{"tool": tool, "args": args}]}


async def ask(requests: CanaryRequests, name: str, step: Step) -> None:
    """Run a case and a graph that the provider answers with this reply."""
    case = {"input": f"Case of {name}: {requests.plant(f'question {name}')}"}
    prompt = f"Graph of {name}: {requests.plant(f'prompt {name}')}"
    steps = [{"id": "ask", "type": "llm", "data": {"prompt": prompt}}]
    graph = {"kind": "graph", "graph": {"steps": steps, "edges": []}}
    for marker, body in ((f"Case of {name}:", case), (f"Graph of {name}:", graph)):
        await requests.provider.script(marker, [step], repeat_last=True)
        answer = await requests.http.post("/runs", json=body, headers={"Prefer": "wait=30"})
        requests.runs[marker] = answer.json()


async def look_for(requests: CanaryRequests) -> None:
    """Request missing resources whose names are secrets."""
    for kind in ("email", "model key", "web token", "account", "phone"):
        value = requests.plant_one(f"path {kind}", kind)
        for path in ("/runs/{}/trace", "/runs/{}/artifacts/{}", "/graphs/{}/versions/1", "/{}"):
            requests.answers.append(await requests.http.get(path.format(value, value)))
        requests.answers.append(await requests.http.delete(f"/graphs/{value}"))
        requests.answers.append(await requests.http.put("/runs", params={"q": value}))


def leaks(requests: CanaryRequests, surfaces: list[Surface]) -> list[str]:
    """Return each leaked canary or part of one, with the surface that shows it."""
    parts = {f"{part} in {each.name}" for part in TORN for each in surfaces if part in each.text}
    return sorted({*requests.leaks(surfaces), *parts})


@pytest.mark.asyncio(loop_scope="module")
async def test_every_way_was_gone(requests: CanaryRequests, module_database_url: str) -> None:
    """Otherwise the searches below would prove nothing."""
    statuses = {name: run["status"] for name, run in requests.runs.items()}
    kept = "".join(each.text for each in columns_of(module_database_url) if each.name in KEPT)

    assert set(statuses.values()) == {"completed", "failed"}
    assert requests.runs["Case of answers:"]["result"]["answer"]  # nothing could confirm it
    assert statuses["Case of breaks:"] == statuses["Case of half a plan:"] == "failed"
    for place in ("tool result", "half", "question page"):
        assert requests.canaries[place].of("email").needle in kept, place


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/19.2")
async def test_what_tools_and_models_say_is_not_logged(
    requests: CanaryRequests, service: ServiceProcess
) -> None:
    """The log level is debug, and tracebacks are included."""
    lines = [json.loads(line) for line in service.child.stderr.splitlines() if line]
    output = service.child.stdout + service.child.stderr

    assert len(lines) > len(requests.runs)
    assert leaks(requests, [Surface("output", output), Surface("lines", plain(lines))]) == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/19.2")
async def test_what_tools_and_models_say_is_kept_in_the_journal_alone(
    requests: CanaryRequests, module_database_url: str
) -> None:
    """Events and queue jobs contain no copy."""
    elsewhere = [each for each in columns_of(module_database_url) if each.name not in KEPT]

    assert {each.name.partition(".")[0] for each in elsewhere} >= {"events", "calls"}
    assert leaks(requests, elsewhere) == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/19.2", "002/13.5")
async def test_what_tools_and_models_say_is_not_told_of_a_run(requests: CanaryRequests) -> None:
    """This covers its view without the result, its trace, its events and its receipt."""
    for name, run in requests.runs.items():
        assert leaks(requests, await views_of(requests.http, run["run_id"])) == [], name


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/23.5")
async def test_what_is_not_found_is_not_named(requests: CanaryRequests) -> None:
    """A path may contain a secret that a caller pasted by mistake."""
    assert len(requests.answers) == 30
    for answer in requests.answers:
        assert 400 <= answer.status_code < 500, answer.url
        assert leaks(requests, [Surface("answer", answer.text + str(answer.headers.raw))]) == []
