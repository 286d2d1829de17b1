"""The customers of the chaos: they post, repeat, cancel, follow and read, on any replica.

What they were promised they write down, and what contradicts it at once is a problem of the world.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx

from tests.chaos.requests import AGENT, Json, Posted, going_on_from, limited_map, some_request
from tests.chaos.world import Slot, World, drawn
from tests.support.memory_rows import RUN_ENDS

TERMINAL = ("completed", "failed", "halted", "cancelled")
_BUSY = (429, 503)
ONE_OF_EACH = 20
"""Among so many runs, one is cancelled before it is posted, and one is stopped by its limit."""


class Customers:
    """All of them, and what they know: ``async with Customers(world) as customers``."""

    def __init__(self, world: World, *, lanes: int) -> None:
        self.world = world
        self.posted: list[Posted] = []
        self.counts: Counter[str] = Counter()
        self._lanes = lanes
        self._open = True
        self._stack = AsyncExitStack()
        self._http: dict[tuple[str, str], httpx.AsyncClient] = {}
        self._halted: list[Posted] = []

    async def work(self) -> None:
        """Ask for one thing after the other, until told to close; then wait for what is open."""
        async with self._stack, asyncio.TaskGroup() as group:
            for number in range(self._lanes):
                group.create_task(self._lane(drawn(self.world.seed, f"customer {number}")))

    def close(self) -> None:
        """Begin nothing more."""
        self._open = False

    async def _lane(self, chance: random.Random) -> None:
        while self._open:
            number = len(self.posted)
            name = f"r-{number:05}"
            if self._halted:
                posted = going_on_from(self._halted.pop(), name)
            elif number % ONE_OF_EACH < 2:
                posted = limited_map(name, chance)
            else:
                posted = some_request(name, chance)
            self.posted.append(posted)
            when = 0.0 if number % ONE_OF_EACH == 0 else chance.random()
            await self._journey(posted, chance, when=when)

    async def _journey(self, posted: Posted, chance: random.Random, *, when: float) -> None:
        """Post, perhaps cancel (``when`` says at what moment), follow, and read until the end."""
        can_name_it = "run_id" in posted.body
        if posted.kind == "thread":
            body = {"thread_id": posted.name, "agent": AGENT}
            await self._ask("POST", "/threads", chance, body)
        if can_name_it and when < 0.06:
            posted.cancelled_first = True
            await self._cancel(posted, posted.name, chance)
        async with asyncio.TaskGroup() as group:
            posting = group.create_task(self._post(posted, chance))
            if can_name_it and 0.06 <= when < 0.12:
                await asyncio.sleep(chance.uniform(0, 0.1))
                await self._cancel(posted, posted.name, chance)
            await posting
            if not posted.run_ids:
                return
            if chance.random() < 0.4:
                group.create_task(self._follow(posted, random.Random(posted.name)))
            reading = group.create_task(self._read(posted, chance))
            if 0.12 <= when < 0.27:
                await asyncio.sleep(chance.uniform(0.02, 1.5))
                await self._cancel(posted, posted.run_id, chance)
            status = await reading
        if posted.kind == "map" and posted.run_ids and status != "completed":
            self._halted.append(posted)
        if when > 0.97:
            await self._cancel_late(posted, status, chance)

    async def _post(self, posted: Posted, chance: random.Random) -> None:
        """Post until it is acknowledged, sometimes once more, and see that all replicas know it."""
        headers = {} if posted.key is None else {"Idempotency-Key": posted.key}
        repeats = 2 if chance.random() < 0.15 else 1
        can_be_repeated = posted.key is not None or "run_id" in posted.body
        assert can_be_repeated, "a lost answer would make two runs of it"
        for _ in range(repeats):
            if chance.random() < 0.1:
                some = chance.choice(self.world.replicas)
                some.requests.lose_answer(b"POST /", b"HTTP/1.1 20")
            answer = await self._ask("POST", posted.path, chance, posted.body, headers)
            if answer.status_code not in (200, 202):
                self._problem(posted, f"it was answered {answer.status_code}: {answer.text[:300]}")
                return
            document = answer.json()
            run = document.get("run", document)
            posted.run_ids.add(run["run_id"])
            posted.acknowledged_at = posted.acknowledged_at or time.monotonic()
        read = await self._ask("GET", f"/runs/{run['run_id']}", chance)
        self.counts["read at once"] += 1
        if read.status_code != 200:
            self._problem(posted, f"acknowledged, and then read as {read.status_code}")

    async def _cancel(self, posted: Posted, run_id: str, chance: random.Random) -> None:
        answer = await self._ask("DELETE", f"/runs/{run_id}", chance)
        self.counts["cancels"] += 1
        if answer.status_code == 202 and not answer.json()["already_finished"]:
            posted.cancelled_at = time.monotonic()
        elif answer.status_code != 200:
            self._problem(posted, f"its cancel was answered {answer.status_code}: {answer.text}")

    async def _cancel_late(self, posted: Posted, status: str, chance: random.Random) -> None:
        answer = await self._ask("DELETE", f"/runs/{posted.run_id}", chance)
        receipt = answer.json()
        self.counts["cancels"] += 1
        if answer.status_code != 200 or (receipt["status"], receipt["already_finished"]) != (
            status,
            True,
        ):
            self._problem(posted, f"{status}, and a cancel says {answer.text}")

    async def _read(self, posted: Posted, chance: random.Random) -> str:
        """Read until the run has ended, and once more on any replica; return its status."""
        attempts, ended = 0, ""
        while True:
            answer = await self._ask("GET", f"/runs/{posted.run_id}", chance)
            self.counts["reads"] += 1
            if answer.status_code != 200:
                self._problem(posted, f"it was there, and is read as {answer.status_code}")
                return ended
            run = answer.json()
            if ended and run["status"] != ended:
                self._problem(posted, f"it was {ended}, and is {run['status']}")
            if ended:
                return ended
            if run["attempts"] < attempts - 1:  # the last one is not counted if it was handed over
                self._problem(posted, f"attempts fell from {attempts} to {run['attempts']}")
            attempts = run["attempts"]
            if run["status"] in TERMINAL:
                ended = run["status"]
            await asyncio.sleep(chance.uniform(0.05, 0.4))

    async def _follow(self, posted: Posted, chance: random.Random) -> None:
        """Follow the events to the run's end, on another replica after every cut."""
        seen: list[int] = []
        number = chance.randrange(len(self.world.replicas))
        while True:
            number += 1
            slot = self.world.replicas[number % len(self.world.replicas)]
            try:
                async for seq, type_ in self._events(slot, posted.run_id, seen):
                    seen.append(seq)
                    if type_ in RUN_ENDS:
                        posted.followed = seen
                        return
            except (httpx.HTTPError, OSError):
                self.counts["streams cut"] += 1
            await asyncio.sleep(0.05)

    async def _events(
        self, slot: Slot, run_id: str, seen: list[int]
    ) -> AsyncIterator[tuple[int, str]]:
        """Yield number and type of the events of one connection that came whole."""
        headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
        http = await self._client(slot, "streams")
        async with http.stream("GET", f"/runs/{run_id}/events", headers=headers) as answer:
            if answer.status_code != 200:
                return
            fields: dict[str, str] = {}
            rest = ""
            async for piece in answer.aiter_text():
                *lines, rest = (rest + piece).split("\n")
                for line in lines:
                    if line:
                        name, _, value = line.partition(":")
                        fields[name] = value.strip()
                    elif "data" in fields:
                        event = json.loads(fields["data"])
                        yield int(fields["id"]), event["type"]
                        fields = {}

    async def _ask(
        self,
        method: str,
        path: str,
        chance: random.Random,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Ask replicas until one answers with something else than that it cannot now."""
        while True:
            http = await self._client(chance.choice(self.world.replicas), "requests")
            try:
                answer = await http.request(method, path, json=body, headers=headers)
            except (httpx.HTTPError, OSError):
                self.counts["answers lost"] += 1
                await asyncio.sleep(0.05)
                continue
            self.counts["answers"] += 1
            if answer.status_code in _BUSY:
                self.counts["refused for now"] += 1
                await asyncio.sleep(0.1)
                continue
            if answer.status_code >= 500:
                self.world.problems.append(f"{method} {path} -> {answer.status_code}")
            return answer

    async def _client(self, slot: Slot, kind: str) -> httpx.AsyncClient:
        if (slot.name, kind) not in self._http:
            host, port = getattr(slot, kind).address
            limits: Any = httpx.Limits(max_connections=None, max_keepalive_connections=4)
            self._http[slot.name, kind] = await self._stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://{host}:{port}", timeout=8, trust_env=False, limits=limits
                )
            )
        return self._http[slot.name, kind]

    def _problem(self, posted: Posted, what: str) -> None:
        self.world.problems.append(f"{posted.name} ({posted.kind}): {what}")
