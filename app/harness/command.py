"""The ``eval`` command: its options, its progress bar, and its exit codes.

Exit code 0: the targets are met, or ``--no-gate``. 1: a target was missed. 2: nothing was measured,
because of the options, the data set or the service. 130: it was interrupted; what is under way was
cancelled, and what had ended is written.
"""

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.client import ApiError, CaseworkerClient, ServiceUnreachableError
from app.harness.dataset import DatasetError, Mode, load_dataset
from app.harness.evaluation import (
    Evaluation,
    OutputFolder,
    Plan,
    evaluate,
    new_evaluation_id,
    read_metrics,
)
from app.harness.evaluation import Progress as Listener
from app.harness.gates import Allowance, Targets
from app.harness.report import print_summary
from app.harness.results import Result
from app.harness.runner import RunOptions

T = TypeVar("T")

_FOLDER = Path("evaluations")
_MISSED, _NOT_MEASURED, _INTERRUPTED = 1, 2, 130
_RUN, _TARGETS, _ALLOWANCE = RunOptions(), Targets(), Allowance()

_RUNNING = "How the cases are run"
_CHOOSING = "Which cases"
_GATES = "Targets"

DatasetFile = Annotated[
    Path, typer.Argument(help="JSON array of {id, input, expected_tools?, gold_answer?, …}.")
]
Url = Annotated[
    str | None,
    typer.Option(
        help="A service that listens somewhere; left out, the application runs in this process, on"
        " the configured database.",
        rich_help_panel=_RUNNING,
    ),
]
ModeName = Annotated[
    Mode | None, typer.Option(help="For cases that name none.", rich_help_panel=_RUNNING)
]
Concurrency = Annotated[
    int, typer.Option(min=1, max=256, help="Cases at a time.", rich_help_panel=_RUNNING)
]
Repeat = Annotated[
    int, typer.Option(min=1, max=1000, help="Runs of each case.", rich_help_panel=_RUNNING)
]
Seed = Annotated[int | None, typer.Option(help="Sent with every run.", rich_help_panel=_RUNNING)]
WithGold = Annotated[
    bool,
    typer.Option(
        "--with-gold/--blind",
        help="Whether the service's verifier sees the gold answers, or knows no more than with any"
        " caller, which tells how often it is wrong about itself.",
        rich_help_panel=_RUNNING,
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        help="Keep in this file what the models reply, for the provider recorded to replay; an"
        " earlier recording is replaced. In process only.",
        rich_help_panel=_RUNNING,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.1, help="How long a case may take before it is cancelled.", rich_help_panel=_RUNNING
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Cases with this id, family, difficulty or tag; * stands for anything; repeatable.",
        rich_help_panel=_CHOOSING,
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(help="Not these, chosen like --only.", rich_help_panel=_CHOOSING),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="So many at the most.", rich_help_panel=_CHOOSING)
]
AllCases = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Also cases that need a model where the service has only its built-in planner.",
        rich_help_panel=_CHOOSING,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Where metrics.json, report.md, log.jsonl and a trace for each case go; what an"
        " earlier evaluation left there is replaced. Default: evaluations/<id>."
    ),
]
Compare = Annotated[Path | None, typer.Option(help="The metrics.json of an earlier evaluation.")]
Gate = Annotated[bool, typer.Option(help="Exit with 1 if a target is missed.")]
MinSuccess = Annotated[
    float, typer.Option(min=0, max=1, help="Least success@1.", rich_help_panel=_GATES)
]
MaxEscalation = Annotated[
    float, typer.Option(min=0, max=1, help="Most escalation_rate.", rich_help_panel=_GATES)
]
MaxEasyLatency = Annotated[
    float, typer.Option(min=0, help="Most p95_latency_easy.", rich_help_panel=_GATES)
]
MaxMeanCost = Annotated[
    float | None, typer.Option(min=0, help="Most USD a case.", rich_help_panel=_GATES)
]
MaxMeanTokens = Annotated[
    float | None, typer.Option(min=0, help="Most tokens a case.", rich_help_panel=_GATES)
]
MaxFalselyVerified = Annotated[
    int,
    typer.Option(min=0, help="Most wrong answers passed off as verified.", rich_help_panel=_GATES),
]
MaxSuccessDrop = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="With --compare: by how much success@1 may fall.",
        rich_help_panel=_GATES,
    ),
]
MaxLatencyGrowth = Annotated[
    float,
    typer.Option(
        min=1,
        help="With --compare: by what factor p95_latency_easy may grow.",
        rich_help_panel=_GATES,
    ),
]


class WithClient(Protocol):
    """Opens a client of a URL, or of the application in this process, and has it used."""

    def __call__(
        self,
        use: Callable[[CaseworkerClient], Awaitable[T]],
        *,
        url: str | None,
        log: Path,
        record: Path | None,
        about: Mapping[str, Any],
    ) -> T:
        """Return what ``use`` makes of the client, which is closed then.

        Warnings go to the file ``log``. ``record`` is where the models' replies are kept, headed by
        ``about``.
        """
        ...


def evaluation_command(with_client: WithClient) -> Callable[..., None]:
    """Return the command that evaluates whatever ``with_client`` opens."""

    def command(
        dataset: DatasetFile,
        url: Url = None,
        mode: ModeName = None,
        concurrency: Concurrency = _RUN.concurrency,
        repeat: Repeat = _RUN.repeat,
        seed: Seed = None,
        with_gold: WithGold = False,
        record: Record = None,
        timeout_seconds: Timeout = _RUN.timeout_seconds,
        only: Only = None,
        skip: Skip = None,
        limit: Limit = None,
        all_cases: AllCases = False,
        out: Out = None,
        compare: Compare = None,
        gate: Gate = True,
        min_success: MinSuccess = _TARGETS.min_success,
        max_escalation_rate: MaxEscalation = _TARGETS.max_escalation_rate,
        max_p95_latency_easy_seconds: MaxEasyLatency = _TARGETS.max_p95_latency_easy_seconds,
        max_mean_cost_usd: MaxMeanCost = None,
        max_mean_tokens: MaxMeanTokens = None,
        max_falsely_verified: MaxFalselyVerified = _TARGETS.max_falsely_verified,
        max_success_drop: MaxSuccessDrop = _ALLOWANCE.max_success_drop,
        max_latency_growth: MaxLatencyGrowth = _ALLOWANCE.max_latency_growth,
    ) -> None:
        """Run a data set of cases against the service and measure how it does."""
        if record is not None and url is not None:
            _refuse("--record keeps what models reply in this process; it does not go with --url.")
        evaluation_id = new_evaluation_id()
        selection: dict[str, Any] = {"only": only or [], "skip": skip or [], "limit": limit}
        try:
            cases = load_dataset(dataset)
            cases.selected(**selection)  # refused now rather than once the service has started
            earlier = None if compare is None else read_metrics(compare)
        except DatasetError as error:
            _refuse(str(error))
        plan = Plan(
            dataset=cases,
            selection=selection,
            all_cases=all_cases,
            folder=OutputFolder(out or _FOLDER / evaluation_id),
            evaluation_id=evaluation_id,
            run=RunOptions(
                mode=mode,
                seed=seed,
                repeat=repeat,
                concurrency=concurrency,
                timeout_seconds=timeout_seconds,
                protocol="with_gold" if with_gold else "blind",
            ),
            targets=Targets(
                min_success=min_success,
                max_escalation_rate=max_escalation_rate,
                max_p95_latency_easy_seconds=max_p95_latency_easy_seconds,
                max_mean_cost_usd=max_mean_cost_usd,
                max_mean_tokens=max_mean_tokens,
                max_falsely_verified=max_falsely_verified,
            ),
            earlier=earlier,
            allowance=Allowance(
                max_success_drop=max_success_drop, max_latency_growth=max_latency_growth
            ),
        )
        evaluation = _evaluated(plan, with_client, url, record)
        print_summary(Console(highlight=False), evaluation.metrics, plan.folder.path)
        for miss in evaluation.misses:
            sys.stderr.write(f"target missed: {miss.message}\n")
        if evaluation.misses and gate:
            raise typer.Exit(_MISSED)

    return command


@contextmanager
def progress_bar(console: Console) -> Iterator[Listener]:
    """Show how many trials have ended and how many of them failed, on a terminal alone."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    failed = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)

        def show(result: Result, total: int) -> None:
            nonlocal failed
            failed += not result.succeeded
            words = f"evaluating, {failed} failed" if failed else "evaluating"
            bar.update(task, advance=1, total=total, description=words)

        yield show


def _evaluated(
    plan: Plan, with_client: WithClient, url: str | None, record: Path | None
) -> Evaluation:
    try:
        with progress_bar(Console(stderr=True)) as show:
            return with_client(
                lambda client: evaluate(plan, client, show),
                url=url,
                log=plan.folder.log,
                record=record,
                about=plan.conditions,
            )
    except (ApiError, ServiceUnreachableError, DatasetError, OSError) as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; what had ended until then stands in {plan.folder.path}\n")
        raise typer.Exit(_INTERRUPTED) from None


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise typer.Exit(_NOT_MEASURED)
