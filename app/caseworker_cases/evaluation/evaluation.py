"""Runs one evaluation from start to finish, and writes its output folder."""

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

from caseworker_cases.evaluation.dataset import Dataset
from caseworker_cases.evaluation.gates import Miss, Targets, log_warnings, missed
from caseworker_cases.evaluation.metrics import Metrics, metrics_of
from caseworker_cases.evaluation.report import report_of
from caseworker_cases.evaluation.results import JudgedTrial, Trial, result_of, trace_nodes
from caseworker_cases.evaluation.runner import Runner, RunOptions

Progress = Callable[[int], None]
"""Callback invoked after each trial with the total number of trials, to update a progress
display."""

BUILTIN_PLANNER = "offline"
"""Provider name that the service reports for its built-in planner."""

METRICS = "metrics.json"
REPORT = "report.md"
_TRACE = ".trace.jsonl"


class OutputFolder:
    """The output files: ``metrics.json``, ``report.md``, ``log.jsonl`` and one trace for each case.

    A trace, ``<case id>.trace.jsonl``, has one JSON object per line, each with ``type`` and
    ``run_id``. The first is a ``run`` (run, case and outcome). A ``log`` follows for each entry of
    the case's log. Then comes a ``call`` for each call node, in the order of creation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.jsonl"

    def prepare(self) -> None:
        """Create the folder and delete the output of an earlier evaluation.

        Raises:
            OSError: the folder cannot be created or cleared.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for pattern in (METRICS, REPORT, f"*{_TRACE}"):
            for old_file in self.path.glob(pattern):
                old_file.unlink()

    def add(self, trial: Trial, result: JudgedTrial) -> None:
        """Append a trial's trace to the file of its case."""
        with (self.path / f"{trial.case.id}{_TRACE}").open("a", encoding="utf-8") as file:
            for kind, rest in _records(trial, result):
                identity = {"type": kind, "run_id": trial.run_id}
                line = json.dumps(
                    {**identity, **rest, **identity}, ensure_ascii=False, separators=(",", ":")
                )
                file.write(f"{line}\n")

    def finish(self, metrics: Metrics, report: str) -> None:
        """Write ``metrics.json`` and ``report.md``."""
        text = json.dumps(metrics, indent=2, ensure_ascii=False)
        (self.path / METRICS).write_text(f"{text}\n", encoding="utf-8")
        (self.path / REPORT).write_text(report, encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """The data set, options and targets of an evaluation."""

    dataset: Dataset
    """All cases in the file. ``selection`` and the service's models decide which of them run."""
    folder: OutputFolder
    evaluation_id: str
    run: RunOptions = field(default_factory=RunOptions)
    targets: Targets = field(default_factory=Targets)
    earlier: Metrics | None = None
    """Metrics of an earlier evaluation to compare with; None compares with nothing."""
    selection: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for ``Dataset.selected``."""
    all_cases: bool = False
    """Whether to run cases that need a model even if the service has none."""
    skipped: int = 0
    """Number of cases that are skipped because they need a model."""

    def for_models(self, tiers: Mapping[str, Mapping[str, Any]]) -> "EvaluationPlan":
        """Return the plan with only the cases that are selected and that the models can run.

        Raises:
            DatasetError: no case is left.
        """
        builtin = all(tier["provider"] == BUILTIN_PLANNER for tier in tiers.values())
        if self.all_cases or not builtin:
            return replace(self, dataset=self.dataset.selected(**self.selection))
        selected = self.dataset.selected(**{**self.selection, "limit": None})
        return replace(
            self,
            dataset=self.dataset.selected(**self.selection, with_models=False),
            skipped=sum(case.needs_model for case in selected.cases),
        )

    @property
    def conditions(self) -> dict[str, Any]:
        """Data set and run options, as stored in the metrics and in recordings."""
        return {
            "dataset": {
                "name": self.dataset.name,
                "sha256": self.dataset.sha256,
                "cases": len(self.dataset.cases),
                "left_out": self.skipped,
                **self.selection,
            },
            "protocol": self.run.protocol,
            "mode": self.run.mode,
            "seed": self.run.seed,
            "repeat": self.run.repeat,
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of an evaluation and the targets that it missed."""

    metrics: Metrics
    misses: list[Miss]


def new_evaluation_id() -> str:
    """Return a 25-character ID that consists of the time and four random hex digits."""
    return f"eval-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


async def evaluate(
    plan: EvaluationPlan, service: AsyncCaseworkerClient, progress: Progress
) -> Evaluation:
    """Run the cases, write the output folder, and log a warning for each missed target.

    An interrupted evaluation writes its results so far and checks no targets.

    Raises:
        DatasetError: no case is left.
        CancelledError: it was interrupted; runs in progress were cancelled.
        ServiceUnreachableError: the service does not respond.
        ApiError: the response is not from the service.
        OSError: the folder cannot be written.
    """
    version = await service.service_version()
    plan = plan.for_models(await service.list_models())
    plan.folder.prepare()
    running = _Running(plan, version, progress)
    runner = Runner(service, plan.run, evaluation_id=plan.evaluation_id)
    try:
        await runner.run(plan.dataset.cases, running.add)
    except asyncio.CancelledError:
        running.conclude(interrupted=True)
        raise
    return running.conclude(interrupted=False)


class _Running:
    """An evaluation in progress: the results of its trials so far."""

    def __init__(self, plan: EvaluationPlan, version: str, progress: Progress) -> None:
        self._plan = plan
        self._version = version
        self._progress = progress
        self._results: list[JudgedTrial] = []
        self._began, self._clock = datetime.now(UTC), time.monotonic()

    def add(self, trial: Trial) -> None:
        """Judge a trial, and write its trace."""
        result, plan = result_of(trial), self._plan
        plan.folder.add(trial, result)
        self._results.append(result)
        self._progress(len(plan.dataset.cases) * plan.run.repeat)

    def conclude(self, *, interrupted: bool) -> Evaluation:
        """Write the results in data set order; check the targets unless interrupted."""
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


def _records(trial: Trial, result: JudgedTrial) -> Iterator[tuple[str, Mapping[str, Any]]]:
    run = dict(trial.run or {})
    result_fields = dict(run.get("result") or {})
    logs = result_fields.pop("logs", None) or []
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
            "run": {**run, "result": result_fields or None} if run else None,
        },
    )
    yield from (("log", entry) for entry in logs)
    yield from (("call", node) for node in trace_nodes(trial.trace))
