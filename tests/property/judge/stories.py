"""Draws and plays the story of one tenant: its runs, their calls, and what interrupts them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Final

from tests.property.judge.bodies import Drawn, adversarial_text, drawn_body, ordinary_text
from tests.property.judge.provider import Behaviour, some_behaviour
from tests.property.judge.truth import CHAT, FAMILIES, MESSAGES, RESPONSES
from tests.property.judge.world import OPERATOR_KEY, Answer, JudgedService

SETTLED_SECONDS: Final = 400.0
"""Virtual seconds after the last event in which every run has ended."""
_BASES: Final = {CHAT: "/gateway/openai/v1", RESPONSES: "/gateway/openai/v1"}


@dataclass(slots=True)
class RunPlan:
    """A run and its limits."""

    number: int
    process: int
    budget: dict[str, Any]
    parent: int | None = None
    """Number of the run whose budget it shares."""
    agents: int = 0
    """Number of parallel model steps; 0 is an external run."""
    run_id: str = ""
    key: str = ""
    attempt: int = 1
    opened_at: list[float] = field(default_factory=list)
    """Times at which each attempt had been opened."""
    responses: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CallPlan:
    """A call of a client."""

    marker: str
    run: int
    at: float
    pause_seconds: float
    """How long the client pauses in the middle of its body."""
    gone_at: float | None
    """When the client disconnects; None is never."""
    with_first_key: bool
    """Whether it uses the first key of the run, which may be superseded."""
    drawn: Drawn | None = None
    answer: Answer = field(default_factory=Answer)
    sent_attempt: int = 0


@dataclass(slots=True)
class Event:
    """Something that happens to a run: a cancel, its end or a new attempt."""

    at: float
    kind: str
    run: int


class Story:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tenant = f"t{seed}"
        chance = self._chance = Random(seed)
        self.quota: dict[str, Decimal] = {}
        if chance.random() < 0.4:
            period = chance.choice(("day", "month"))
            self.quota = {f"max_cost_usd_per_{period}": _dollars(chance)}
        self.runs = list(self._drawn_runs())
        count = chance.choice((1, 2, 4, 7))
        self.calls = [self._drawn_call(number) for number in range(count)]
        self.events = list(self._drawn_events())
        self.began_at = 0.0
        self.late_calls: list[str] = []
        """Markers of the calls that a superseded key made."""

    @property
    def about(self) -> set[str]:
        """Features of the story, except references to its own responses."""
        calls = [call for call in self.calls if call.run >= 0]
        found = {field for call in calls for field in self._body(call, []).fields}
        found |= {event.kind for event in self.events}
        found |= {"quota"} if self.quota else set()
        found |= {"child"} if any(run.parent is not None for run in self.runs) else set()
        return found | ({"several calls"} if len(calls) > 3 else set())

    def _body(self, call: CallPlan, references: list[str]) -> Drawn:
        return drawn_body(Random(f"{self.seed} {call.marker}"), call.marker, references)

    def behaviour(self, marker: str, request: int) -> Behaviour:
        """Return how the provider treats a request."""
        return some_behaviour(Random(f"{self.seed} {marker} {request}"))

    def _drawn_runs(self) -> Any:
        chance = self._chance
        for number in range(chance.choice((1, 1, 2, 3))):
            budget: dict[str, Any] = {}
            if chance.random() < 0.8:
                budget["max_cost_usd"] = float(_dollars(chance))
            if chance.random() < 0.2:
                budget["max_tokens"] = chance.choice((1_000, 5_000, 20_000, 100_000))
            parent = chance.randrange(number) if number and chance.random() < 0.5 else None
            agents = chance.choice((0, 0, 0, 2)) if parent is None else 0
            yield RunPlan(number, chance.randrange(2), budget, parent, agents)

    def _drawn_call(self, number: int) -> CallPlan:
        chance = self._chance
        external = [run.number for run in self.runs if not run.agents]
        return CallPlan(
            marker=f"<{self.seed}/c{number}>",
            run=chance.choice(external) if external else -1,
            at=chance.choice((0.0, 0.0, chance.uniform(0, 3), chance.uniform(0, 20))),
            pause_seconds=chance.choice((0.0, 0.0, 0.0, chance.uniform(0, 2))),
            gone_at=chance.uniform(0, 30) if chance.random() < 0.15 else None,
            with_first_key=chance.random() < 0.3,
        )

    def _drawn_events(self) -> Any:
        chance = self._chance
        for run in self.runs:
            span = chance.choice((0.5, 5.0, 30.0))
            if chance.random() < 0.25:
                yield Event(chance.uniform(0, span), "attempt", run.number)
            if chance.random() < 0.35:
                kind = chance.choice(("cancel", "cancel", "finish"))
                yield Event(chance.uniform(0, span), kind, run.number)

    async def play(self, world: JudgedService) -> None:
        """Play the story until every call has ended."""
        self.began_at = asyncio.get_running_loop().time()
        admin = await world.tenant(self.tenant)
        if self.quota:
            limits = {name: float(limit) for name, limit in self.quota.items()}
            path = f"/quotas/{self.tenant}"
            answer = await world.ask(0, OPERATOR_KEY, "PUT", path, limits)
            assert answer.status == 200, answer.body
        for run in self.runs:
            await self._open(world, run, admin)
        calls = [call for call in self.calls if call.run >= 0 and self.runs[call.run].key]
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(self._call(world, call))
            for event in self.events:
                group.create_task(self._happen(world, event, admin))
        for run in self.runs:
            if run.run_id and run.parent is None and not run.agents:
                path = f"/runs/{run.run_id}"
                await world.ask(self._process(run), admin, "DELETE", path)
        async with asyncio.timeout(SETTLED_SECONDS):
            while world.unfinished(self.tenant):  # noqa: ASYNC110
                await asyncio.sleep(1)
        await asyncio.sleep(2)  # an abandoned call has been charged

    def _process(self, run: RunPlan) -> int:
        """Return the process that owns a run: a child's is that of its parent."""
        return run.process if run.parent is None else self._process(self.runs[run.parent])

    async def _open(self, world: JudgedService, run: RunPlan, admin: str) -> None:
        body: dict[str, Any] = {"kind": "external", "run_id": f"r{run.number}"}
        if run.budget:
            body["budget"] = run.budget
        if run.parent is not None:
            if not self.runs[run.parent].run_id:
                return
            body["parent"] = {"run_id": self.runs[run.parent].run_id}
        if run.agents:
            body |= {"kind": "graph", "graph": self._graph(run), "inputs": {"default": "go"}}
        answer = await world.ask(self._process(run), admin, "POST", "/runs", body)
        if answer.status != 202:
            return
        made = answer.json()
        run.run_id = made["run_id"]
        run.key = (made.get("access") or {}).get("key", "")
        run.opened_at.append(asyncio.get_running_loop().time())

    def _graph(self, run: RunPlan) -> dict[str, Any]:
        chance = Random(f"{self.seed} graph {run.number}")
        steps = [self._step(chance, f"a{run.number}x{number}") for number in range(run.agents)]
        return {"steps": steps, "edges": []}

    def _step(self, chance: Random, name: str) -> dict[str, Any]:
        """Return a step that calls a model through a wire of the service."""
        size = chance.choice((5, 40, 300))
        text = ordinary_text(chance, size)
        if chance.random() < 0.25:
            text += adversarial_text(chance, 6 * size)
        first, *others = chance.sample(list(FAMILIES), chance.choice((1, 1, 2)))
        model = {"name": first, "fallbacks": others, "stream": chance.random() < 0.5}
        if chance.random() < 0.5:
            model["max_output_tokens"] = chance.choice((30, 300, 2000))
        data: dict[str, Any] = {"prompt": f"<{self.seed}/{name}> {text}", "model": model}
        if chance.random() < 0.2:
            fields = {"answer": {"type": "string", "description": ordinary_text(chance, 30)}}
            data["output_schema"] = {"type": "object", "properties": fields}
        return {"id": name, "type": "llm", "data": data}

    async def _call(self, world: JudgedService, call: CallPlan) -> None:
        await asyncio.sleep(call.at)
        run = self.runs[call.run]
        call.drawn = drawn = self._body(call, run.responses)
        key, call.sent_attempt = run.key, run.attempt
        gone = asyncio.Event()
        headers = {"anthropic-version": "2023-06-01"} if drawn.path == MESSAGES else {}
        base = _BASES.get(drawn.path, "/gateway/anthropic")
        request = world.ask(
            *(self._process(run), key, "POST", base + drawn.path, drawn.document),
            answer=call.answer,
            gone=gone,
            pause_seconds=call.pause_seconds,
            headers=headers,
        )
        task = asyncio.create_task(request)
        if call.gone_at is not None:
            await asyncio.wait((task,), timeout=call.gone_at)
            gone.set()
        await asyncio.wait((task,))
        with suppress(asyncio.CancelledError):
            task.result()
        self._note_reference(run, call)

    def _note_reference(self, run: RunPlan, call: CallPlan) -> None:
        assert call.drawn is not None
        is_whole = call.answer.status == 200 and call.answer.is_whole
        if is_whole and call.drawn.path == RESPONSES and b"completed" in call.answer.body:
            run.responses.append(f"id-{call.marker[1:-1].replace('/', '-')}")

    async def _happen(self, world: JudgedService, event: Event, admin: str) -> None:
        await asyncio.sleep(event.at)
        run = self.runs[event.run]
        if not run.run_id:
            return
        path, process = f"/runs/{run.run_id}", self._process(run)
        if event.kind == "cancel":
            await world.ask(process, admin, "DELETE", path)
        elif event.kind == "finish" and run.key:
            await world.ask(process, run.key, "POST", f"{path}/finish", {"output": 1})
        elif event.kind == "attempt" and run.key:
            body: dict[str, Any] = {"kind": "external", "run_id": run.run_id}
            if run.budget:
                body["budget"] = run.budget
            if run.parent is not None:
                body["parent"] = {"run_id": self.runs[run.parent].run_id}
            answer = await world.ask(process, admin, "POST", "/runs", body)
            made = answer.json()
            if answer.status == 200 and made.get("access"):
                run.opened_at.append(asyncio.get_running_loop().time())
                run.attempt, run.key = made["attempt"], made["access"]["key"]


def _dollars(chance: Random) -> Decimal:
    return Decimal(chance.choice((3, 10, 30, 100, 300, 1000))) / 1000


def descendants(runs: Sequence[RunPlan], number: int) -> set[int]:
    """Return a run and all runs that share its budget."""
    found = {number}
    for run in runs:
        if run.parent in found:
            found.add(run.number)
    return found
