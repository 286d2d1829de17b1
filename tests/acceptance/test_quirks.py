"""Odd replies reported from real endpoints, and histories that they refuse, over HTTP."""

import json
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.mcp_servers import ROOT
from tests.support.odd_replies import (
    CALCULATOR,
    USAGE,
    Json,
    anthropic,
    beside,
    calling,
    chat_completion,
    chunk,
    document,
    so_far,
    stream,
    stream_with_usage,
    use,
)
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.threads import ThreadClient

SIX, FIVE = '{"expression":"6*7"}', '{"expression":"2+3"}'
PRICES = {"IN": "1", "OUT": "10", "CACHED": "0.1"}


@pytest.fixture(scope="module")
def service_settings(
    running_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return the settings of a service whose small and big models use different protocols."""
    log = tmp_path_factory.mktemp("mcp") / "log"
    command = {"command": sys.executable, "args": ["-m", "tests.support.hostile_mcp", str(log)]}
    settings = model_settings(running_provider.openai_url) | {
        "TOOLS_MCP_SERVERS": json.dumps({"odd": {**command, "env": ["PYTHONPATH"]}}),
        "PYTHONPATH": str(ROOT),
        "MODELS_BIG_PROVIDER": "anthropic",
        "MODELS_BIG_BASE_URL": running_provider.url,
        "MODELS_BIG_API_KEY": "fake",
    }
    for tier in ("SMALL", "BIG"):
        for kind, price in PRICES.items():
            settings[f"MODELS_{tier}_PRICE_PER_MILLION_{kind}_USD"] = price
    return settings


@dataclass(frozen=True, slots=True)
class Seen:
    """A finished run, the requests to its model and its completed tool calls."""

    run: Json
    requests: list[Json]
    ended: list[str]
    """The IDs of the tool calls in ``tool_call_end`` events."""

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Return the calls in the last request, by ID and name."""
        return [
            (call["id"], call["function"]["name"])
            for message in self.requests[-1]["messages"]
            for call in message.get("tool_calls") or ()
        ]

    @property
    def results(self) -> dict[str, str]:
        """Return the results in the last request, by the ID of their call."""
        messages = self.requests[-1]["messages"]
        return {
            each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"
        }

    @property
    def output(self) -> str:
        """Return the answer of the agent."""
        assert self.run["status"] == "completed", self.run["stop"]
        return str(self.run["result"]["output"])

    @property
    def reason(self) -> str:
        """Return why the run has stopped."""
        return str(self.run["stop"]["reason"])


Check = Callable[[Seen], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Replies of a model and the check that the run must pass."""

    replies: Sequence[Step]
    right: Check
    streamed: bool = True
    tier: str = "small"
    tools: tuple[Any, ...] = ("calculator",)


DONE = Step(text="done")
ASKED_ONCE: Check = lambda seen: len(seen.requests) == 1  # noqa: E731


def _both_made(seen: Seen) -> bool:
    ids = [call_id for call_id, _ in seen.calls]
    found = [json.loads(seen.results[each])["value"] for each in ids]
    return len(set(ids)) == 2 and found == ["42", "5"] and len(set(seen.ended)) == 2


def _failed(code: int, *, most: int) -> Check:
    return lambda seen: f"Upstream: {code}" in seen.reason and len(seen.requests) <= most


def _charged(tokens: int, cost: float) -> Check:
    return lambda seen: (
        (seen.run["usage"]["tokens"], seen.run["usage"]["cost_usd"])
        == (
            tokens,
            pytest.approx(cost),
        )
    )


def _withheld(seen: Seen) -> bool:
    result = seen.run["result"]
    return (result["success"], result["incomplete"]) == (False, "content_filter")


def _offered(seen: Seen) -> list[str]:
    return [each["function"]["name"] for each in seen.requests[0]["tools"]]


QUOTA = {"message": "You exceeded your current quota", "code": "insufficient_quota"}
CASES: Mapping[str, Case] = {
    "one id for parallel calls": Case(
        replies=[calling((0, "x", CALCULATOR, SIX), (1, "x", CALCULATOR, FIVE)), DONE],
        right=_both_made,
    ),
    "the id of an earlier turn, in a whole reply": Case(
        replies=[anthropic(use("t", SIX)), anthropic(use("t", FIVE)), anthropic(text="done")],
        right=lambda seen: seen.output == "done" and len(seen.requests) == 3,
        streamed=False,
        tier="big",
    ),
    "index 0 for all calls": Case(
        replies=[calling((0, "a", CALCULATOR, SIX), (0, "b", CALCULATOR, FIVE)), DONE],
        right=lambda seen: _both_made(seen) and [each for each, _ in seen.calls] == ["a", "b"],
    ),
    "the name in every chunk": Case(
        replies=[
            calling(
                (0, "a", CALCULATOR, ""),
                (0, "a", CALCULATOR, SIX[:9]),
                (0, "a", CALCULATOR, SIX[9:]),
            ),
            DONE,
        ],
        right=lambda seen: seen.calls == [("a", CALCULATOR)] and '"42"' in seen.results["a"],
    ),
    "a call sent twice": Case(
        replies=[calling((0, "a", CALCULATOR, SIX), (0, "a", CALCULATOR, SIX)), DONE],
        right=lambda seen: seen.calls == [("a", CALCULATOR)] and seen.ended == ["a"],
    ),
    "a whole reply without ids": Case(
        replies=[
            chat_completion(
                {"tool_calls": [{"function": {"name": CALCULATOR, "arguments": SIX}}]}, "tool_calls"
            ),
            DONE,
        ],
        right=lambda seen: seen.output == "done" and list(seen.results) == [seen.calls[0][0]],
        streamed=False,
    ),
    "arguments as an object": Case(
        replies=[
            chat_completion(
                {
                    "tool_calls": [
                        {"id": "a", "function": {"name": CALCULATOR, "arguments": json.loads(SIX)}}
                    ]
                },
                "tool_calls",
            ),
            DONE,
        ],
        right=lambda seen: '"42"' in seen.results["a"],
        streamed=False,
    ),
    "a 401 under status 200": Case(
        replies=[document({"error": {"message": "Upstream: 401", "code": 401}})],
        right=_failed(401, most=1),
    ),
    "a 429 under status 200": Case(
        replies=[document({"error": {"message": "Upstream: 429", "code": 429}})],
        right=_failed(429, most=3),
        streamed=False,
    ),
    "an event named error": Case(
        replies=[
            stream(
                chunk(content="A"),
                'event: error\ndata: {"message":"Upstream: 502","code":502}\n\n',
                done=False,
            )
        ],
        right=_failed(502, most=3),
    ),
    "a line named error": Case(
        replies=[
            stream(
                chunk(content="A"), 'error: {"code":500,"message":"Upstream: 500"}\n\n', done=False
            )
        ],
        right=_failed(500, most=3),
    ),
    "counts so far in every chunk": Case(
        replies=[
            stream(
                *(chunk(usage=so_far(n), content="a") for n in (10, 30)),
                chunk("stop", so_far(50)),
                {"choices": [], "usage": so_far(50)},
            )
        ],
        right=_charged(150, 0.0006),
    ),
    "reasoning beside the output": Case(
        replies=[stream_with_usage(beside(310, 200))], right=_charged(310, 0.0022)
    ),
    "reasoning within the output": Case(
        replies=[stream_with_usage(beside(110, 5))], right=_charged(110, 0.0002)
    ),
    "think tags with line ends": Case(
        replies=[
            stream(
                *(chunk(content=each) for each in ("<think>\n", "hm\n", "</think>\n", "It is 42.")),
                chunk("stop"),
            )
        ],
        right=lambda seen: seen.output == "It is 42.",
    ),
    "a tool name that may not be sent back": Case(
        replies=[calling((0, "a", "assistant<|channel|>analysis", SIX)), DONE],
        right=lambda seen: seen.output == "done" and "unknown_tool" in seen.results["a"],
    ),
    "a call without a name": Case(
        replies=[calling((0, "a", None, SIX)), DONE],
        right=lambda seen: seen.output == "done" and "unknown_tool" in seen.results["a"],
    ),
    "blank text beside a call": Case(
        replies=[anthropic(use("t", SIX), text="\n\n"), anthropic(text="done")],
        right=lambda seen: seen.output == "done",
        streamed=False,
        tier="big",
    ),
    "another finish reason, streamed": Case(
        replies=[stream(chunk(content="It is 42."), chunk("end_turn"))],
        right=lambda seen: seen.output == "It is 42." and ASKED_ONCE(seen),
    ),
    "another finish reason, whole": Case(
        replies=[chat_completion({"content": "It is 42."}, "end_turn")],
        right=lambda seen: seen.output == "It is 42." and ASKED_ONCE(seen),
        streamed=False,
    ),
    "a quota that no retry mends": Case(
        replies=[document({"error": QUOTA}, 429)],
        right=lambda seen: "quota is used up" in seen.reason and ASKED_ONCE(seen),
    ),
    "an answer that a content filter blocked, streamed": Case(
        replies=[stream(chunk(content=""), chunk("content_filter", USAGE))],
        right=_withheld,
        tools=(),
    ),
    "an answer that a content filter blocked, whole": Case(
        replies=[chat_completion({"content": None}, "content_filter")],
        right=_withheld,
        streamed=False,
        tools=(),
    ),
    "a tool whose schema has alternatives at its root": Case(
        replies=[calling((0, "a", "odd_echo", '{"text":"hello"}')), DONE],
        right=lambda seen: (
            seen.output == "done"
            and "hello" in seen.results["a"]
            and {"odd_echo", "odd_either"} <= set(_offered(seen))
        ),
        tools=({"mcp": "odd", "allow": ["echo", "either"]},),
    ),
    "empty data lines": Case(
        replies=[
            stream("data: \n\n", chunk(content="It is "), "data:\n\n", chunk("stop", content="42."))
        ],
        right=lambda seen: seen.output == "It is 42." and ASKED_ONCE(seen),
    ),
}


def _agent(case: Case) -> Json:
    return {
        "name": "a",
        "prompt": {"system": "Help."},
        "tools": list(case.tools),
        "model": {"tier": case.tier, "stream": case.streamed},
        "limits": {"max_turns": 6},
    }


@pytest.mark.req("cw/13.wire")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_an_odd_reply_is_read_as_it_was_meant(
    client: JsonClient, provider: FakeProvider, case: Case
) -> None:
    """The run does what the model intended, or reports the error of the endpoint."""
    marker = f"quirk-{uuid.uuid4()}"
    await provider.script(marker, list(case.replies), repeat_last=True)
    body = {"kind": "agent", "agent": _agent(case), "input": f"6 times 7? {marker}"}

    run = await client.post_run(body)
    run = await finished(client, run["run_id"])

    ended = [
        event["data"]["tool_call_id"]
        async for event in client.events(run["run_id"])
        if event["type"] == "tool_call_end"
    ]
    arrivals = await provider.arrivals(marker, bodies=True)
    seen = Seen(run, [each.body for each in arrivals if each.body is not None], ended)
    assert case.right(seen), (run["result"], run["stop"], seen.requests[-1]["messages"], ended)


@pytest.mark.req("cw/13.wire")
async def test_a_thread_goes_on_with_another_provider(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """Call IDs that the second provider rejects are replaced."""
    marker = f"quirk-{uuid.uuid4()}"
    odd = calling((0, "functions.calculator:0", CALCULATOR, SIX))
    await provider.script(marker, [odd, Step(text="It is 42.")], model="fake-small")
    await provider.script(marker, [anthropic(text="As I said, 42.")], model="fake-big")
    small = Case(replies=(), right=ASKED_ONCE)
    big = Case(replies=(), right=ASKED_ONCE, tier="big", streamed=False)

    async with httpx.AsyncClient(base_url=service.url, timeout=150) as http:
        thread = await ThreadClient.begin(http, f"t-{uuid.uuid4()}", agent=_agent(small))
        await thread.answer(content=f"6 times 7? {marker}")
        turn = await thread.answer(content="And again?", agent=_agent(big))
        *_, last = await thread.contents()

    assert turn["run"]["status"] == "completed", turn["run"]["stop"]
    assert last == "As I said, 42."


async def test_a_repaired_reply_and_a_failed_one_are_told_of_in_the_trace(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The call lists its repair, and the failed call keeps the beginning of the reply."""
    marker = f"quirk-{uuid.uuid4()}"
    refusal = document({"error": {"message": "No such thing", "code": 400}}, 400)
    await provider.script(marker, [calling((0, None, CALCULATOR, SIX)), refusal])
    case = Case(replies=(), right=ASKED_ONCE)
    body = {"kind": "agent", "agent": _agent(case), "input": f"6 times 7? {marker}"}

    run = await client.post_run(body)
    run = await finished(client, run["run_id"])

    nodes = (await client.trace(run["run_id"]))["snapshot"]["nodes"].values()
    repaired, failed = (each for each in nodes if each["kind"] == "llm")
    assert repaired["metadata"]["repairs"] == ["call_id_missing"]
    async with httpx.AsyncClient(base_url=service.url, timeout=150) as http:
        shown = (await http.get(f"/runs/{run['run_id']}/calls/{failed['node_id']}")).json()
        counted = (await http.get("/metrics")).text
    assert "No such thing" in shown["reply"]["raw_reply"]
    assert 'caseworker_model_reply_repairs_total{kind="call_id_missing"}' in counted
