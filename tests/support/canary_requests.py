"""Runs of every kind and end, with canaries in every external input."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.canaries import Canaries, planted
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import edge
from tests.support.surfaces import PAYLOAD, Surface

_CUT = 400
"""The longest text for short fields."""


@dataclass(slots=True)
class CanaryRequests:
    """Requests with canaries in their fields, and their results."""

    http: httpx.AsyncClient
    provider: FakeProvider
    canaries: dict[str, Canaries] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Finished runs by the case that each one illustrates."""
    answers: list[httpx.Response] = field(default_factory=list)
    """Answers to refused requests."""

    def leaks(self, surfaces: Iterable[Surface], *, exempt: str = "") -> list[str]:
        """Return the canaries in each surface, except those of the place ``exempt``."""
        return sorted(
            {
                f"{leaked} in {surface.name}"
                for surface in surfaces
                for canaries in self.canaries.values()
                if canaries.place != exempt
                for leaked in canaries.leaked_into(surface.text)
            }
        )

    def plant(self, place: str) -> str:
        """Plant all canaries in a place and return the text that contains them."""
        return self.canaries.setdefault(place, planted(place)).text

    def plant_one(self, place: str, kind: str) -> str:
        """Plant one canary in a place that is too small for more."""
        return self._plant_some(place, (kind,))

    def plant_few(self, place: str) -> str:
        """Plant the canaries that fit into a short text."""
        kinds = ("email", "card", "account", "model key", "password", "phone", "social security")
        text = self._plant_some(place, kinds)
        assert len(text) <= _CUT
        return text

    def _plant_some(self, place: str, kinds: tuple[str, ...]) -> str:
        chosen = planted(place)
        few = Canaries(place, tuple(each for each in chosen.all if each.kind in kinds))
        return self.canaries.setdefault(place, few).text

    async def send_all(self) -> None:
        """Send all requests of the requests."""
        await self._cases_that_end()
        await self._cases_that_are_stopped()
        await self._graphs()
        await self._refused()

    async def _cases_that_end(self) -> None:
        respond = {"tool": "respond", "args": {"answer": self.plant("reply")}}
        answer = [Step(plan={"actions": [respond]})]
        gold = self.plant("reply")  # what else could confirm such an answer
        await self._case("completed", answer, metadata="metadata", gold_answer=gold)
        await self._case("wrong", [Step()], repeat=True, gold_answer=self.plant("gold"))
        error = {
            "error": {"message": self.plant("provider error"), "code": self.plant("error code")}
        }
        broken = Step(status=400, raw_body=json.dumps(error))
        await self._case("provider failed", [broken], repeat=True)
        await self._case("no plan", [Step(text=f"No! {self.plant('prose')}")], repeat=True)
        unknown = {
            "tool": self.plant_one("tool name", "model key"),
            "args": {"x": self.plant("unknown")},
        }
        plan = Step(plan={"actions": [unknown]})
        await self._case("gave up", [plan, plan, Step(plan={"cannot": self.plant("cannot")})], True)
        dated = {"operation": "weekday", "date": self.plant_one("planned date", "email")}
        act = Step(plan={"actions": [{"tool": "calendar", "args": dated}]})
        await self._case("tool failed", [act], repeat=True)

    async def _cases_that_are_stopped(self) -> None:
        respond = {"tool": "respond", "args": {"answer": self.plant("refused args")}}
        plan = Step(plan={"actions": [respond, respond]})
        await self._case("halted", [plan], repeat=True, budget={"max_tool_calls": 1})
        await self._case("cancelled", [Step(hang=True)], stopped_for=self.plant_few("reason"))
        reason = {"reason": self.plant_few("early reason")}
        self.answers.append(await self.http.post("/runs/early/cancel", json=reason))
        await self._case("cancelled early", [], run_id="early")

    async def _graphs(self) -> None:
        await self._graph("graph completed", self._talk("prompt", "system"), inputs="graph input")
        refused = [_calendar("date", self.plant_one("graph date", "email"))]
        await self._graph("graph failed", {"steps": refused, "edges": []})
        schema = {"type": "object", "required": ["total"]}
        unfit = [_llm("unfit", self.plant("unfit prompt"), output_schema=schema)]
        await self._graph("graph unfit", {"steps": unfit, "edges": []}, reply="unfit reply")
        halted = self._talk("halted prompt", "halted system")
        await self._graph("graph halted", halted, budget={"max_steps": 1})
        hanging = {"steps": [_llm("ask", self.plant("hanging prompt"))], "edges": []}
        await self._graph("graph cancelled", hanging, stopped_for=self.plant_few("graph reason"))
        named = {"name": "canaries", "graph": self._talk("kept prompt", "kept system")}
        named["description"] = self.plant_few("description")
        assert (await self.http.post("/graphs", json=named)).status_code == 201

    def _talk(self, prompt: str, system: str) -> dict[str, Any]:
        respond = {"tool": "respond", "args": {"answer": "${default}"}}
        steps = [
            _llm("ask", f"{self.plant(prompt)} ${{default}}", system=self.plant(system)),
            {"id": "say", "type": "tool", "data": respond},
        ]
        return {"steps": steps, "edges": [edge("ask", "say", channel="flow")]}

    async def _case(
        self,
        name: str,
        steps: list[Step],
        repeat: bool = False,
        *,
        metadata: str | None = None,
        stopped_for: str | None = None,
        **body: Any,
    ) -> None:
        await self.provider.script(self._marker(name), steps, repeat_last=repeat)
        body["input"] = f"{self._marker(name)} {self.plant(f'question {name}')}"
        if metadata:
            body["metadata"] = {"note": self.plant(metadata), "password": self.plant("hidden")}
        await self._run(name, body, stopped_for)

    async def _graph(
        self,
        name: str,
        graph: dict[str, Any],
        *,
        inputs: str | None = None,
        reply: str | None = None,
        stopped_for: str | None = None,
        **body: Any,
    ) -> None:
        steps = (
            [Step(hang=True)] if stopped_for else [Step(text=self.plant(reply or f"said {name}"))]
        )
        text = f"{self._marker(name)} {self.plant(inputs or f'input {name}')}"
        body |= {"kind": "graph", "graph": graph, "inputs": {"default": text}}
        marker = self.canaries["hanging prompt"].all[0].needle if stopped_for else None
        if name == "graph unfit":
            marker = self.canaries["unfit prompt"].all[0].needle
        await self.provider.script(marker or self._marker(name), steps, repeat_last=True)
        await self._run(name, body, stopped_for, marker)

    async def _run(
        self, name: str, body: dict[str, Any], stopped_for: str | None, marker: str | None = None
    ) -> None:
        headers = {
            "Idempotency-Key": self.plant_few(f"key {name}").replace("\n", " ")[:255],
            "X-Request-ID": self.plant_one(f"request id {name}", "model key"),
            "User-Agent": self.plant_few(f"user agent {name}"),
            "X-Custom": self.plant_few(f"header {name}"),
            "Prefer": "wait=20",
        }
        if stopped_for:
            del headers["Prefer"]
        token = f"Bearer {self.plant_one(f'authorization {name}', 'web token')}"
        unknown = await self.http.post(
            "/runs", json=body, headers={**headers, "Authorization": token}
        )
        assert unknown.status_code == 401
        self.answers.append(unknown)
        posted = await self.http.post("/runs", json=body, headers=headers)
        assert posted.is_success, posted.text
        run = posted.json()
        if stopped_for:
            await self.provider.wait_for_arrivals(1, marker or self._marker(name))
            path = f"/runs/{run['run_id']}"
            receipt = await self.http.delete(path, params={"reason": stopped_for})
            self.answers.append(receipt)
            run = await self.ended(path)
        again = await self.http.post("/runs", json=body, headers=headers)
        assert (again.status_code, again.json()["run_id"]) == (200, run["run_id"])
        other = await self.http.post("/runs", json={"input": "2+2?"}, headers=headers)
        assert other.status_code == 422
        self.answers.append(other)
        self.runs[name] = run

    async def posted(self, path: str, body: Any) -> dict[str, Any]:
        """Send a request that must succeed; return the answer."""
        answer = await self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return dict(answer.json())

    async def ended(self, path: str) -> dict[str, Any]:
        """Return a run once it has ended."""
        async with asyncio.timeout(150):
            while True:
                run: dict[str, Any] = (await self.http.get(path)).json()
                if run["finished_at"] is not None:
                    return run
                await asyncio.sleep(0.02)

    def _marker(self, name: str) -> str:
        return f"Story of {name}:"

    async def _refused(self) -> None:
        """Send requests that must be refused, with canaries in the invalid parts."""
        key, text = self.plant_one("refused key", "model key"), self.plant("refused")
        step = {"id": key, "type": key, "data": {key: text}}
        strange = {**edge(key, key, channel=text), "source_handle": text, key: text}
        unfit = {"id": "a", "type": "tool", "data": {"tool": key, "args": {key: f"${{{text}}}"}}}
        bodies: tuple[Any, ...] = (
            *({"input": text, key: text}, {"input": text, "mode": key}, {"input": [text]}),
            *({"input": text, "run_id": text}, {"input": text, "budget": {key: text}}),
            *({"input": text, "deadline": text}, {"input": text, "timezone": key}),
            *(
                {"input": text, "expected_tools": [key]},
                {"input": text, "kind": text},
                [text],
                text,
            ),
            *({"kind": "graph", "graph": text}, {"kind": "graph", "graph": {"name": key}}),
            {"kind": "graph", "graph": {"steps": [step], "edges": [strange], "entry": [text]}},
            {"kind": "graph", "graph": {"steps": [unfit, unfit], "edges": [], key: text}},
        )
        for body in bodies:
            await self.refuse("POST", "/runs", json=body)
        await self.refuse("POST", "/runs", content=f'{{"input": {text}')
        await self.refuse("POST", "/runs", content=text)
        for graph in (bodies[-1]["graph"], bodies[-2]["graph"]):
            await self.refuse("POST", "/graphs", json={"name": text, "graph": graph, key: text})
            self.answers.append(await self.http.post("/graphs/validate", json={"graph": graph}))
        for path in (f"/runs/{key}", f"/runs/{key}/trace", f"/{key}", f"/graphs/{key}", "/runs"):
            query = {"limit": text, "cursor": text, key: text}
            await self.refuse("GET", path, params=query)
        await self.refuse("GET", f"/runs/{key}/events", headers={"Last-Event-ID": key})
        await self.refuse("PATCH", f"/runs/{key}?{key}={key}")

    async def refuse(self, method: str, path: str, **options: Any) -> None:
        """Send a request that must be refused, and keep the answer."""
        answer = await self.http.request(method, path, **options)
        assert 400 <= answer.status_code < 500, (path, answer.text)
        self.answers.append(answer)


def payload_of(run: dict[str, Any]) -> str:
    """Return the part of a run's result that its caller requested, as text."""
    result = run["result"] or {}
    return json.dumps({name: result[name] for name in result if name in PAYLOAD})


def _llm(step_id: str, prompt: str, **data: Any) -> dict[str, Any]:
    return {"id": step_id, "type": "llm", "data": {"prompt": prompt, **data}}


def _calendar(step_id: str, date: str) -> dict[str, Any]:
    args = {"operation": "weekday", "date": date}
    return {"id": step_id, "type": "tool", "data": {"tool": "calendar", "args": args}}
