"""The customers of the chaos: they post, repeat, cancel, follow and read on any replica.

They record the promises they got; an immediate contradiction is a problem of the world.
"""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress

import httpx

from tests.chaos.requests import (
    AGENT,
    LIMITS,
    Json,
    Posted,
    going_on_from,
    limited_map,
    some_request,
)
from tests.chaos.world import ChaosWorld, drawn
from tests.support.fault_proxy import FaultProxy
from tests.support.memory_rows import RUN_ENDS

TERMINAL = ("completed", "failed", "halted", "cancelled")
_BUSY = (429, 503)
ONE_OF_EACH = 12
"""One in this many runs is cancelled before it is posted, and one has a too low limit."""
WHEN_DEAF = 0.9
"""Below this draw, a run is cancelled without notification unless it was cancelled before."""
FOLLOW_SECONDS = 30.0
"""How long after a run's end its followers may still miss its last event, in seconds. A replica may
be frozen for almost half of that, and the database may be lost right after it."""


class Customers:
    """All customers, and their records."""

    def __init__(self, world: ChaosWorld, *, lanes: int) -> None:
        self.world = world
        self.posted: list[Posted] = []
        self.counts: Counter[str] = Counter()
        self._lanes = lanes
        self._open = True
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(timeout=5, trust_env=False, limits=limits)
        self._halted: list[Posted] = []

    async def work(self) -> None:
        """Send requests until closed, then wait for the open ones."""
        async with self._http, asyncio.TaskGroup() as group:
            for number in range(self._lanes):
                group.create_task(self._lane(drawn(self.world.seed, f"customer {number}")))

    def close(self) -> None:
        """Start no further requests."""
        self._open = False

    async def _lane(self, chance: random.Random) -> None:
        while self._open:
            number, when = len(self.posted), chance.random()
            name = f"r-{number:05}"
            if self._halted:
                posted = going_on_from(self._halted.pop(), name)
            elif number % ONE_OF_EACH < 2:
                posted = limited_map(name, sorted(LIMITS)[number // ONE_OF_EACH % len(LIMITS)])
                when = 0.0 if number % ONE_OF_EACH else 0.5
            else:
                posted = some_request(name, chance)
            self.posted.append(posted)
            await self._journey(posted, chance, when=when)

    async def _journey(self, posted: Posted, chance: random.Random, *, when: float) -> None:
        """Post, optionally cancel (``when`` chooses the moment), follow, and read until the end."""
        can_name_it = "run_id" in posted.body
        if posted.kind == "thread":
            body = {"thread_id": posted.name, "agent": AGENT}
            await self._ask("POST", "/threads", chance, body)
        if can_name_it and when < 0.05:
            posted.cancelled_first = True
            await self._cancel(posted, posted.name, chance)
        async with asyncio.TaskGroup() as group:
            posting = group.create_task(self._post(posted, chance))
            if can_name_it and 0.05 <= when < 0.1:
                await asyncio.sleep(chance.uniform(0, 0.1))
                await self._cancel(posted, posted.name, chance)
            await posting
            if not posted.run_ids:
                return
            followed = chance.random() < 0.4
            following = group.create_task(self._follow(posted, chance)) if followed else None
            reading = group.create_task(self._read(posted, chance))
            if 0.1 <= when < (0.4 if posted.kind == "long" else 0.25):
                await asyncio.sleep(chance.uniform(0.02, 1.5))
                await self._cancel(posted, posted.run_id, chance)
            elif when < WHEN_DEAF:
                group.create_task(self._cancel_unheard(posted, chance, reading))
            status = await reading
            if following is not None:
                await asyncio.wait((following,), timeout=FOLLOW_SECONDS)
                following.cancel()
        if posted.kind == "map" and status not in ("", "completed"):
            self._halted.append(posted)
        if when > 0.97 and status:
            await self._cancel(posted, posted.run_id, chance, ended=status)

    async def _post(self, posted: Posted, chance: random.Random) -> None:
        """Post until acknowledged, sometimes again, and check that all replicas know the run."""
        headers = {} if posted.key is None else {"Idempotency-Key": posted.key}
        can_be_repeated = posted.key is not None or "run_id" in posted.body
        assert can_be_repeated, "a lost answer would make two runs of it"
        for _ in range(2 if chance.random() < 0.15 else 1):
            if chance.random() < 0.1:
                some = chance.choice(self.world.replicas)
                some.requests.lose_answer(b"POST /", b"HTTP/1.1 20")
            answer = await self._ask("POST", posted.path, chance, posted.body, headers)
            if answer.status_code not in (200, 202):
                said = f"it was answered {answer.status_code}: {answer.text[:300]}"
                self._look("answers", posted, said)
                return
            document = answer.json()
            posted.run_ids.add(document.get("run", document)["run_id"])
        read = await self._ask("GET", f"/runs/{posted.run_id}", chance)
        there = read.status_code == 200
        said = f"acknowledged, and then read as {read.status_code}"
        self._look("acknowledged", posted, None if there else said)

    async def _cancel(
        self, posted: Posted, run_id: str, chance: random.Random, *, ended: str = ""
    ) -> None:
        """Cancel a run that may exist; if it has ``ended``, it must not change."""
        answer = await self._ask("DELETE", f"/runs/{run_id}", chance)
        receipt = answer.json() if answer.status_code in (200, 202) else {}
        if answer.status_code == 202 and not receipt["already_finished"]:
            posted.cancelled_at = time.monotonic()
        well = bool(receipt) and (not ended or receipt["already_finished"])
        if not well or (ended and receipt["status"] != ended):
            self._look("cancels", posted, f"it {ended or 'is there'}; a cancel says {answer.text}")
        self.world.look("cancels")

    async def _cancel_unheard(
        self, posted: Posted, chance: random.Random, reading: asyncio.Task[str]
    ) -> None:
        """Cancel a run while no process gets notifications, if that happens before its end."""
        deaf = asyncio.create_task(self.world.deaf.wait())
        await asyncio.wait((deaf, reading), return_when=asyncio.FIRST_COMPLETED)
        deaf.cancel()
        if not reading.done():
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            await self._cancel(posted, posted.run_id, chance)

    async def _read(self, posted: Posted, chance: random.Random) -> str:
        """Read until the run has ended, and once more on any replica; return its status."""
        attempts, ended = 0, ""
        while True:
            answer = await self._ask("GET", f"/runs/{posted.run_id}", chance)
            if answer.status_code != 200:
                said = f"it was there, and is read as {answer.status_code}"
                self._look("reads", posted, said)
                return ended
            run, problem = answer.json(), None
            if ended and run["status"] != ended:
                problem = f"it was {ended}, and is {run['status']}"
            elif run["attempts"] < attempts - 1:  # a hand-over reverts the last attempt
                problem = f"attempts fell from {attempts} to {run['attempts']}"
            self._look("reads", posted, problem)
            if ended:
                return ended
            attempts = run["attempts"]
            if run["status"] in TERMINAL:
                ended = run["status"]
            await asyncio.sleep(chance.uniform(0.05, 0.4))

    async def _follow(self, posted: Posted, chance: random.Random) -> None:
        """Follow the events to the run's end, on another replica after every cut."""
        seen: list[int] = []
        posted.followed = seen
        replicas = self.world.replicas
        number = chance.randrange(len(replicas))
        while seen == list(range(1, len(seen) + 1)):
            number += 1
            url = _url(replicas[number % len(replicas)].streams, f"/runs/{posted.run_id}/events")
            headers, rest = {"Last-Event-ID": str(seen[-1])} if seen else {}, ""
            with suppress(httpx.HTTPError, OSError):
                async with self._http.stream("GET", url, headers=headers) as answer:
                    async for piece in answer.aiter_text():
                        *events, rest = (rest + piece).split("\n\n")
                        for seq, type_ in filter(None, map(_event, events)):
                            seen.append(seq)
                            if type_ in RUN_ENDS:
                                return
            self.counts["streams cut"] += 1
            await asyncio.sleep(0.2)

    async def _ask(
        self,
        method: str,
        path: str,
        chance: random.Random,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Ask replicas until one gives an answer other than a temporary refusal."""
        while True:
            url = _url(chance.choice(self.world.replicas).requests, path)
            try:
                answer = await self._http.request(method, url, json=body, headers=headers)
            except (httpx.HTTPError, OSError):
                self.counts["answers lost"] += 1
                await asyncio.sleep(0.2)
                continue
            if answer.status_code in _BUSY:
                self.counts["refused for now"] += 1
                await asyncio.sleep(0.2)
                continue
            said = f"{method} {path} -> {answer.status_code}"
            self.world.look("answers", said if answer.status_code >= 500 else None)
            return answer

    def _look(self, what: str, posted: Posted, problem: str | None) -> None:
        self.world.look(what, problem and f"{posted.name} ({posted.kind}): {problem}")


def _event(sent: str) -> tuple[int, str] | None:
    """Return number and type of an event; None for a comment."""
    fields = dict(line.split(": ", 1) for line in sent.split("\n") if line[0] != ":")
    return (int(fields["id"]), json.loads(fields["data"])["type"]) if "data" in fields else None


def _url(proxy: FaultProxy, path: str) -> str:
    host, port = proxy.address
    return f"http://{host}:{port}{path}"
