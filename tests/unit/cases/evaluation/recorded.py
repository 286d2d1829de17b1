"""Runs, traces and a service as the API returns them."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
from caseworker_client import ApiError, AsyncCaseworkerClient

from caseworker_cases.evaluation.dataset import EvalCase
from caseworker_cases.evaluation.results import JudgedTrial, Trial, result_of
from caseworker_cases.evaluation.runner import RETRY

Answering = Callable[[Mapping[str, Any]], dict[str, Any]]


def a_case(**fields: Any) -> EvalCase:
    """Return a case with a default question."""
    return EvalCase.model_validate({"id": "sum", "input": "What is 20 + 22?", **fields})


def a_run(
    answer: str | None = "42",
    *,
    verified: bool = True,
    status: str = "completed",
    finish_reason: str | None = "success",
    run_id: str = "r1",
    big_calls: int = 0,
    cost_usd: float | None = 0.0,
    seconds: int = 1,
    stop: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a finished run of a case."""
    tier = {"input": 100, "output": 10, "cost_usd": cost_usd, "another_figure": 1}
    none = {"input": 0, "output": 0, "cost_usd": 0.0}
    return {
        "run_id": run_id,
        "status": status,
        "finish_reason": finish_reason,
        "created_at": "2025-01-01T00:00:00Z",
        "finished_at": f"2025-01-01T00:00:{seconds:02}Z",
        "stop": stop,
        "result": {
            "answer": answer,
            "verified": verified,
            "finish_reason": finish_reason,
            "evidence": [],
            "logs": [{"ts": "now", "run_id": run_id, "tier": "small", "step_type": "plan"}],
            "counters": {
                "llm_calls_small": 1,
                "llm_calls_big": big_calls,
                "tool_calls": 1,
                "act_steps": 1,
                "tokens": {"small": tier, "big": none, "total": tier},
            },
            "models": {"small": {"provider": "offline", "model": "offline"}},
        },
    }


def a_trace(*tools: str, status: str = "success") -> dict[str, Any]:
    """Return a trace with a step and one call per tool; the root node is last."""
    names = [("n000002", "llm", "plan", "success")]
    names += [(f"n{number:06}", "tool", tool, status) for number, tool in enumerate(tools, 9)]
    names.append(("n000001", "system", "case", "success"))
    nodes = {
        node_id: {"node_id": node_id, "kind": kind, "name": name, "status": ended}
        for node_id, kind, name, ended in names
    }
    return {"snapshot": {"nodes": nodes}}


def a_trial(case: EvalCase | None = None, **fields: Any) -> Trial:
    """Return a trial with a correct run, modified by ``fields``."""
    known: dict[str, Any] = {
        "case": case or a_case(gold_answer="42"),
        "repeat": 1,
        "run_id": "r1",
        "seconds": 0.5,
        "run": a_run(),
        "trace": a_trace("calculator"),
    }
    return Trial(**{**known, **fields})


def a_result(case: EvalCase | None = None, **fields: Any) -> JudgedTrial:
    """Return the result of a trial."""
    return result_of(a_trial(case, **fields))


class RecordedService(AsyncCaseworkerClient):
    """A client whose service answers with runs of ``answering``; records each request."""

    def __init__(self, answering: Answering | None = None) -> None:
        """Replace the HTTP transport, so that nothing is sent."""
        self._answering = answering or (lambda body: a_run(run_id=body["run_id"]))
        self.provider = "offline"
        self.posted: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        super().__init__(
            "http://nowhere",
            retry=replace(RETRY, pause_factor=0),
            transport=httpx.MockTransport(self._answer),
        )

    async def run_of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run of a body that was posted."""
        self.posted.append(dict(body))
        return self._answering(body)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        match request.method, request.url.path.strip("/").split("/"):
            case "POST", ["runs"]:
                try:
                    return httpx.Response(202, json=await self.run_of(json.loads(request.content)))
                except ApiError as refused:
                    return httpx.Response(refused.status, json=refused.problem)
            case "DELETE", ["runs", run_id]:
                self.cancelled.append(run_id)
                return httpx.Response(202, json={"run_id": run_id})
            case "GET", ["runs", run_id, "trace"]:
                return httpx.Response(200, json={"run_id": run_id, **a_trace("calculator")})
            case "GET", ["models"]:
                tiers = {tier: {"provider": self.provider} for tier in ("small", "big")}
                return httpx.Response(200, json={"models": tiers})
            case "GET", ["openapi.json"]:
                return httpx.Response(200, json={"info": {"version": "9.9.9"}})
        raise AssertionError(f"{request.url} was asked for")


class HangingService(RecordedService):
    """A service whose runs end only when cancelled; runs in ``quick`` end at once."""

    def __init__(self, *quick: str, waits: int = 1, cancels: bool = True) -> None:
        """With ``cancels`` false, cancel requests are accepted but have no effect."""
        super().__init__()
        self._waits = waits
        self._quick = quick
        self._cancels = cancels
        self._ended: dict[str, asyncio.Event] = {}
        self.waiting = asyncio.Event()
        """Set as soon as ``waits`` runs are pending."""

    async def run_of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Record the request, and wait for the end of the run unless it is a quick one."""
        run = await super().run_of(body)
        if body["metadata"]["case"] in self._quick:
            return run
        ended = self._end_of(body["run_id"])
        if len(self._ended) == self._waits:
            self.waiting.set()
        await ended.wait()
        return {**run, "status": "cancelled", "finish_reason": None}

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await super()._answer(request)
        if self._cancels and request.method == "DELETE":
            self._end_of(self.cancelled[-1]).set()
        return answer

    def _end_of(self, run_id: str) -> asyncio.Event:
        return self._ended.setdefault(run_id, asyncio.Event())
