"""A model call through the gateway of an external run, next to the proxy of LiteLLM.

All sides call the same model process, which takes no time. *Direct* calls it without a gateway. The
gateway stores each call in Postgres before it returns the end of the reply; the proxy of LiteLLM
runs without a database.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import httpx

from bench.budget_race import LITELLM as REQUIREMENTS
from bench.endpoints import Endpoint, Measured, Peer, endpoint, measure_endpoints, start_peers
from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import OURS, Effort, Row, Side, interleaved
from bench.load import Request, first_byte
from bench.servers import asking, database, models, postgres_of, service

LITELLM: Final = "LiteLLM"
DIRECT: Final = "direct"
PEERS: Final = {LITELLM: Peer("litellm_proxy", REQUIREMENTS)}
MODEL: Final = "turns-1"
ANSWER: Final = b"this is what the answer looks like"

IN_FLIGHT: Final = 16
CPU: Final = Target(must=0.2, stretch=0.08)
ADDED: Final = Target(must=4, stretch=2.5, unit="ms")
FIRST_BYTE: Final = Target(must=5, stretch=3, unit="ms")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure whole replies, 16 in flight and alone, and the first byte of streamed ones."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        asked = await stack.enter_async_context(models())
        settings = {**asking(asked), "ADMISSION_MAX_API_CALLS": "1000000"}
        ours = await stack.enter_async_context(service(url, settings=settings))
        variables = {"MODELS_URL": asked, "MODEL": MODEL}
        peers = await start_peers(stack, PEERS, url, variables)
        access = await _access(ours)
        places = {
            OURS: endpoint(ours, _call("/gateway/openai/v1", "small", access["key"])),
            **{name: endpoint(each, _call("/v1", "small", "any")) for name, each in peers.items()},
            DIRECT: endpoint(asked, _call("/v1", MODEL, "none")),
        }
        postgres = postgres_of(url)

        async def load(in_flight: int, requests: int) -> Measured:
            return await measure_endpoints(
                places,
                postgres,
                in_flight=in_flight,
                requests=lambda _: requests,
                rounds=effort.choose(8, 3),
            )

        busy = await load(IN_FLIGHT, effort.choose(320, 96))
        alone = await load(1, effort.choose(100, 40))
        first = await interleaved(
            {name: _first_byte(each) for name, each in places.items()}, effort.choose(100, 25)
        )
    return [
        *busy.figures("16 in flight", servers=[_against_peer(busy.servers)]),
        *alone.figures("Alone", latencies=[_added("p50", alone.medians)]),
        Figure(
            title="First byte of a streamed reply, alone",
            unit="ms",
            sides=first,
            checks=[
                Check(what="first byte, p50", value=first[OURS].median, target=FIRST_BYTE),
            ],
        ),
    ]


async def _access(address: str) -> Mapping[str, Any]:
    body = {"kind": "external", "budget": {"max_seconds": 3600}}
    async with httpx.AsyncClient(base_url=address, trust_env=False) as http:
        posted = (await http.post("/runs", json=body)).raise_for_status()
        access: Mapping[str, Any] = posted.json()["access"]
        return access


def _call(base: str, model: str, key: str, *, stream: bool = False) -> Request:
    messages = [{"role": "user", "content": "How much is %d + 1?"}]
    return Request(
        path=f"{base}/chat/completions",
        body=json.dumps({"model": model, "messages": messages, "stream": stream}).encode(),
        headers=f"Authorization: Bearer {key}\r\n",
        holds=ANSWER,
    )


def _first_byte(place: Endpoint) -> Side:
    body = place.request.body.replace(b'"stream": false', b'"stream": true')
    request = Request(path=place.request.path, body=body, headers=place.request.headers)
    return partial(first_byte, place.address, request, begins=b"data: {")


def _against_peer(servers: Mapping[str, Samples]) -> Check:
    return Check(
        what=f"CPU against {LITELLM}", value=ratio(servers[OURS], servers[LITELLM]), target=CPU
    )


def _added(what: str, medians: Mapping[str, Samples]) -> Check:
    """Return the milliseconds that the gateway adds to a call."""
    pairs = zip(medians[OURS].values, medians[DIRECT].values, strict=True)
    added = Samples(tuple(ours - direct for ours, direct in pairs))
    return Check(what=f"added {what}", value=added.median, target=ADDED)


ROW: Final = Row(
    title="Model call through the gateway of a run",
    peers=(REQUIREMENTS[0],),
    measure=measure,
)
