"""Inputs of runs over HTTP: shown by the run, and the beginning in lists, as configured."""

from typing import Any

import httpx
import pytest

from caseworker.core.trace.payloads import PayloadMode, Payloads
from tests.support.api import Api, client_of
from tests.support.threads import AGENT, ThreadClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRAPH = {"steps": [{"id": "chat", "type": "chat_start", "data": {}}], "edges": []}
MAIL = "jane.doe@example.com"


async def accepted(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Post a run twice, and return it as POST and GET show it."""
    answers = [await client.post("/runs", json={"run_id": "r", **body}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 200], answers[0].text
    run: dict[str, Any] = (await client.get("/runs/r")).json()
    assert [(a.json()["input"], a.json()["inputs"]) for a in answers] == [
        (run["input"], run["inputs"])
    ] * 2
    return run


async def listed(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return the only run in the list."""
    (run,) = (await client.get("/runs")).json()["runs"]
    found: dict[str, Any] = run
    return found


@pytest.mark.req("cw/13.input")
async def test_a_case_shows_its_question(client: httpx.AsyncClient) -> None:
    """Personal data in the question is redacted, also in the list."""
    run = await accepted(client, input=f"Mail to {MAIL} the sum of 1 and 2.")

    assert run["input"] == "Mail to [email] the sum of 1 and 2."
    assert run["inputs"] is None
    assert (await listed(client))["input"] == run["input"]


@pytest.mark.req("cw/13.input")
async def test_a_graph_shows_its_default_input_and_the_others_by_handle(
    client: httpx.AsyncClient,
) -> None:
    """The values of secret fields are not shown."""
    inputs = {"topic": "sums", "password": "hunter2", "mail": MAIL}
    run = await accepted(client, kind="graph", graph=GRAPH, input={"order": 7}, inputs=inputs)

    assert run["input"] == {"order": 7}
    assert run["inputs"]["topic"] == "sums"
    assert "hunter2" not in str(run)
    assert MAIL not in str(run)
    assert (await listed(client))["input"] is None


@pytest.mark.req("cw/13.input")
async def test_an_agent_shows_what_it_was_asked(client: httpx.AsyncClient) -> None:
    """The input is shown for runs alone and in threads."""
    run = await accepted(client, kind="agent", agent=AGENT, input="Where is my order?")
    thread = await ThreadClient.begin(client, "talk")
    answered = await thread.post(content="And now?", run_id="second")
    second = (await client.get("/runs/second")).json()
    runs = (await client.get("/runs")).json()["runs"]

    assert (run["input"], run["inputs"]) == ("Where is my order?", None)
    assert second["input"] == answered["run"]["input"] == "And now?"
    assert [run["input"] for run in runs] == ["And now?", "Where is my order?"]


@pytest.mark.parametrize("before", [150, 195, 210, 440, 452])
async def test_a_list_shows_the_beginning_without_any_part_of_a_secret(
    client: httpx.AsyncClient, before: int
) -> None:
    """A key that is cut off by the shortening is still redacted."""
    key = "sk-" + "a1B2c3D4e5" * 5
    text = ("word " * 200)[: before - 1] + " " + key + " end" * 200
    await accepted(client, input=text)
    beginning = (await listed(client))["input"]

    assert len(beginning) <= 200
    assert beginning[:140] == text[:140]
    assert "sk-" not in beginning
    assert "a1B2c" not in beginning


async def test_inputs_are_shown_as_configured(api: Api) -> None:
    """Inputs are hidden with ``none`` and unredacted with ``full``."""
    shown: dict[str, Any] = {}
    modes: tuple[PayloadMode, ...] = ("none", "full")
    for mode in modes:
        async with client_of(api.app(Payloads(mode))) as client:
            if not shown:
                await accepted(
                    client, kind="graph", graph=GRAPH, input=f"To {MAIL}", inputs={"a": MAIL}
                )
            run = (await client.get("/runs/r")).json()
            shown[mode] = run["input"], run["inputs"], (await listed(client))["input"]

    assert shown["none"] == (None, None, None)
    assert shown["full"] == (f"To {MAIL}", {"a": MAIL}, f"To {MAIL}")
