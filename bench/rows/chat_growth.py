"""A long chat: the time of a turn and the bytes that it stores, as the chat grows.

The first and the last turns of one chat are compared, beyond the time of a bare request to the
model with the same messages. Short chats are compared with runs of the same agent outside of a
thread, in turn.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import cache
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
    """Have a chat, then short chats next to runs of the agent, and count the bytes of the chat."""
    turns = effort.choose(500, 100)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        settings = asking(await stack.enter_async_context(models()))
        address = await stack.enter_async_context(service(url, settings=settings))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=120))
        model = settings["MODELS_SMALL_BASE_URL"]
        at_model = await stack.enter_async_context(httpx.AsyncClient(base_url=model))
        for number in range(COMPARED):  # warm up
            await _run(http, number)
        before = await asyncio.to_thread(_stored_bytes, url)
        await _begin(http, "chat")
        ends = {number for number in range(turns) if not COMPARED <= number < turns - COMPARED}
        spent, bare = list[float](), dict[int, float]()
        for number in range(turns):
            spent.append(await _turn(http, "chat", number))
            if number in ends:
                bare[number] = await _bare(at_model, number)
        text_bytes = 2 * LETTERS * turns
        stored = await asyncio.to_thread(_stored_bytes, url) - before
        short, alone = list[float](), list[float]()
        for number in range(4 * COMPARED):
            if number % COMPARED == 0:
                await _begin(http, f"short-{number}")
            short.append(await _turn(http, f"short-{number - number % COMPARED}", number))
            alone.append(await _run(http, number))
    first, last = (
        Samples(tuple(spent[at] - bare[at] for at in sorted(ends) if (at < COMPARED) == is_first))
        for is_first in (True, False)
    )
    chats, runs, ratio = Samples(tuple(short)), Samples(tuple(alone)), stored / text_bytes
    growth, more = last.median / first.median, chats.median - runs.median
    sides = {"first turns": first, "last turns": last}
    return [
        Figure(
            title=f"A turn of a chat of {turns} turns, beyond its model",
            unit="ms",
            sides=sides,
            checks=[Check(what="last turns against first", value=growth, target=AGAINST_FIRST)],
        ),
        Figure(
            title="A turn of a short chat",
            unit="ms",
            sides={OURS: chats, "a run without a thread": runs},
            checks=[Check(what="beyond a run", value=more, target=BEYOND_A_RUN)],
        ),
        Figure(
            title="Bytes stored for a byte of text",
            unit="",
            sides={OURS: Samples((ratio,))},
            checks=[Check(what="bytes against text", value=ratio, target=AGAINST_TEXT)],
        ),
    ]


async def _begin(http: httpx.AsyncClient, thread_id: str) -> None:
    await _post(http, "/threads", {"thread_id": thread_id, "agent": AGENT})


async def _bare(http: httpx.AsyncClient, number: int) -> float:
    """Return the milliseconds of a bare request to the model with the messages of a turn."""
    messages = [{"role": "user", "content": _text(at // 2)} for at in range(2 * number + 1)]
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    began = time.perf_counter()
    response = await http.post("/chat/completions", content=body)
    spent = time.perf_counter() - began
    assert response.is_success, response.text
    return 1e3 * spent


async def _turn(http: httpx.AsyncClient, thread_id: str, number: int) -> float:
    return await _timed(http, f"/threads/{thread_id}/messages", {"content": _text(number)})


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


@cache
def _text(number: int) -> str:
    """Return a text of words, another one for each number.

    Texts are kept: creating those of 1,000 messages takes long enough to cool the caches that a
    turn finds warm when turns follow each other.
    """
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
