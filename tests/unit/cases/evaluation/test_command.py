"""Options and exit codes of the evaluation command."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import typer
from caseworker_client import AsyncCaseworkerClient, ServiceUnreachableError
from typer.testing import CliRunner, Result

from caseworker_cases.evaluation.command import evaluation_command
from tests.unit.cases.evaluation.recorded import HangingService, RecordedService, a_run

T = TypeVar("T")

CASES = [
    {"id": "right", "input": "What is 20 + 22?", "gold_answer": "42", "tags": ["good"]},
    {"id": "wrong", "input": "What is 20 + 21?", "gold_answer": "41"},
]


ALLOWED = ("--max-falsely-verified", "2")


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """Two cases, one of which fails."""
    path = tmp_path / "set.json"
    path.write_text(json.dumps(CASES))
    return str(path)


def called(service: RecordedService, *arguments: str) -> Result:
    """Call the command with a given service instead of a URL."""

    def with_client(use: Callable[[AsyncCaseworkerClient], Awaitable[T]], **_: Any) -> T:
        async def used() -> T:
            return await use(service)

        return asyncio.run(used())

    cli = typer.Typer(pretty_exceptions_enable=False)
    cli.command()(evaluation_command(with_client))
    return CliRunner().invoke(cli, arguments)


def out(folder: Path) -> tuple[str, str]:
    return "--out", str(folder / "out")


@pytest.mark.req("002/12.3", "002/16.3", "002/26.1", "002/26.3")
def test_a_missed_target_ends_with_1_and_a_line_for_each(tmp_path: Path, dataset: str) -> None:
    """Each missed target is a line on standard error, and the exit code is 1."""

    def costly(body: Mapping[str, Any]) -> dict[str, Any]:
        return a_run(run_id=body["run_id"], cost_usd=0.02)

    limits = ("--max-mean-tokens", "109", "--max-mean-cost-usd", "0.019")
    ended = called(RecordedService(costly), dataset, *out(tmp_path), *limits)

    assert ended.exit_code == 1
    assert [line for line in ended.stderr.splitlines() if line.startswith("target missed")] == [
        "target missed: success@1 is 0.5000, below the target of 0.95",
        "target missed: mean_cost_usd_per_case is 0.02 USD, above the target of 0.019",
        "target missed: mean_tokens_per_case is 110 tokens, above the target of 109",
        "target missed: falsely_verified is 1, above the target of 0: wrong answers reported as "
        "verified",
    ]


def test_without_a_gate_the_same_ends_with_0(tmp_path: Path, dataset: str) -> None:
    """With --no-gate, missed targets are printed and the exit code is 0."""
    ended = called(RecordedService(), dataset, *out(tmp_path), "--no-gate")

    assert ended.exit_code == 0
    assert "target missed" in ended.stderr


@pytest.mark.req("002/7.5")
def test_met_targets_end_with_0_and_the_figures(tmp_path: Path, dataset: str) -> None:
    """If no target is missed, the exit code is 0 and the figures are printed."""
    ended = called(RecordedService(), dataset, *out(tmp_path), "--min-success", "0.5", *ALLOWED)

    assert ended.exit_code == 0
    assert "target missed" not in ended.stderr
    figures = dict(line.split(maxsplit=1) for line in ended.stdout.splitlines() if line)
    assert figures["success@1"].strip() == "0.5"
    assert figures["avg_llm_small"].strip() == "1"
    assert figures["mean_tokens_per_case"].strip() == "110"
    assert {"avg_llm_big", "avg_tool_calls", "avg_act_steps", "mean_cost_usd_per_case"} <= set(
        figures
    )
    assert "report.md" in figures["report"]


@pytest.mark.parametrize(
    ("option", "cases"), [(("--only", "good"), 1), (("--skip", "good"), 1), (("--limit", "2"), 2)]
)
def test_cases_can_be_chosen(
    tmp_path: Path, dataset: str, option: tuple[str, str], cases: int
) -> None:
    """The chosen cases are run, and the metrics contain their number."""
    service = RecordedService()

    called(service, dataset, *out(tmp_path), *option)

    assert len(service.posted) == cases
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["evaluation"]["dataset"]["cases"] == cases


def test_options_reach_the_service(tmp_path: Path, dataset: str) -> None:
    """Mode, seed and repeats are sent; gold answers only with --with-gold."""
    service = RecordedService()
    options = ("--mode", "fallback_only", "--seed", "5", "--repeat", "3", "--limit", "1")

    called(service, dataset, *out(tmp_path), *options)
    called(service, dataset, *out(tmp_path), *options, "--with-gold")

    assert len(service.posted) == 6
    assert {(body["mode"], body["seed"]) for body in service.posted} == {("fallback_only", 5)}
    gold = [body.get("gold_answer") for body in service.posted]
    assert gold == [None] * 3 + ["42"] * 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("absent.json",),
        ("{}", "--mode", "quick"),
        ("{}", "--repeat", "0"),
        ("{}", "--only", "nothing"),
        ("{}", "--compare", "absent.json"),
        ("{}", "--min-success", "95"),
        ("{}", "--record", "recording.jsonl", "--url", "http://127.0.0.1:8080"),
        (),
    ],
)
def test_what_cannot_be_measured_ends_with_2(dataset: str, arguments: tuple[str, ...]) -> None:
    """Invalid arguments lead to exit code 2 before any request is sent."""
    service = RecordedService()

    ended = called(service, *(argument.replace("{}", dataset) for argument in arguments))

    assert ended.exit_code == 2
    assert ended.stderr
    assert service.posted == []


def test_a_service_that_does_not_answer_ends_with_2(tmp_path: Path, dataset: str) -> None:
    """An unreachable service leads to exit code 2 without a missed target."""

    class Absent(RecordedService):
        async def service_version(self) -> str:
            raise ServiceUnreachableError("No answer from http://nowhere")

    ended = called(Absent(), dataset, *out(tmp_path))

    assert (ended.exit_code, ended.stderr) == (2, "No answer from http://nowhere\n")


def test_a_folder_that_cannot_be_written_ends_with_2(tmp_path: Path, dataset: str) -> None:
    """An output path that is a file leads to exit code 2."""
    (tmp_path / "out").write_text("")

    ended = called(RecordedService(), dataset, *out(tmp_path))

    assert ended.exit_code == 2
    assert "out" in ended.stderr


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore SIGINT handling, which the parent process may have disabled."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_ends_with_130_and_says_where_the_rest_is(
    tmp_path: Path, dataset: str
) -> None:
    """An interruption cancels the current run and reports no missed target."""

    class Interrupting(HangingService):
        async def run_of(self, body: Mapping[str, Any]) -> dict[str, Any]:
            os.kill(os.getpid(), signal.SIGINT)
            return await super().run_of(body)

    service = Interrupting()

    ended = called(service, dataset, *out(tmp_path), "--concurrency", "1")

    folder = tmp_path / "out"
    assert ended.exit_code == 130
    assert ended.stderr == f"interrupted; partial results are in {folder}\n"
    assert len(service.cancelled) == 1
    assert json.loads((folder / "metrics.json").read_text())["evaluation"]["interrupted"] is True


@pytest.mark.req("002/26.5")
def test_an_earlier_evaluation_bars_a_worse_one(tmp_path: Path, dataset: str) -> None:
    """A lower success rate than before misses the target, unless that drop is allowed."""
    called(RecordedService(), dataset, *out(tmp_path), "--no-gate")
    earlier = tmp_path / "earlier.json"
    (tmp_path / "out" / "metrics.json").rename(earlier)

    def worse(body: Mapping[str, Any]) -> dict[str, Any]:
        return a_run("0", run_id=body["run_id"])

    compared = (
        dataset,
        *out(tmp_path),
        *("--compare", str(earlier), "--min-success", "0"),
        *ALLOWED,
    )
    ended = called(RecordedService(worse), *compared)
    allowed = called(RecordedService(worse), *compared, "--max-success-drop", "0.5")

    assert ended.exit_code == 1
    assert "success@1 fell from 0.5000 to 0.0000" in ended.stderr
    assert allowed.exit_code == 0
