"""The options of the ``eval`` command."""

from pathlib import Path
from typing import Annotated

import typer

from app.harness.dataset import Mode

_RUNNING = "How the cases are run"
_CHOOSING = "Which cases"
_TARGETS = "Targets"

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
Blind = Annotated[
    bool,
    typer.Option(
        "--blind",
        help="Keep the gold answers from the service's verifier, which then knows no more than"
        " with any caller; tells how often it is wrong about itself.",
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
    typer.Option(help="Not these, said like --only.", rich_help_panel=_CHOOSING),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="So many at the most.", rich_help_panel=_CHOOSING)
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Where metrics.json, report.md and a trace for each case go; what an earlier"
        " evaluation left there is replaced. Default: evaluations/<id>."
    ),
]
Compare = Annotated[Path | None, typer.Option(help="The metrics.json of an earlier evaluation.")]
Gate = Annotated[bool, typer.Option(help="Exit with 1 if a target is missed.")]
MinSuccess = Annotated[
    float, typer.Option(min=0, max=1, help="Least success@1.", rich_help_panel=_TARGETS)
]
MaxEscalation = Annotated[
    float, typer.Option(min=0, max=1, help="Most escalation_rate.", rich_help_panel=_TARGETS)
]
MaxEasyLatency = Annotated[
    float, typer.Option(min=0, help="Most p95_latency_easy.", rich_help_panel=_TARGETS)
]
MaxMeanCost = Annotated[
    float | None, typer.Option(min=0, help="Most USD a case.", rich_help_panel=_TARGETS)
]
MaxMeanTokens = Annotated[
    float | None, typer.Option(min=0, help="Most tokens a case.", rich_help_panel=_TARGETS)
]
MaxSuccessDrop = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="With --compare: by how much success@1 may fall.",
        rich_help_panel=_TARGETS,
    ),
]
MaxLatencyGrowth = Annotated[
    float,
    typer.Option(
        min=1,
        help="With --compare: by what factor p95_latency_easy may grow.",
        rich_help_panel=_TARGETS,
    ),
]
