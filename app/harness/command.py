"""The ``eval`` command: what its options mean, and how its end is told.

Exit code 0: the targets are met, or ``--no-gate``. 1: a target was missed. 2: nothing was measured,
because of the options, the data set or the service. 130: it was interrupted; what is under way was
cancelled, and what had ended is written.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import typer
from rich.console import Console

from app.client import ApiError, CaseworkerClient, ServiceUnreachableError
from app.harness import options
from app.harness.dataset import Dataset, DatasetError, load_dataset
from app.harness.evaluation import Plan, evaluate, new_evaluation_id, read_metrics
from app.harness.folder import OutputFolder
from app.harness.gates import Allowance, Targets
from app.harness.progress import progress_bar
from app.harness.runner import RunOptions
from app.harness.summary import print_summary

T = TypeVar("T")

_FOLDER = Path("evaluations")
_MISSED, _NOT_MEASURED, _INTERRUPTED = 1, 2, 130
_TARGETS, _ALLOWANCE = Targets(), Allowance()


class WithClient(Protocol):
    """Opens a client of a URL, or of the application in this process, and has it used."""

    def __call__(self, use: Callable[[CaseworkerClient], Awaitable[T]], *, url: str | None) -> T:
        """Return what ``use`` makes of the client, which is closed then."""
        ...


def evaluation_command(with_client: WithClient) -> Callable[..., None]:
    """Return the command that evaluates whatever ``with_client`` opens."""

    def command(
        dataset: options.DatasetFile,
        url: options.Url = None,
        mode: options.ModeName = None,
        concurrency: options.Concurrency = 4,
        repeat: options.Repeat = 1,
        seed: options.Seed = None,
        blind: options.Blind = False,
        timeout_seconds: options.Timeout = 120.0,
        only: options.Only = None,
        skip: options.Skip = None,
        limit: options.Limit = None,
        out: options.Out = None,
        compare: options.Compare = None,
        gate: options.Gate = True,
        min_success: options.MinSuccess = _TARGETS.min_success,
        max_escalation_rate: options.MaxEscalation = _TARGETS.max_escalation_rate,
        max_p95_latency_easy_seconds: options.MaxEasyLatency = (
            _TARGETS.max_p95_latency_easy_seconds
        ),
        max_mean_cost_usd: options.MaxMeanCost = None,
        max_mean_tokens: options.MaxMeanTokens = None,
        max_success_drop: options.MaxSuccessDrop = _ALLOWANCE.max_success_drop,
        max_latency_growth: options.MaxLatencyGrowth = _ALLOWANCE.max_latency_growth,
    ) -> None:
        """Run a data set of cases against the service and measure how it does."""
        chosen = {"only": only or [], "skip": skip or [], "limit": limit}
        evaluation_id = new_evaluation_id()
        plan = Plan(
            dataset=_dataset(dataset, chosen),
            folder=OutputFolder(out or _FOLDER / evaluation_id),
            evaluation_id=evaluation_id,
            run=RunOptions(
                mode=mode,
                seed=seed,
                repeat=repeat,
                concurrency=concurrency,
                timeout_seconds=timeout_seconds,
                sends_gold=not blind,
            ),
            targets=Targets(
                min_success=min_success,
                max_escalation_rate=max_escalation_rate,
                max_p95_latency_easy_seconds=max_p95_latency_easy_seconds,
                max_mean_cost_usd=max_mean_cost_usd,
                max_mean_tokens=max_mean_tokens,
            ),
            earlier=None if compare is None else _or_refused(read_metrics, compare),
            allowance=Allowance(
                max_success_drop=max_success_drop, max_latency_growth=max_latency_growth
            ),
            selection=chosen,
        )
        _carry_out(plan, with_client, url, gate=gate)

    return command


def _dataset(path: Path, chosen: dict[str, Any]) -> Dataset:
    def load() -> Dataset:
        return load_dataset(path).selected(**chosen)

    return _or_refused(load)


def _or_refused(read: Callable[..., T], *arguments: object) -> T:
    try:
        return read(*arguments)
    except DatasetError as error:
        _refuse(str(error))


def _carry_out(plan: Plan, with_client: WithClient, url: str | None, *, gate: bool) -> None:
    total = len(plan.dataset.cases) * plan.run.repeat
    try:
        with progress_bar(Console(stderr=True), total) as told:
            evaluation = with_client(lambda client: evaluate(plan, client, told), url=url)
    except (ApiError, ServiceUnreachableError, OSError) as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; what had ended until then stands in {plan.folder.path}\n")
        raise typer.Exit(_INTERRUPTED) from None
    print_summary(Console(highlight=False), evaluation.metrics, plan.folder.path)
    for miss in evaluation.misses:
        sys.stderr.write(f"target missed: {miss.message}\n")
    if evaluation.misses and gate:
        raise typer.Exit(_MISSED)


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise typer.Exit(_NOT_MEASURED)
