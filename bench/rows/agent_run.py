"""An agent run over HTTP, from POST to the answer, next to peers and to the plain way.

*Plain* is pydantic-ai behind FastAPI. All sides are one process, ask the same model process, which
takes no time, and offer it the same tool. All but plain keep their runs in the same Postgres.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlencode

import psutil

from bench.endpoints import Endpoint, Measured, Peer, endpoint, measure_endpoints, start_peers
from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import OURS, Effort, Row
from bench.load import Request, put_load
from bench.rows.one_step_graph import AEGRA, AGENTOS, SERVING
from bench.servers import asking, database, models, postgres_of, service

PLAIN: Final = "plain"
DBOS: Final = "DBOS + pydantic-ai"
PEERS: Final = {
    PLAIN: Peer("plain_agents", ("pydantic-ai-slim[openai]==2.68.0", "fastapi==0.165.0", *SERVING)),
    AGENTOS: Peer("agentos_agents", ("agno[os,postgres]==3.1.10", "openai==3.57.0", *SERVING)),
    DBOS: Peer(
        "dbos_agents",
        ("dbos==3.4.0", "pydantic-ai-slim[openai,dbos]==2.68.0", "fastapi==0.165.0", *SERVING),
    ),
    AEGRA: Peer(
        "aegra_agents",
        ("aegra-api==0.11.0", "langchain==1.5.2", "langchain-openai==1.7.4", *SERVING),
        python="3.12",
    ),
}

QUESTION: Final = "How much is %d + 1?"
ANSWER: Final = b"this is what the answer looks like"

CPU: Final = Target(must=0.55, stretch=0.3)
CPU_THREE_CALLS: Final = Target(must=0.4, stretch=0.25)
POSTGRES: Final = Target(must=0.9, stretch=0.6, unit="ms")
RATE: Final = Target(must=5, stretch=8, at_least=True)
ALONE: Final = Target(must=1.3, stretch=1.0)


def registered(model: str, *, stream: bool = False) -> Request:
    """Return the request that registers an agent, which has the name of its model."""
    agent = {
        "name": model,
        "prompt": {"system": "Compute with the tool."},
        "tools": ["calculator"],
        "model": {"name": model, "stream": stream},
    }
    return Request(path="/agents", body=json.dumps({"agent": agent}).encode(), expect=(201,))


def requests_for(model: str) -> dict[str, Request]:
    """Return the request that runs an agent once, for each side."""
    budget = {"max_llm_calls_small": 10, "max_tool_calls": 10, "max_tokens": 100_000}
    ours = {"kind": "agent", "agent": {"name": model}, "input": QUESTION, "budget": budget}
    plain = _json(f"/agents/{model}/runs", {"input": QUESTION})
    messages = [{"role": "user", "content": QUESTION}]
    return {
        OURS: _json("/runs", ours, headers="Prefer: wait=20\r\n"),
        PLAIN: plain,
        DBOS: plain,
        AGENTOS: Request(
            path=f"/agents/{model}/runs",
            body=urlencode({"message": QUESTION, "stream": "false"}).replace("%25d", "%d").encode(),
            content_type="application/x-www-form-urlencoded",
            holds=ANSWER,
        ),
        AEGRA: _json(
            "/runs/wait",
            {"assistant_id": model, "input": {"messages": messages}, "on_completion": "keep"},
        ),
    }


def _json(path: str, document: Mapping[str, Any], headers: str = "") -> Request:
    return Request(path=path, body=json.dumps(document).encode(), headers=headers, holds=ANSWER)


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure one model call, alone and 16 in flight; three calls and two tools, 16 in flight."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        asked = await stack.enter_async_context(models())
        ours = await stack.enter_async_context(service(url, settings=asking(asked)))
        peers = await start_peers(stack, PEERS, url, {"MODELS_URL": asked})
        addresses, postgres = {OURS: ours, **peers}, postgres_of(url)
        figures: list[Figure] = []
        for model, counts in (("turns-1", (1, 16)), ("turns-3", (16,))):
            await put_load(ours, registered(model), connections=1, requests=1)
            requests = requests_for(model)
            sides = {name: endpoint(each, requests[name]) for name, each in addresses.items()}
            for in_flight in counts:
                figures += await _figures(sides, postgres, model, in_flight, effort)
    return figures


async def _figures(
    sides: Mapping[str, Endpoint],
    postgres: psutil.Process,
    model: str,
    in_flight: int,
    effort: Effort,
) -> list[Figure]:
    count = effort.choose(96, 48) if in_flight > 1 else effort.choose(48, 24)
    measured = await measure_endpoints(
        sides,
        postgres,
        in_flight=in_flight,
        requests=lambda _: count,
        rounds=effort.choose(6, 3),
    )
    if in_flight == 1:
        p50 = Check(what="p50 against plain", value=_against_plain(measured.medians), target=ALONE)
        return measured.figures("One call, alone", latencies=[p50])
    cpu = _against_plain(measured.servers)
    if model == "turns-3":
        check = Check(what="CPU against plain", value=cpu, target=CPU_THREE_CALLS)
        return measured.figures("Three calls, two tools, 16 in flight", servers=[check])
    store = Check(what="CPU of Postgres", value=measured.stores[OURS].median, target=POSTGRES)
    return measured.figures(
        "One call, 16 in flight",
        rates=[_rate(measured)],
        servers=[Check(what="CPU against plain", value=cpu, target=CPU)],
        stores=[store],
    )


def _against_plain(samples: Mapping[str, Samples]) -> float:
    return ratio(samples[OURS], samples[PLAIN])


def _rate(measured: Measured) -> Check:
    rates = measured.rates
    best = max(rates.keys() - {OURS, PLAIN}, key=lambda name: rates[name].median)
    return Check(what=f"rate against {best}", value=ratio(rates[OURS], rates[best]), target=RATE)


ROW: Final = Row(
    title="Agent run, POST to the answer",
    peers=tuple(each.requirements[0] for each in PEERS.values()),
    measure=measure,
)
