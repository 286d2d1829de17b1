"""The ``eval`` command: its options, progress bar and exit codes.

Exit code 0: all targets are met, or ``--no-gate``. 1: a target was missed. 2: nothing was measured
because of the options, the data set or the service. 130: the evaluation was interrupted; running
cases were cancelled, and the finished ones are written.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import typer
from caseworker_client import AsyncCaseworkerClient, CaseworkerError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from caseworker.harness.dataset import Dataset, DatasetError, Mode, load_dataset
from caseworker.harness.evaluation import (
    Evaluation,
    OutputFolder,
    Plan,
    evaluate,
    new_evaluation_id,
)
from caseworker.harness.gates import Targets, read_metrics
from caseworker.harness.metrics import Metrics
from caseworker.harness.report import summary_of
from caseworker.harness.runner import RunOptions

_FOLDER = Path("evaluations")
_MISSED, _NOT_MEASURED, _INTERRUPTED = 1, 2, 130
_RUN, _TARGETS = RunOptions(), Targets()

_running = partial(typer.Option, rich_help_panel="How the cases are run")
_choosing = partial(typer.Option, rich_help_panel="Which cases")
_target = partial(typer.Option, rich_help_panel="Targets", min=0)
_share = partial(_target, max=1)


class WithClient(Protocol):
    """Opens a client for a URL, or for the application in this process, and runs code with it."""

    def __call__(
        self,
        use: Callable[[AsyncCaseworkerClient], Awaitable[Evaluation]],
        *,
        url: str | None,
        log: Path,
        record: Path | None,
        about: Mapping[str, Any],
    ) -> Evaluation:
        """Call ``use`` with an open client, close the client, and return the result of ``use``.

        Warnings go to the file ``log``. ``record`` is the file in which to store the models'
        replies, with ``about`` as its header.
        """
        ...


def evaluation_command(with_client: WithClient) -> Callable[..., None]:
    """Return the command that evaluates the service which ``with_client`` connects to."""

    def command(
        dataset: Annotated[
            Path,
            typer.Argument(help="JSON array of {id, input, expected_tools?, gold_answer?, …}."),
        ],
        url: Annotated[
            str | None,
            _running(
                help="A service that listens somewhere; left out, the application runs in this"
                " process, on the configured database."
            ),
        ] = None,
        mode: Annotated[Mode | None, _running(help="For cases that name none.")] = None,
        concurrency: Annotated[
            int, _running(min=1, max=256, help="Cases at a time.")
        ] = _RUN.concurrency,
        repeat: Annotated[int, _running(min=1, max=1000, help="Runs of each case.")] = _RUN.repeat,
        seed: Annotated[int | None, _running(help="Sent with every run.")] = None,
        with_gold: Annotated[
            bool,
            _running(
                "--with-gold/--blind",
                help="Whether the service's verifier sees the gold answers, or knows no more than"
                " with any caller, which tells how often it is wrong about itself.",
            ),
        ] = False,
        record: Annotated[
            Path | None,
            _running(
                help="Keep in this file what the models reply, for the provider recorded to replay;"
                " an earlier recording is replaced. In process only."
            ),
        ] = None,
        timeout_seconds: Annotated[
            float, _running(min=0.1, help="How long a case may take before it is cancelled.")
        ] = _RUN.timeout_seconds,
        only: Annotated[
            list[str] | None,
            _choosing(
                help="Cases with this id, family, difficulty or tag; * stands for anything;"
                " repeatable."
            ),
        ] = None,
        skip: Annotated[list[str] | None, _choosing(help="Not these, chosen like --only.")] = None,
        sample: Annotated[
            int | None, _choosing(min=1, help="So many of them, drawn at random.")
        ] = None,
        sample_seed: Annotated[
            int, _choosing(help="The same one draws the same cases for --sample.")
        ] = 0,
        limit: Annotated[int | None, _choosing(min=1, help="So many at the most.")] = None,
        all_cases: Annotated[
            bool,
            _choosing(
                "--all",
                help="Also cases that need a model where the service has built-in planner only.",
            ),
        ] = False,
        out: Annotated[
            Path | None,
            typer.Option(
                help="Where metrics.json, report.md, log.jsonl and a trace for each case go; what"
                " an earlier evaluation left there is replaced. Default: evaluations/<id>."
            ),
        ] = None,
        compare: Annotated[
            Path | None, typer.Option(help="The metrics.json of an earlier evaluation.")
        ] = None,
        gate: Annotated[bool, typer.Option(help="Exit with 1 if a target is missed.")] = True,
        min_success: Annotated[float, _share(help="Least success@1.")] = _TARGETS.min_success,
        max_escalation_rate: Annotated[
            float, _share(help="Most escalation_rate.")
        ] = _TARGETS.max_escalation_rate,
        max_p95_latency_easy_seconds: Annotated[
            float, _target(help="Most p95_latency_easy.")
        ] = _TARGETS.max_p95_latency_easy_seconds,
        max_mean_cost_usd: Annotated[float | None, _target(help="Most USD a case.")] = None,
        max_mean_tokens: Annotated[float | None, _target(help="Most tokens a case.")] = None,
        max_falsely_verified: Annotated[
            int, _target(help="Most wrong answers passed off as verified.")
        ] = _TARGETS.max_falsely_verified,
        max_success_drop: Annotated[
            float, _share(help="With --compare: by how much success@1 may fall.")
        ] = _TARGETS.max_success_drop,
        max_latency_growth: Annotated[
            float, _target(min=1, help="With --compare: by what factor p95_latency_easy may grow.")
        ] = _TARGETS.max_latency_growth,
    ) -> None:
        """Run a data set of cases against the service and measure how it does."""
        if record is not None and url is not None:
            _refuse("--record keeps what models reply in this process; it does not go with --url.")
        evaluation_id = new_evaluation_id()
        selection: dict[str, Any] = {"only": only or [], "skip": skip or [], "limit": limit}
        if sample is not None:
            selection |= {"sample": sample, "sample_seed": sample_seed}
        cases, earlier = _read(dataset, selection, compare)
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
                max_success_drop=max_success_drop,
                max_latency_growth=max_latency_growth,
            ),
            earlier=earlier,
        )
        evaluation = _evaluated(plan, with_client, url, record)
        typer.echo(summary_of(evaluation.metrics, plan.folder.path), nl=False)
        for miss in evaluation.misses:
            sys.stderr.write(f"target missed: {miss.message}\n")
        if evaluation.misses and gate:
            raise typer.Exit(_MISSED)

    return command


def _read(
    dataset: Path, selection: Mapping[str, Any], compare: Path | None
) -> tuple[Dataset, Metrics | None]:
    try:
        cases = load_dataset(dataset)
        cases.selected(**selection)  # fail before the service starts
        return cases, None if compare is None else read_metrics(compare)
    except DatasetError as error:
        _refuse(str(error))


def _evaluated(
    plan: Plan, with_client: WithClient, url: str | None, record: Path | None
) -> Evaluation:
    """Run the evaluation with a progress bar, which is shown only on a terminal."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("evaluating", total=None)
            return with_client(
                lambda client: evaluate(
                    plan, client, lambda total: bar.update(task, advance=1, total=total)
                ),
                url=url,
                log=plan.folder.log,
                record=record,
                about=plan.conditions,
            )
    except (CaseworkerError, DatasetError, OSError) as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; what had ended until then stands in {plan.folder.path}\n")
        raise typer.Exit(_INTERRUPTED) from None


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise typer.Exit(_NOT_MEASURED)
