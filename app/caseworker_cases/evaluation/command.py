"""The ``eval`` command: its options, progress bar and exit codes.

Exit code 0: no target was missed, or ``--no-gate`` was given. 1: a target was missed. 2: nothing
was measured because of the options, the data set or the service. 130: the evaluation was
interrupted; running cases were cancelled, and results of finished cases were written.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import typer
from caseworker_client import AsyncCaseworkerClient, CaseworkerError, RetryPolicy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from caseworker.platform.printable import printable
from caseworker_cases.evaluation.dataset import Dataset, DatasetError, Mode, load_dataset
from caseworker_cases.evaluation.evaluation import (
    Evaluation,
    EvaluationPlan,
    OutputFolder,
    evaluate,
    new_evaluation_id,
)
from caseworker_cases.evaluation.gates import Targets, read_metrics
from caseworker_cases.evaluation.metrics import Metrics
from caseworker_cases.evaluation.report import summary_of
from caseworker_cases.evaluation.runner import RETRY, RunOptions

_FOLDER = Path("evaluations")
_MISSED, _NOT_MEASURED, _INTERRUPTED = 1, 2, 130
_RUN, _TARGETS = RunOptions(), Targets()

_running = partial(typer.Option, rich_help_panel="Execution")
_choosing = partial(typer.Option, rich_help_panel="Which cases")
_target = partial(typer.Option, rich_help_panel="Targets", min=0)
_share = partial(_target, max=1)


class WithClient(Protocol):
    """Function that opens an API client and runs code with it.

    The client talks to a URL, or to the application in this process.
    """

    def __call__(
        self,
        use: Callable[[AsyncCaseworkerClient], Awaitable[Evaluation]],
        *,
        url: str | None,
        log: Path,
        record: Path | None,
        about: Mapping[str, Any],
        retry: RetryPolicy,
    ) -> Evaluation:
        """Call ``use`` with an open client, close the client, and return the result of ``use``.

        The client retries as ``retry`` says. Warnings go to the file ``log``. ``record`` is the
        file in which to store the models' replies, with ``about`` as its header.
        """
        ...


def evaluation_command(with_client: WithClient) -> Callable[..., None]:
    """Return the CLI command that evaluates the service to which ``with_client`` connects."""

    def command(
        dataset: Annotated[
            Path,
            typer.Argument(
                help="JSON file with an array of {id, input, expected_tools?, gold_answer?, …}."
            ),
        ],
        url: Annotated[
            str | None,
            _running(
                help="URL of a running service (default: run the application in this process, "
                "with the configured database)."
            ),
        ] = None,
        mode: Annotated[Mode | None, _running(help="Mode for cases that do not set one.")] = None,
        concurrency: Annotated[
            int, _running(min=1, max=256, help="Number of concurrent cases.")
        ] = _RUN.concurrency,
        repeat: Annotated[
            int, _running(min=1, max=1000, help="Number of runs per case.")
        ] = _RUN.repeat,
        seed: Annotated[int | None, _running(help="Budget sent with every run.")] = None,
        with_gold: Annotated[
            bool,
            _running(
                "--with-gold/--blind",
                help="Whether the verifier of the service receives the gold answers. Without "
                "them, the evaluation measures how often the verifier is wrong.",
            ),
        ] = False,
        record: Annotated[
            Path | None,
            _running(
                help="Record model replies to this file, for replay by the provider `recorded`. "
                "An existing file is overwritten. Not with --url."
            ),
        ] = None,
        timeout_seconds: Annotated[
            float, _running(min=0.1, help="Seconds before a case is cancelled.")
        ] = _RUN.timeout_seconds,
        only: Annotated[
            list[str] | None,
            _choosing(
                help="Run only cases with this ID, family, difficulty or tag; * is a wildcard. "
                "Repeatable."
            ),
        ] = None,
        skip: Annotated[
            list[str] | None, _choosing(help="Exclude cases; same patterns as --only.")
        ] = None,
        sample: Annotated[
            int | None, _choosing(min=1, help="Number of cases to select at random.")
        ] = None,
        sample_seed: Annotated[int, _choosing(help="Random seed for --sample.")] = 0,
        limit: Annotated[int | None, _choosing(min=1, help="Maximum number of cases.")] = None,
        all_cases: Annotated[
            bool,
            _choosing(
                "--all",
                help=(
                    "Include cases that require a model even if the service has only the "
                    "built-in planner."
                ),
            ),
        ] = False,
        out: Annotated[
            Path | None,
            typer.Option(
                help="Output folder for metrics.json, report.md, log.jsonl and one trace per "
                "case. Files of an earlier evaluation are overwritten. Default: "
                "evaluations/<id>."
            ),
        ] = None,
        compare: Annotated[
            Path | None, typer.Option(help="metrics.json of an earlier evaluation to compare with.")
        ] = None,
        gate: Annotated[
            bool, typer.Option(help="Exit with status 1 if a target is missed.")
        ] = True,
        min_success: Annotated[float, _share(help="Least success@1.")] = _TARGETS.min_success,
        max_escalation_rate: Annotated[
            float, _share(help="Most escalation_rate.")
        ] = _TARGETS.max_escalation_rate,
        max_p95_latency_easy_seconds: Annotated[
            float, _target(help="Most p95_latency_easy.")
        ] = _TARGETS.max_p95_latency_easy_seconds,
        max_mean_cost_usd: Annotated[float | None, _target(help="Maximum USD per case.")] = None,
        max_mean_tokens: Annotated[float | None, _target(help="Maximum tokens per case.")] = None,
        max_falsely_verified: Annotated[
            int, _target(help="Maximum number of wrong answers reported as verified.")
        ] = _TARGETS.max_falsely_verified,
        max_success_drop: Annotated[
            float, _share(help="With --compare: maximum decrease of success@1.")
        ] = _TARGETS.max_success_drop,
        max_latency_growth: Annotated[
            float, _target(min=1, help="With --compare: maximum growth factor of p95_latency_easy.")
        ] = _TARGETS.max_latency_growth,
    ) -> None:
        """Run a data set of cases against the service and measure how it does."""
        if record is not None and url is not None:
            _refuse("--record records replies of this process and cannot be combined with --url.")
        evaluation_id = new_evaluation_id()
        selection: dict[str, Any] = {"only": only or [], "skip": skip or [], "limit": limit}
        if sample is not None:
            selection |= {"sample": sample, "sample_seed": sample_seed}
        cases, earlier = _read(dataset, selection, compare)
        plan = EvaluationPlan(
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
        typer.echo(printable(summary_of(evaluation.metrics, plan.folder.path)), nl=False)
        for miss in evaluation.misses:
            sys.stderr.write(f"target missed: {printable(miss.message)}\n")
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
    plan: EvaluationPlan, with_client: WithClient, url: str | None, record: Path | None
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
                retry=RETRY,
            )
    except (CaseworkerError, DatasetError, OSError) as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; partial results are in {plan.folder.path}\n")
        raise typer.Exit(_INTERRUPTED) from None


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"{printable(message)}\n")
    raise typer.Exit(_NOT_MEASURED)
