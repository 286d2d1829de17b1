"""A streamed agent run: the POST answers with the events, next to Agno and to the plain way.

The sides are those of ``agent_run``. The model process streams its reply in seventeen chunks, which
all arrive at once.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from bench.endpoints import endpoint, measure_endpoints, start_peers
from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, interleaved
from bench.load import Request, first_byte, put_load
from bench.rows.agent_run import PEERS, PLAIN, registered, requests_for
from bench.rows.one_step_graph import AGENTOS
from bench.servers import asking, database, models, postgres_of, service

MODEL: Final = "turns-1"
SIDES: Final = {name: PEERS[name] for name in (PLAIN, AGENTOS)}
TEXT: Final = b'"The '
"""The first chunk of the reply, in the event of any side."""

CPU: Final = Target(must=0.5, stretch=0.3)
FIRST_TEXT: Final = Target(must=10, stretch=6, unit="ms")


def _requests() -> dict[str, Request]:
    whole = requests_for(MODEL)
    agno = whole[AGENTOS].body.replace(b"stream=false", b"stream=true")
    streamed = {
        OURS: replace(whole[OURS], headers="Accept: text/event-stream\r\n"),
        PLAIN: replace(whole[PLAIN], path=f"/agents/{MODEL}/stream"),
        AGENTOS: replace(whole[AGENTOS], body=agno),
    }
    return {name: replace(each, holds=b"like.") for name, each in streamed.items()}


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure 16 runs in flight, and the first text of a run alone."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        asked = await stack.enter_async_context(models())
        ours = await stack.enter_async_context(service(url, settings=asking(asked)))
        peers = await start_peers(stack, SIDES, url, {"MODELS_URL": asked})
        await put_load(ours, registered(MODEL, stream=True), connections=1, requests=1)
        addresses, requests = {OURS: ours, **peers}, _requests()
        busy = await measure_endpoints(
            {name: endpoint(each, requests[name]) for name, each in addresses.items()},
            postgres_of(url),
            in_flight=16,
            requests=lambda _: effort.choose(96, 48),
            rounds=effort.choose(6, 3),
        )
        sides = {
            name: partial(first_byte, each, requests[name], begins=TEXT)
            for name, each in addresses.items()
        }
        first = await interleaved(sides, effort.choose(50, 25))
    cpu = ratio(busy.servers[OURS], busy.servers[PLAIN])
    text = Check(what="first text, p50", value=first[OURS].median, target=FIRST_TEXT)
    return [
        *busy.figures(
            "16 in flight", servers=[Check(what="CPU against plain", value=cpu, target=CPU)]
        ),
        Figure(title="First text, alone", unit="ms", sides=first, checks=[text]),
    ]


ROW: Final = Row(
    title="Streamed agent run, events on the POST",
    peers=tuple(each.requirements[0] for each in SIDES.values()),
    measure=measure,
)
