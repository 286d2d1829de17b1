"""Odd replies that were reported of real endpoints, and histories that they refuse, over HTTP."""

import json
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.mcp_servers import ROOT
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.threads import ThreadClient

Json = dict[str, Any]
SIX, FIVE = '{"expression":"6*7"}', '{"expression":"2+3"}'
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
PRICES = {"IN": "1", "OUT": "10", "CACHED": "0.1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str,
    running_provider: FakeProvider,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ServiceProcess]:
    """A service whose small model speaks one dialect and whose big model the other."""
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
    async with ServiceProcess(module_database_url, settings=settings) as running:
        yield running


def _stream(*events: Any, done: bool = True) -> Step:
    """A stream of Chat Completions; an event is a document, or text as it is sent."""
    texts = [each if isinstance(each, str) else f"data: {json.dumps(each)}\n\n" for each in events]
    body = "".join((*texts, "data: [DONE]\n\n" if done else ""))
    return Step(raw_body=body, headers={"content-type": "text/event-stream"})


def _chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "c", "model": "m", "choices": [choice]}
    return chunk if usage is None else {**chunk, "usage": usage}


def _calling(*pieces: Sequence[Any]) -> Step:
    """A stream that asks for calls; a piece is an index, an id, a name and arguments."""
    chunks = [
        _chunk(
            tool_calls=[{"index": at, "id": call_id, "function": {"name": name, "arguments": said}}]
        )
        for at, call_id, name, said in pieces
    ]
    return _stream(*chunks, _chunk("tool_calls", USAGE))


def _whole(message: Json, finish: str = "stop") -> Step:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return Step(raw_body=json.dumps({"id": "c", "choices": [choice], "usage": USAGE}))


def _document(document: Any, status: int = 200) -> Step:
    return Step(raw_body=json.dumps(document), status=status)


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a run, and what its model was asked."""

    run: Json
    requests: list[Json]
    ended: list[str]
    """The ids of the calls of tools that events told of."""

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The calls in the last request, by id and name."""
        return [
            (call["id"], call["function"]["name"])
            for message in self.requests[-1]["messages"]
            for call in message.get("tool_calls") or ()
        ]

    @property
    def results(self) -> dict[str, str]:
        """The results in the last request, by the id of their call."""
        messages = self.requests[-1]["messages"]
        return {
            each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"
        }

    @property
    def output(self) -> str:
        """The answer of the agent."""
        assert self.run["status"] == "completed", self.run["stop"]
        return str(self.run["result"]["output"])

    @property
    def reason(self) -> str:
        """Why the run has stopped."""
        return str(self.run["stop"]["reason"])


Check = Callable[[Seen], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a model replies, and what is right then."""

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


def _anthropic(*calls: Json, text: str = "") -> Step:
    """A message of Anthropic, whole."""
    blocks = [{"type": "text", "text": text}] if text else []
    content = [*blocks, *({"type": "tool_use", **call} for call in calls)]
    reason = "tool_use" if calls else "end_turn"
    usage = {"input_tokens": 100, "output_tokens": 10}
    return _document({"type": "message", "content": content, "stop_reason": reason, "usage": usage})


def _use(call_id: str, arguments: str) -> Json:
    return {"id": call_id, "name": "calculator", "input": json.loads(arguments)}


def _said(usage: Any) -> Step:
    return _stream(_chunk(content="a"), _chunk("stop", usage))


def _beside(total: int, reasoning: int) -> Json:
    details = {"reasoning_tokens": reasoning}
    return {**USAGE, "total_tokens": total, "completion_tokens_details": details}


def _so_far(tokens: int) -> Json:
    return {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}


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
CALCULATOR = "calculator"
CASES: Mapping[str, Case] = {
    "one id for parallel calls": Case(
        replies=[_calling((0, "x", CALCULATOR, SIX), (1, "x", CALCULATOR, FIVE)), DONE],
        right=_both_made,
    ),
    "the id of an earlier turn, in a whole reply": Case(
        replies=[_anthropic(_use("t", SIX)), _anthropic(_use("t", FIVE)), _anthropic(text="done")],
        right=lambda seen: seen.output == "done" and len(seen.requests) == 3,
        streamed=False,
        tier="big",
    ),
    "index 0 for all calls": Case(
        replies=[_calling((0, "a", CALCULATOR, SIX), (0, "b", CALCULATOR, FIVE)), DONE],
        right=lambda seen: _both_made(seen) and [each for each, _ in seen.calls] == ["a", "b"],
    ),
    "the name in every chunk": Case(
        replies=[
            _calling(
                (0, "a", CALCULATOR, ""),
                (0, "a", CALCULATOR, SIX[:9]),
                (0, "a", CALCULATOR, SIX[9:]),
            ),
            DONE,
        ],
        right=lambda seen: seen.calls == [("a", CALCULATOR)] and '"42"' in seen.results["a"],
    ),
    "a call sent twice": Case(
        replies=[_calling((0, "a", CALCULATOR, SIX), (0, "a", CALCULATOR, SIX)), DONE],
        right=lambda seen: seen.calls == [("a", CALCULATOR)] and seen.ended == ["a"],
    ),
    "a whole reply without ids": Case(
        replies=[
            _whole(
                {"tool_calls": [{"function": {"name": CALCULATOR, "arguments": SIX}}]}, "tool_calls"
            ),
            DONE,
        ],
        right=lambda seen: seen.output == "done" and list(seen.results) == [seen.calls[0][0]],
        streamed=False,
    ),
    "arguments as an object": Case(
        replies=[
            _whole(
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
        replies=[_document({"error": {"message": "Upstream: 401", "code": 401}})],
        right=_failed(401, most=1),
    ),
    "a 429 under status 200": Case(
        replies=[_document({"error": {"message": "Upstream: 429", "code": 429}})],
        right=_failed(429, most=3),
        streamed=False,
    ),
    "an event named error": Case(
        replies=[
            _stream(
                _chunk(content="A"),
                'event: error\ndata: {"message":"Upstream: 502","code":502}\n\n',
                done=False,
            )
        ],
        right=_failed(502, most=3),
    ),
    "a line named error": Case(
        replies=[
            _stream(
                _chunk(content="A"), 'error: {"code":500,"message":"Upstream: 500"}\n\n', done=False
            )
        ],
        right=_failed(500, most=3),
    ),
    "counts so far in every chunk": Case(
        replies=[
            _stream(
                *(_chunk(usage=_so_far(n), content="a") for n in (10, 30)),
                _chunk("stop", _so_far(50)),
                {"choices": [], "usage": _so_far(50)},
            )
        ],
        right=_charged(150, 0.0006),
    ),
    "reasoning beside the output": Case(
        replies=[_said(_beside(310, 200))], right=_charged(310, 0.0022)
    ),
    "reasoning within the output": Case(
        replies=[_said(_beside(110, 5))], right=_charged(110, 0.0002)
    ),
    "think tags with line ends": Case(
        replies=[
            _stream(
                *(
                    _chunk(content=each)
                    for each in ("<think>\n", "hm\n", "</think>\n", "It is 42.")
                ),
                _chunk("stop"),
            )
        ],
        right=lambda seen: seen.output == "It is 42.",
    ),
    "a tool name that may not be sent back": Case(
        replies=[_calling((0, "a", "assistant<|channel|>analysis", SIX)), DONE],
        right=lambda seen: seen.output == "done" and "unknown_tool" in seen.results["a"],
    ),
    "a call without a name": Case(
        replies=[_calling((0, "a", None, SIX)), DONE],
        right=lambda seen: seen.output == "done" and "unknown_tool" in seen.results["a"],
    ),
    "blank text beside a call": Case(
        replies=[_anthropic(_use("t", SIX), text="\n\n"), _anthropic(text="done")],
        right=lambda seen: seen.output == "done",
        streamed=False,
        tier="big",
    ),
    "another finish reason, streamed": Case(
        replies=[_stream(_chunk(content="It is 42."), _chunk("end_turn"))],
        right=lambda seen: seen.output == "It is 42." and ASKED_ONCE(seen),
    ),
    "another finish reason, whole": Case(
        replies=[_whole({"content": "It is 42."}, "end_turn")],
        right=lambda seen: seen.output == "It is 42." and ASKED_ONCE(seen),
        streamed=False,
    ),
    "a quota that no retry mends": Case(
        replies=[_document({"error": QUOTA}, 429)],
        right=lambda seen: "quota is used up" in seen.reason and ASKED_ONCE(seen),
    ),
    "an answer that a content filter blocked, streamed": Case(
        replies=[_stream(_chunk(content=""), _chunk("content_filter", USAGE))],
        right=_withheld,
        tools=(),
    ),
    "an answer that a content filter blocked, whole": Case(
        replies=[_whole({"content": None}, "content_filter")],
        right=_withheld,
        streamed=False,
        tools=(),
    ),
    "a tool whose schema has alternatives at its root": Case(
        replies=[_calling((0, "a", "odd_echo", '{"text":"hello"}')), DONE],
        right=lambda seen: (
            seen.output == "done"
            and "hello" in seen.results["a"]
            and {"odd_echo", "odd_either"} <= set(_offered(seen))
        ),
        tools=({"mcp": "odd", "allow": ["echo", "either"]},),
    ),
    "empty data lines": Case(
        replies=[
            _stream(
                "data: \n\n", _chunk(content="It is "), "data:\n\n", _chunk("stop", content="42.")
            )
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
    """The run does what the model wanted, or says what the endpoint said."""
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
    """Ids that the first endpoint gave and the second does not take are sent as others."""
    marker = f"quirk-{uuid.uuid4()}"
    odd = _calling((0, "functions.calculator:0", CALCULATOR, SIX))
    await provider.script(marker, [odd, Step(text="It is 42.")], model="fake-small")
    await provider.script(marker, [_anthropic(text="As I said, 42.")], model="fake-big")
    small = Case(replies=(), right=ASKED_ONCE)
    big = Case(replies=(), right=ASKED_ONCE, tier="big", streamed=False)

    async with httpx.AsyncClient(base_url=service.url, timeout=150) as http:
        thread = await ThreadClient.begin(http, f"t-{uuid.uuid4()}", agent=_agent(small))
        await thread.answer(content=f"6 times 7? {marker}")
        turn = await thread.answer(content="And again?", agent=_agent(big))
        *_, last = await thread.said()

    assert turn["run"]["status"] == "completed", turn["run"]["stop"]
    assert last == "As I said, 42."


async def test_a_repaired_reply_and_a_failed_one_are_told_of_in_the_trace(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The call names the repair; the failed one has the beginning of what came."""
    marker = f"quirk-{uuid.uuid4()}"
    refusal = _document({"error": {"message": "No such thing", "code": 400}}, 400)
    await provider.script(marker, [_calling((0, None, CALCULATOR, SIX)), refusal])
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
