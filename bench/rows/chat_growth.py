"""A long chat: the time of a turn and the bytes that it stores, as the chat grows.

The first and the last turns of one chat are compared, and a turn with an agent run outside of a
thread. The times include the model, which answers at once.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import httpx
import psycopg

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.servers import asking, database, models, service

LETTERS: Final = 1_000
"""Letters of a message, and of an answer."""
COMPARED: Final = 25
"""Number of turns whose median is compared."""
MODEL: Final = f"letters-{LETTERS}"
AGENT: Final = {
    "name": "helper",
    "prompt": {"system": "Help."},
    "model": {"name": MODEL, "stream": False},
}
WAITS: Final = {"Prefer": "wait=60"}
TABLES: Final = ("runs", "calls", "events", "messages", "threads")

AGAINST_FIRST: Final = Target(must=1.5, stretch=1.2)
BEYOND_A_RUN: Final = Target(must=2, stretch=1, unit="ms")
AGAINST_TEXT: Final = Target(must=3, stretch=2)

STORED: Final = """
SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {table} t
"""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Have a chat, then run the agent without one, and count the bytes of the chat."""
    turns = effort.choose(500, 100)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        settings = asking(await stack.enter_async_context(models()))
        address = await stack.enter_async_context(service(url, settings=settings))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=120))
        for number in range(COMPARED):  # warm up
            await _run(http, number)
        before = await asyncio.to_thread(_stored_bytes, url)
        await _post(http, "/threads", {"thread_id": "chat", "agent": AGENT})
        spent = [await _turn(http, number) for number in range(turns)]
        text_bytes = 2 * LETTERS * turns
        stored = await asyncio.to_thread(_stored_bytes, url) - before
        alone = [await _run(http, number) for number in range(COMPARED)]
    first, last = Samples(tuple(spent[:COMPARED])), Samples(tuple(spent[-COMPARED:]))
    runs, ratio = Samples(tuple(alone)), stored / text_bytes
    growth, more = last.median / first.median, first.median - runs.median
    return [
        Figure(
            title=f"A turn of a chat of {turns} turns",
            unit="ms",
            sides={"first turns": first, "last turns": last, "a run without a thread": runs},
            checks=[
                Check(what="last turns against first", value=growth, target=AGAINST_FIRST),
                Check(what="first turns beyond a run", value=more, target=BEYOND_A_RUN),
            ],
        ),
        Figure(
            title="Bytes stored for a byte of text",
            unit="",
            sides={OURS: Samples((ratio,))},
            checks=[Check(what="bytes against text", value=ratio, target=AGAINST_TEXT)],
        ),
    ]


async def _turn(http: httpx.AsyncClient, number: int) -> float:
    return await _timed(http, "/threads/chat/messages", {"content": _text(number)})


async def _run(http: httpx.AsyncClient, number: int) -> float:
    return await _timed(http, "/runs", {"kind": "agent", "agent": AGENT, "input": _text(number)})


async def _timed(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> float:
    began = time.perf_counter()
    answer = await _post(http, path, body)
    spent = time.perf_counter() - began
    run = answer.get("run", answer)
    assert run["status"] == "completed", json.dumps(answer)[:2000]
    return 1e3 * spent


async def _post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(path, json=body, headers=WAITS)
    assert response.is_success, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _text(number: int) -> str:
    """Return a text of words, another one for each number."""
    chance, words, length = random.Random(number), [], 0
    while length < LETTERS:
        words.append("".join(chance.choices("etaoinshrdlucmfwypvbgk", k=chance.randint(2, 9))))
        length += len(words[-1]) + 1
    return " ".join(words)[:LETTERS]


def _stored_bytes(url: str) -> int:
    with psycopg.connect(url) as connection:
        return sum(
            (connection.execute(STORED.format(table=table)).fetchone() or (0,))[0]
            for table in TABLES
        )


ROW: Final = Row(title="A long chat", peers=(), measure=measure)
