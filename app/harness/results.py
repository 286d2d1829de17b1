"""One case run once (a trial): what came back, in figures, and whether it was right."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from app.harness.comparison import same_answer
from app.harness.dataset import EvalCase

TIERS = ("small", "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A case run once."""

    case: EvalCase
    repeat: int
    """From 1."""
    run_id: str
    seconds: float = 0.0
    """From the request to the answer, as the caller felt it."""
    run: Mapping[str, Any] | None = None
    """The finished run; None if there is none."""
    trace: Mapping[str, Any] | None = None
    refusal: str | None = None
    """Why the service did not take the input."""
    error: str | None = None
    """What kept the case from being measured."""


class Outcome(StrEnum):
    """How a trial ended; only ``success`` is right."""

    SUCCESS = "success"
    WRONG_ANSWER = "wrong_answer"
    """Completed and verified, and yet not the gold answer."""
    NOT_VERIFIED = "not_verified"
    HALTED = "halted"
    """A limit stopped it."""
    TOOLS_NOT_USED = "tools_not_used"
    """Right, but the trace shows no successful call of a tool that was expected."""
    CLAIMED = "claimed"
    """It should have been refused, and the run claims a verified answer."""
    INPUT_REFUSED = "input_refused"
    ERROR = "error"
    """It could not be measured, was cancelled, or something broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What was used and what it cost."""

    input: int = 0
    output: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            cost_usd=self.cost_usd + other.cost_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trial, judged."""

    case: EvalCase
    repeat: int
    run_id: str
    outcome: Outcome
    detail: str
    """What happened, for people."""
    client_seconds: float
    ran: bool = False
    """Whether there was a run at all."""
    answer: str | None = None
    verified: bool = False
    finish_reason: str | None = None
    service_seconds: float | None = None
    """From acceptance to the end, by the service's clock."""
    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    act_steps: int = 0
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
    """By tier."""
    models: Mapping[str, str] = field(default_factory=dict)
    """By tier: provider and model."""

    @property
    def succeeded(self) -> bool:
        """Whether it is right."""
        return self.outcome is Outcome.SUCCESS

    @property
    def escalated(self) -> bool:
        """Whether the big tier was called."""
        return self.llm_calls_big > 0


def result_of(trial: Trial) -> Result:
    """Judge a trial and take its figures from the run."""
    outcome, detail = _judged(trial)
    result = Result(
        case=trial.case,
        repeat=trial.repeat,
        run_id=trial.run_id,
        outcome=outcome,
        detail=detail,
        client_seconds=trial.seconds,
    )
    return result if trial.run is None else _with_figures(result, trial.run)


def _with_figures(result: Result, run: Mapping[str, Any]) -> Result:
    found = run.get("result") or {}
    counters = found.get("counters") or {}
    tokens = counters.get("tokens") or {}
    return replace(
        result,
        ran=True,
        answer=found.get("answer"),
        verified=found.get("verified") is True,
        finish_reason=run.get("finish_reason"),
        service_seconds=_seconds(run),
        llm_calls_small=counters.get("llm_calls_small", 0),
        llm_calls_big=counters.get("llm_calls_big", 0),
        tool_calls=counters.get("tool_calls", 0),
        act_steps=counters.get("act_steps", 0),
        tokens={tier: _tokens(tokens[tier]) for tier in TIERS if tier in tokens},
        models={
            tier: f"{named['provider']}:{named['model']}"
            for tier, named in (found.get("models") or {}).items()
        },
    )


def _tokens(counted: Mapping[str, Any]) -> Tokens:
    return Tokens(input=counted["input"], output=counted["output"], cost_usd=counted["cost_usd"])


def _seconds(run: Mapping[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(run[name]) for name in ("created_at", "finished_at"))
    return (ended - began).total_seconds()


def _judged(trial: Trial) -> tuple[Outcome, str]:
    wants_refusal = trial.case.expect == "refused"
    if trial.error is not None:
        return Outcome.ERROR, trial.error
    if trial.run is None:
        why = trial.refusal or "no run"
        return (Outcome.SUCCESS if wants_refusal else Outcome.INPUT_REFUSED), why
    if trial.run["status"] == "cancelled" or trial.run["finish_reason"] is None:
        return Outcome.ERROR, f"the run ended {trial.run['status']}: {_cause(trial.run)}"
    if wants_refusal:
        return _judged_refusal(trial.run)
    return _judged_answer(trial, trial.run)


def _judged_refusal(run: Mapping[str, Any]) -> tuple[Outcome, str]:
    if _claims(run):
        return Outcome.CLAIMED, "a verified answer to what should have been refused"
    return Outcome.SUCCESS, "nothing was claimed"


def _judged_answer(trial: Trial, run: Mapping[str, Any]) -> tuple[Outcome, str]:
    if not _claims(run):
        halted = run["status"] == "halted"
        cause = _model_failure(trial.trace) or _cause(run)
        return (Outcome.HALTED if halted else Outcome.NOT_VERIFIED), cause
    answer, gold = run["result"].get("answer"), trial.case.gold_answer
    if gold is not None and (answer is None or not same_answer(answer, gold)):
        return Outcome.WRONG_ANSWER, "verified, and yet not the right answer"
    if missing := sorted(set(trial.case.expected_tools) - _tools_used(trial.trace)):
        return Outcome.TOOLS_NOT_USED, f"no successful call of {', '.join(missing)}"
    return Outcome.SUCCESS, "" if gold is not None else "verified by the service alone"


def _claims(run: Mapping[str, Any]) -> bool:
    """Tell whether the run says that its answer is right."""
    found = run.get("result") or {}
    return run["status"] == "completed" and found.get("verified") is True


def _tools_used(trace: Mapping[str, Any] | None) -> set[str]:
    return {
        node["name"]
        for node in trace_nodes(trace)
        if node["kind"] == "tool" and node["status"] == "success"
    }


def _model_failure(trace: Mapping[str, Any] | None) -> str | None:
    """Return why the last model that was asked gave no reply, if it gave none."""
    asked = [node for node in trace_nodes(trace) if node["kind"] == "llm"]
    failed = bool(asked) and asked[-1]["status"] == "fail"
    return asked[-1].get("stop_reason") if failed else None


def trace_nodes(trace: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the CallNodes of a trace in the order of their creation."""
    nodes = (trace or {}).get("snapshot", {}).get("nodes", {}).values()
    return sorted(nodes, key=lambda node: int(node["node_id"].lstrip("n")))


def _cause(run: Mapping[str, Any]) -> str:
    stop = run.get("stop") or {}
    if stop:
        parts = (stop.get(name) for name in ("kind", "dimension", "reason"))
        return ", ".join(str(part) for part in parts if part)
    return _last_complaint((run.get("result") or {}).get("evidence") or []) or str(run["status"])


def _last_complaint(evidence: list[Mapping[str, Any]]) -> str | None:
    """Return the last error that a tool reported."""
    for found in reversed(evidence):
        error = (found.get("result") or {}).get("error")
        if error:
            return f"{found.get('tool')}: {error}"
    return None
