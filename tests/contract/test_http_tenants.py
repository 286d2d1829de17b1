"""On every route, an ID of another tenant looks like a missing one."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import psycopg
import pytest

from caseworker.settings.tools import ToolSettings
from tests.support.stores import eventually
from tests.support.tenants import Tenants, open_tenants, stable_answer

GRAPH: dict[str, Any] = {
    "steps": [
        {"id": "s", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "1"}}}
    ],
    "edges": [],
}
AGENT = {"name": "NAME", "prompt": {"system": "secret"}, "tools": []}
DELIVERY = "00000000-0000-4000-8000-00000000000a"
SCHEDULE = {"cron": "0 0 1 1 *", "run": {"kind": "graph", "graph": GRAPH}}
ASKING = {
    "run_id": "secret-asking",
    "kind": "graph",
    "graph": {"steps": [{"id": "ask", "type": "approval", "data": {"message": "?"}}], "edges": []},
}
DRAWING = {"id": "s", "type": "tool", "data": {"tool": "draw", "args": {"texts": ["secret"]}}}
BODIES: dict[str, Any] = {
    "/runs/{run_id}/finish": {"output": 1},
    "/runs/{run_id}/approvals/{approval_id}": {"decision": "approve"},
    "/runs/{run_id}/calls/{call_id}/result": {"output": 1},
    "/threads/{thread_id}/messages": {"content": "hello"},
    "/threads/{thread_id}/messages/{message_id}/edit": {"content": "hello"},
}
"""Bodies for the operations that need one; the other operations get no body."""


@pytest.fixture
async def tenants(database_url: str) -> AsyncIterator[Tenants]:
    """Run a service that executes runs, with a tool that makes files."""
    tools = ToolSettings(plugins=("tests.support.drawing_tool:DrawingTool",))
    async with open_tenants(database_url, executes=True, tools=tools) as tenants:
        yield tenants


async def everything_of_a(tenants: Tenants, url: str) -> dict[str, str]:
    """Let tenant ``a`` create one resource of each type; return the path parameters by name."""
    graph = {"steps": [DRAWING], "edges": []}
    run = {"run_id": "secret-run", "kind": "graph", "graph": graph, "metadata": {"secret": "x"}}
    done = await tenants.ask("a", "POST", "/runs", run, prefer="wait=20")
    assert done.json()["status"] == "completed", done.text
    assert (await tenants.ask("a", "POST", "/runs", ASKING)).status_code == 202
    agent = {"agent": {**AGENT, "name": "secret-name"}}
    thread = {"thread_id": "secret-thread", "graph": GRAPH}
    made = [
        await tenants.ask("a", "POST", "/graphs", {"name": "secret-name", "graph": GRAPH}),
        await tenants.ask("a", "POST", "/agents", agent),
        await tenants.ask("a", "POST", "/threads", thread),
    ]
    said_so = await tenants.ask("a", "POST", "/threads/secret-thread/messages", {"content": "42"})
    assert [answer.status_code for answer in (*made, said_so)] == [201, 201, 201, 202]
    assert (await tenants.ask("a", "PUT", "/schedules/secret-name", SCHEDULE)).is_success
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO webhook_deliveries (tenant_id, delivery_id, run_id, type, url, status,"
            " due_at) VALUES ('a', %s, 'secret-run', 'run.completed', 'https://x', 'dead', NULL)",
            (DELIVERY,),
        )
    key_id = tenants.keys["a"].split("_")[1]
    files = (await tenants.ask("a", "GET", "/runs/secret-run/artifacts")).json()["artifacts"]
    tree = (await tenants.ask("a", "GET", "/threads/secret-thread/messages")).json()
    return {
        "run_id": "secret-run",
        "name": "secret-name",
        "thread_id": "secret-thread",
        "message_id": tree["messages"][0]["message_id"],
        "key_id": key_id,
        "node_id": "n000001",
        "version": "1",
        "tenant": "a",
        "approval_id": (asked := await asked_of_a(tenants)),
        "call_id": asked,
        "delivery_id": DELIVERY,
        "file": files[0]["name"],
        "server": "secret-server",
    }


async def asked_of_a(tenants: Tenants) -> str:
    """Return the ID of the approval that tenant ``a``'s run waits for."""
    asked: list[str] = []

    async def waits() -> bool:
        run = (await tenants.ask("a", "GET", "/runs/secret-asking")).json()
        found = await tenants.ask("a", "GET", "/runs/secret-asking/approvals")
        asked[:] = [each["approval_id"] for each in found.json()["approvals"]]
        return bool(asked) and run["status"] == "waiting"

    await eventually(waits)
    return asked[0]


def path_of(template: str, names: Mapping[str, str]) -> str:
    """Return a path with these IDs; approvals belong to a run that waits."""
    here = dict(names)
    if "/approvals" in template or template.endswith("/result"):
        here["run_id"] = here["run_id"].replace("secret-run", "secret-asking")
    if "/artifacts/" in template:
        here["name"] = here["file"]
    return re.sub(r"\{(\w+)\}", lambda found: here[found[1]], template)


async def seen_by_a(tenants: Tenants) -> list[tuple[int, str]]:
    """Return all resources that tenant ``a`` can read."""
    paths = (
        *("/runs", "/runs/secret-run", "/runs/secret-run/trace", "/runs/secret-run/artifacts"),
        *("/runs/secret-asking", "/runs/secret-asking/approvals", "/approvals"),
        *("/graphs", "/graphs/secret-name", "/agents", "/agents/secret-name", "/threads", "/keys"),
        *("/schedules/secret-name", f"/webhooks/deliveries/{DELIVERY}", "/quotas/a"),
        *("/threads/secret-thread", "/threads/secret-thread/messages?tree=true"),
    )
    return [stable_answer(await tenants.ask("a", "GET", path), {}) for path in paths]


@pytest.mark.guarantee(14)
async def test_another_tenants_id_looks_like_an_absent_one(
    tenants: Tenants, database_url: str
) -> None:
    """Every operation gives the same answer for both IDs and changes nothing of tenant ``a``."""
    theirs = await everything_of_a(tenants, database_url)
    absent = {**theirs, "run_id": "absent-run", "name": "absent-name"}
    absent |= {"thread_id": "absent-thread", "message_id": "absent-message", "key_id": "0" * 16}
    absent |= {"tenant": "nobody", "approval_id": "absent-approval", "call_id": "absent-call"}
    absent |= {
        "delivery_id": DELIVERY[:-1] + "b",
        "file": "absent-0.png",
        "server": "absent-server",
    }
    await tenants.ask("a", "GET", "/threads/secret-thread/messages")
    before = await settled(tenants)
    document = (await tenants.client.get("/openapi.json")).json()
    asked = 0

    for template, described in document["paths"].items():
        if "{" not in template:
            continue
        for method in described:
            if method == "put":
                continue  # creates the missing resource, which belongs to tenant b
            if method in ("get", "head"):
                own = await tenants.ask(
                    "a", method.upper(), path_of(template, theirs), accept="application/json"
                )
                assert own.is_success, (template, own.text)  # it is there
            answers = []
            for names in (theirs, absent):
                path = path_of(template, names)
                answer = await tenants.ask("b", method.upper(), path, BODIES.get(template))
                shown = {value: f"<{name}>" for name, value in names.items() if len(value) > 8}
                shown["secret-asking"] = "<run_id>"
                answers.append(stable_answer(answer, shown))
            assert answers[0] == answers[1], (method, template)
            assert answers[0][0] in ((403,) if "{tenant}" in template else (202, 404)), template
            asked += 1

    assert asked > 25
    for path, body in (("/schedules/secret-name", SCHEDULE), ("/quotas/a", {"max_queued": 0})):
        put = await tenants.ask("b", "PUT", path, body)
        assert put.status_code == (403 if "quotas" in path else 201)
    assert await seen_by_a(tenants) == before
    decided = path_of("/runs/{run_id}/approvals/{approval_id}", theirs)
    answer = await tenants.ask("a", "POST", decided, {"decision": "approve"})
    assert answer.status_code == 202  # so b could have decided, had it been b's


async def settled(tenants: Tenants) -> list[tuple[int, str]]:
    """Return the resources that tenant ``a`` sees once all of its streams have ended."""
    listed = (await tenants.ask("a", "GET", "/runs")).json()["runs"]
    for run in listed:
        if run["run_id"] == "secret-asking":
            continue  # its stream does not end
        events = await tenants.ask("a", "GET", f"/runs/{run['run_id']}/events")
        assert "run." in events.text  # the stream ends with the run
    return await seen_by_a(tenants)


async def test_names_in_a_body_are_those_of_the_callers_tenant(
    tenants: Tenants, database_url: str
) -> None:
    """A run, a graph or an agent of another tenant cannot be used, whatever it is used in."""
    await everything_of_a(tenants, database_url)

    def bodies(run: str, name: str) -> tuple[dict[str, Any], ...]:
        step = {"id": "s", "type": "subgraph", "data": {"graph": {"name": name}}}
        return (
            {"from": {"run_id": run}},
            {"kind": "graph", "graph": {"name": name}},
            {"kind": "agent", "agent": {"name": name}, "input": "x"},
            {"kind": "graph", "graph": {"steps": [step], "edges": []}},
        )

    for secret, none in zip(
        bodies("secret-run", "secret-name"), bodies("no-run", "no-name"), strict=True
    ):
        answers = [await tenants.ask("b", "POST", "/runs", body) for body in (secret, none)]
        texts = [stable_answer(answer, {"secret-": "", "no-": ""}) for answer in answers]
        assert texts[0] == texts[1], secret
        assert texts[0][0] in (404, 422), json.dumps(secret)


async def test_ids_and_keys_of_two_tenants_never_collide(tenants: Tenants) -> None:
    """Tenants can choose the same IDs and keys; a cancel request affects only its own tenant."""
    await tenants.ask("b", "DELETE", "/runs/chosen")  # before it exists, for b alone
    body = {"run_id": "chosen", "kind": "graph", "graph": GRAPH}
    other = {"run_id": "chosen", "kind": "case", "input": "What is 1 + 1?"}

    first = await tenants.ask("a", "POST", "/runs", body, prefer="wait=20", idempotency_key="k")
    second = await tenants.ask("c", "POST", "/runs", other, prefer="wait=20", idempotency_key="k")
    cancelled = await tenants.ask("b", "POST", "/runs", body, idempotency_key="k")

    assert (first.json()["kind"], first.json()["status"]) == ("graph", "completed")
    assert (second.json()["kind"], second.json()["status"]) == ("case", "completed")
    assert cancelled.json()["status"] == "cancelled"
