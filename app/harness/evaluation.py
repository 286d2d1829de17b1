"""One evaluation from beginning to end."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.harness.dataset import Dataset, DatasetError
from app.harness.folder import OutputFolder
from app.harness.gates import (
    Allowance,
    IncomparableError,
    Miss,
    Targets,
    log_warnings,
    missed,
    regressions,
    require_comparable,
)
from app.harness.metrics import Metrics, metrics_of
from app.harness.report import report_of
from app.harness.results import Result, result_of
from app.harness.runner import Runner, RunOptions
from app.harness.trials import Service, Trial

Progress = Callable[[Result], None]
"""Told each result as soon as it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to evaluate, and what is expected of it."""

    dataset: Dataset
    folder: OutputFolder
    evaluation_id: str
    run: RunOptions = field(default_factory=RunOptions)
    targets: Targets = field(default_factory=Targets)
    earlier: Metrics | None = None
    """Metrics of an earlier evaluation."""
    allowance: Allowance = field(default_factory=Allowance)
    selection: dict[str, Any] = field(default_factory=dict)
    """How the cases were chosen from their file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came of it."""

    metrics: Metrics
    results: tuple[Result, ...]
    misses: tuple[Miss, ...]


def new_evaluation_id() -> str:
    """Return an id that tells the time and is unlikely to be anyone else's."""
    return f"eval-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def read_metrics(path: Path) -> Metrics:
    """Read the metrics of an earlier evaluation.

    Raises:
        DatasetError: the file is missing or holds no metrics that can be compared.
    """
    try:
        return require_comparable(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError, IncomparableError) as error:
        raise DatasetError(f"{path}: {error}") from None


async def evaluate(plan: Plan, service: Service, progress: Progress) -> Evaluation:
    """Run the cases, write the folder, and log a warning for every target that was missed.

    An evaluation that is interrupted writes what it has and judges nothing.

    Raises:
        CancelledError: it was interrupted; the runs under way were cancelled.
        ServiceUnreachableError: nobody answers.
        ApiError: what answers is not the service.
        OSError: the folder cannot be written.
    """
    version = await service.service_version()
    plan.folder.prepare()
    record = _Record(plan, version, progress)
    runner = Runner(service, plan.run, evaluation_id=plan.evaluation_id)
    try:
        await runner.run(plan.dataset.cases, record.add)
    except asyncio.CancelledError:
        metrics = record.metrics(interrupted=True)
        plan.folder.finish(metrics, report_of(metrics, record.results, ()))
        raise
    return _concluded(plan, record.results, record.metrics())


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
        self._progress(result)

    @property
    def results(self) -> tuple[Result, ...]:
        """All results, in the order of the data set."""
        return _in_order(self._plan.dataset, self._results)

    def metrics(self, *, interrupted: bool = False) -> Metrics:
        """Return the figures of what was measured."""
        about = _about(self._plan, self._version, self._began, time.monotonic() - self._clock)
        return metrics_of(self.results, {**about, "interrupted": interrupted})


def _concluded(plan: Plan, results: tuple[Result, ...], metrics: Metrics) -> Evaluation:
    misses = missed(metrics, plan.targets)
    if plan.earlier is not None:
        misses += regressions(metrics, plan.earlier, plan.allowance)
    plan.folder.finish(metrics, report_of(metrics, results, misses, plan.earlier))
    log_warnings(misses, plan.evaluation_id)
    return Evaluation(metrics=metrics, results=results, misses=tuple(misses))


def _in_order(dataset: Dataset, results: list[Result]) -> tuple[Result, ...]:
    places = {case.id: place for place, case in enumerate(dataset.cases)}
    return tuple(sorted(results, key=lambda result: (places[result.case.id], result.repeat)))


def _about(plan: Plan, version: str, began: datetime, seconds: float) -> dict[str, Any]:
    run = plan.run
    return {
        "id": plan.evaluation_id,
        "started_at": began.isoformat(timespec="milliseconds"),
        "duration_seconds": round(seconds, 3),
        "service_version": version,
        "dataset": {
            "name": plan.dataset.name,
            "sha256": plan.dataset.sha256,
            "cases": len(plan.dataset.cases),
            **plan.selection,
        },
        "mode": run.mode,
        "seed": run.seed,
        "repeat": run.repeat,
        "concurrency": run.concurrency,
        "gold_sent": run.sends_gold,
    }
