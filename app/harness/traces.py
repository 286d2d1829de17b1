"""The trace of a trial as JSON lines (seed 002, 14.2): what it takes to find out what happened.

One object a line, each with ``type`` and ``run_id``: first ``run`` (the run, the case, the
verdict), then a ``log`` for each entry of the case's log, then a ``call`` for each CallNode in the
order of creation.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from app.harness.results import Result
from app.harness.trials import Trial


def trace_lines(trial: Trial, result: Result) -> Iterator[str]:
    """Return the lines of one trial, without line ends."""
    records = [_head(trial, result), *_logs(trial.run), *_calls(trial.trace)]
    for kind, rest in records:
        own = {"type": kind, "run_id": trial.run_id}
        yield json.dumps({**own, **rest, **own}, ensure_ascii=False, separators=(",", ":"))


def _head(trial: Trial, result: Result) -> tuple[str, Mapping[str, Any]]:
    return "run", {
        "case_id": trial.case.id,
        "repeat": trial.repeat,
        "outcome": result.outcome.value,
        "detail": result.detail,
        "client_seconds": round(trial.seconds, 6),
        "refusal": trial.refusal,
        "error": trial.error,
        "run": _without_logs(trial.run),
    }


def _without_logs(run: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if run is None or not run.get("result"):
        return run
    result = {name: value for name, value in run["result"].items() if name != "logs"}
    return {**run, "result": result}


def _logs(run: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for entry in ((run or {}).get("result") or {}).get("logs") or []:
        yield "log", entry


def _calls(trace: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    nodes = (trace or {}).get("snapshot", {}).get("nodes", {}).values()
    for node in sorted(nodes, key=lambda node: int(node["node_id"].lstrip("n"))):
        yield "call", node
