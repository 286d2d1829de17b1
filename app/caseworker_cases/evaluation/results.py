"""Judges trials. A trial is one run of a case, with its metrics and whether it was correct."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from caseworker_cases.evaluation.comparison import same_answer
from caseworker_cases.evaluation.dataset import EvalCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a case, before it is judged."""

    case: EvalCase
    repeat: int
    """One-based number of the repetition."""
    run_id: str
    seconds: float = 0.0
    """Client-side latency in seconds, from the request to the final response."""
    run: Mapping[str, Any] | None = None
    """The finished run as JSON. None if no run was created or it did not finish."""
    trace: Mapping[str, Any] | None = None
    refusal: str | None = None
    """Why the service rejected the input; None if it accepted it."""
    error: str | None = None
    """Why the case could not be measured; None if it was measured."""


class Outcome(StrEnum):
    """How a trial ended. Only ``success`` counts as correct."""

    SUCCESS = "success"
    WRONG_ANSWER = "wrong_answer"
    """The run completed and reports a verified answer that differs from the gold answer."""
    NOT_VERIFIED = "not_verified"
    HALTED = "halted"
    """A limit stopped the run."""
    TOOLS_NOT_USED = "tools_not_used"
    """The answer is correct, but the trace shows no successful call to an expected tool."""
    CLAIMED = "claimed"
    """The input should have been refused, but the run reports a verified answer."""
    INPUT_REFUSED = "input_refused"
    ERROR = "error"
    """The trial could not be measured, was cancelled, or failed with an error."""


class Tokens(BaseModel, frozen=True):
    """Token usage and cost."""

    input: int = 0
    output: int = 0
    cost_usd: float | None = 0.0
    """Cost in US dollars; None if the price of a model is unknown."""


class Counters(BaseModel, frozen=True):
    """A run's usage counters, as in its result."""

    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    act_steps: int = 0
    tokens: Mapping[str, Tokens] = {}
    """Token usage by tier; the key ``total`` holds the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTrial:
    """A judged trial."""

    case: EvalCase
    repeat: int
    run_id: str
    outcome: Outcome
    detail: str
    """Human-readable explanation of the outcome."""
    client_seconds: float
    ran: bool
    """Whether a run was created and finished."""
    answer: str | None
    verified: bool
    finish_reason: str | None
    service_seconds: float | None
    """Seconds from acceptance to the end of the run, by the service's clock; None if no run
    finished."""
    counters: Counters
    models: Mapping[str, str]
    """Provider and model of each tier, as ``provider:model``."""

    @property
    def succeeded(self) -> bool:
        """Whether the trial counts as correct."""
        return self.outcome is Outcome.SUCCESS

    @property
    def right(self) -> bool:
        """Whether the answer equals the gold answer, verified or not; False if one is missing."""
        gold = self.case.gold_answer
        return gold is not None and self.answer is not None and same_answer(self.answer, gold)

    @property
    def escalated(self) -> bool:
        """Whether the run called a model of the big tier."""
        return self.counters.llm_calls_big > 0


def result_of(trial: Trial) -> JudgedTrial:
    """Judge a trial and extract its metrics from the run."""
    outcome, detail = _judged(trial)
    run = trial.run or {}
    result_fields = run.get("result") or {}
    return JudgedTrial(
        case=trial.case,
        repeat=trial.repeat,
        run_id=trial.run_id,
        outcome=outcome,
        detail=detail,
        client_seconds=trial.seconds,
        ran=trial.run is not None,
        answer=result_fields.get("answer"),
        verified=result_fields.get("verified") is True,
        finish_reason=run.get("finish_reason"),
        service_seconds=_seconds(trial.run),
        counters=Counters.model_validate(result_fields.get("counters") or {}),
        models={
            tier: f"{model['provider']}:{model['model']}"
            for tier, model in (result_fields.get("models") or {}).items()
            if model is not None
        },
    )


def trace_nodes(trace: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return a trace's call nodes in the order of creation."""
    nodes = (trace or {}).get("snapshot", {}).get("nodes", {}).values()
    return sorted(nodes, key=lambda node: int(node["node_id"].lstrip("n")))


def _seconds(run: Mapping[str, Any] | None) -> float | None:
    if run is None:
        return None
    began, ended = (datetime.fromisoformat(run[name]) for name in ("created_at", "finished_at"))
    return (ended - began).total_seconds()


def _judged(trial: Trial) -> tuple[Outcome, str]:
    wants_refusal = trial.case.expect == "refused"
    if trial.error is not None:
        return Outcome.ERROR, trial.error
    if trial.run is None:
        why = trial.refusal or "no run"
        return (Outcome.SUCCESS if wants_refusal else Outcome.INPUT_REFUSED), why
    status = trial.run["status"]
    if status == "cancelled" or trial.run["finish_reason"] is None:
        return Outcome.ERROR, f"the run ended {status}: {_cause(trial.run)}"
    result_fields = trial.run.get("result") or {}
    claims = status == "completed" and result_fields.get("verified") is True
    if wants_refusal and claims:
        return Outcome.CLAIMED, "a verified answer to a question that must be refused"
    if wants_refusal:
        return Outcome.SUCCESS, "no verified answer was given"
    if claims:
        return _judged_answer(trial, result_fields.get("answer"))
    cause = _model_failure(trial.trace) or _cause(trial.run)
    return (Outcome.HALTED if status == "halted" else Outcome.NOT_VERIFIED), cause


def _judged_answer(trial: Trial, answer: str | None) -> tuple[Outcome, str]:
    gold = trial.case.gold_answer
    if gold is not None and (answer is None or not same_answer(answer, gold)):
        return Outcome.WRONG_ANSWER, "verified but wrong answer"
    used = {
        node["name"]
        for node in trace_nodes(trial.trace)
        if node["kind"] == "tool" and node["status"] == "success"
    }
    if missing := sorted(set(trial.case.expected_tools) - used):
        return Outcome.TOOLS_NOT_USED, f"no successful call of {', '.join(missing)}"
    return Outcome.SUCCESS, "" if gold is not None else "verified by the service alone"


def _model_failure(trace: Mapping[str, Any] | None) -> str | None:
    """Return why the last model call failed, or None if it did not fail."""
    calls = [node for node in trace_nodes(trace) if node["kind"] == "llm"]
    failed = bool(calls) and calls[-1]["status"] == "fail"
    return calls[-1].get("stop_reason") if failed else None


def _cause(run: Mapping[str, Any]) -> str:
    """Return what stopped a run, else the last error of a tool, else the status."""
    if stop := run.get("stop"):
        parts = (stop.get(name) for name in ("kind", "dimension", "reason"))
        return ", ".join(str(part) for part in parts if part)
    for piece in reversed((run.get("result") or {}).get("evidence") or []):
        if error := (piece.get("result") or {}).get("error"):
            return f"{piece.get('tool')}: {error}"
    return str(run["status"])
