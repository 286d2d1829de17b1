"""One evaluation from beginning to end, and the folder that it leaves behind."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caseworker_client import AsyncCaseworkerClient

from caseworker.harness.dataset import Dataset
from caseworker.harness.gates import Miss, Targets, log_warnings, missed
from caseworker.harness.metrics import Metrics, metrics_of
from caseworker.harness.report import report_of
from caseworker.harness.results import Result, Trial, result_of, trace_nodes
from caseworker.harness.runner import Runner, RunOptions

Progress = Callable[[int], None]
"""Called as soon as a trial has ended, with the number of trials that there will be."""

BUILTIN_PLANNER = "offline"
"""What the service calls its planner that is no model."""

METRICS = "metrics.json"
REPORT = "report.md"
_TRACE = ".trace.jsonl"


class OutputFolder:
    """``metrics.json``, ``report.md``, a ``<case id>.trace.jsonl`` for each case, ``log.jsonl``.

    A trace has one object a line, each with ``type`` and ``run_id``: first ``run`` (the run, the
    case, the outcome), then a ``log`` for each entry of the case's log, then a ``call`` for each
    CallNode in the order of creation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.jsonl"

    def prepare(self) -> None:
        """Create the folder and remove what an earlier evaluation left in it.

        Raises:
            OSError: that is not possible.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for pattern in (METRICS, REPORT, f"*{_TRACE}"):
            for left in self.path.glob(pattern):
                left.unlink()

    def add(self, trial: Trial, result: Result) -> None:
        """Append the trace of a trial to the file of its case."""
        with (self.path / f"{trial.case.id}{_TRACE}").open("a", encoding="utf-8") as file:
            for kind, rest in _records(trial, result):
                own = {"type": kind, "run_id": trial.run_id}
                line = json.dumps({**own, **rest, **own}, ensure_ascii=False, separators=(",", ":"))
                file.write(f"{line}\n")

    def finish(self, metrics: Metrics, report: str) -> None:
        """Write what the evaluation came to."""
        text = json.dumps(metrics, indent=2, ensure_ascii=False)
        (self.path / METRICS).write_text(f"{text}\n", encoding="utf-8")
        (self.path / REPORT).write_text(report, encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to evaluate, and what is expected of it."""

    dataset: Dataset
    """All cases of the file; which of them are run, ``selection`` and the service decide."""
    folder: OutputFolder
    evaluation_id: str
    run: RunOptions = field(default_factory=RunOptions)
    targets: Targets = field(default_factory=Targets)
    earlier: Metrics | None = None
    """Metrics of an earlier evaluation."""
    selection: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``Dataset.selected``."""
    all_cases: bool = False
    """Whether cases that need a model are run where the service has none, too."""
    left_out: int = 0
    """How many cases were left out because they need a model."""

    def for_models(self, tiers: Mapping[str, Mapping[str, Any]]) -> "Plan":
        """Return the plan with the chosen cases alone, for a service with these models.

        Raises:
            DatasetError: no case is left.
        """
        builtin = all(tier["provider"] == BUILTIN_PLANNER for tier in tiers.values())
        if self.all_cases or not builtin:
            return replace(self, dataset=self.dataset.selected(**self.selection))
        chosen = self.dataset.selected(**{**self.selection, "limit": None})
        return replace(
            self,
            dataset=self.dataset.selected(**self.selection, with_models=False),
            left_out=sum(case.needs_model for case in chosen.cases),
        )

    @property
    def conditions(self) -> dict[str, Any]:
        """What is asked of the service and how, as the metrics and a recording keep it."""
        return {
            "dataset": {
                "name": self.dataset.name,
                "sha256": self.dataset.sha256,
                "cases": len(self.dataset.cases),
                "left_out": self.left_out,
                **self.selection,
            },
            "protocol": self.run.protocol,
            "mode": self.run.mode,
            "seed": self.run.seed,
            "repeat": self.run.repeat,
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of it."""

    metrics: Metrics
    misses: list[Miss]


def new_evaluation_id() -> str:
    """Return an id of 25 characters, made of the time and a few random digits."""
    return f"eval-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


async def evaluate(plan: Plan, service: AsyncCaseworkerClient, progress: Progress) -> Evaluation:
    """Run the cases, write the folder, and log a warning for every target that was missed.

    An evaluation that is interrupted writes what it has and judges nothing.

    Raises:
        DatasetError: no case is left.
        CancelledError: it was interrupted; the runs under way were cancelled.
        ServiceUnreachableError: nobody answers.
        ApiError: what answers is not the service.
        OSError: the folder cannot be written.
    """
    version = await service.service_version()
    plan = plan.for_models(await service.list_models())
    plan.folder.prepare()
    record = _Record(plan, version, progress)
    runner = Runner(service, plan.run, evaluation_id=plan.evaluation_id)
    try:
        await runner.run(plan.dataset.cases, record.add)
    except asyncio.CancelledError:
        record.conclude(interrupted=True)
        raise
    return record.conclude()


class _Record:
    """What an evaluation has measured so far."""

    def __init__(self, plan: Plan, version: str, progress: Progress) -> None:
        self._plan = plan
        self._version = version
        self._progress = progress
        self._results: list[Result] = []
        self._began, self._clock = datetime.now(UTC), time.monotonic()

    def add(self, trial: Trial) -> None:
        """Judge a trial that has ended and keep its trace."""
        result = result_of(trial)
        self._plan.folder.add(trial, result)
        self._results.append(result)
        self._progress(len(self._plan.dataset.cases) * self._plan.run.repeat)

    def conclude(self, *, interrupted: bool = False) -> Evaluation:
        """Write what was measured, in the order of the data set; judge it unless interrupted."""
        plan = self._plan
        places = {case.id: place for place, case in enumerate(plan.dataset.cases)}
        results = sorted(self._results, key=lambda each: (places[each.case.id], each.repeat))
        about = {
            "id": plan.evaluation_id,
            "started_at": self._began.isoformat(timespec="milliseconds"),
            "duration_seconds": round(time.monotonic() - self._clock, 3),
            "service_version": self._version,
            **plan.conditions,
            "concurrency": plan.run.concurrency,
            "interrupted": interrupted,
        }
        metrics = metrics_of(results, about)
        earlier = None if interrupted else plan.earlier
        misses = [] if interrupted else missed(metrics, plan.targets, earlier)
        plan.folder.finish(metrics, report_of(metrics, results, misses, earlier))
        log_warnings(misses, plan.evaluation_id)
        return Evaluation(metrics, misses)


def _records(trial: Trial, result: Result) -> Iterator[tuple[str, Mapping[str, Any]]]:
    run = dict(trial.run or {})
    found = dict(run.get("result") or {})
    logs = found.pop("logs", None) or []
    yield (
        "run",
        {
            "case_id": trial.case.id,
            "repeat": trial.repeat,
            "outcome": result.outcome.value,
            "detail": result.detail,
            "client_seconds": round(trial.seconds, 6),
            "refusal": trial.refusal,
            "error": trial.error,
            "run": {**run, "result": found or None} if run else None,
        },
    )
    yield from (("log", entry) for entry in logs)
    yield from (("call", node) for node in trace_nodes(trial.trace))
