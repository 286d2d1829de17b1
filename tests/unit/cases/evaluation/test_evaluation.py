"""An evaluation, from its cases to its output folder."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from caseworker_cases.evaluation.dataset import Dataset, DatasetError, EvalCase
from caseworker_cases.evaluation.evaluation import (
    Evaluation,
    EvaluationPlan,
    OutputFolder,
    evaluate,
    new_evaluation_id,
)
from caseworker_cases.evaluation.gates import read_metrics
from caseworker_cases.evaluation.runner import RunOptions, run_id_of
from tests.unit.cases.evaluation.recorded import HangingService, RecordedService, a_case, a_run

RIGHT = a_case(id="right", gold_answer="42", family="math", difficulty="easy")
WRONG = a_case(id="wrong", gold_answer="41", input="a | b\n<b>?</b>")


async def evaluated(
    folder: Path, *cases: EvalCase, service: RecordedService | None = None, **plan: Any
) -> Evaluation:
    dataset = Dataset(name="set.json", sha256="abc", cases=cases)
    known: dict[str, Any] = {
        "dataset": dataset,
        "folder": OutputFolder(folder),
        "evaluation_id": "eval-1",
    }
    return await evaluate(
        EvaluationPlan(**{**known, **plan}), service or RecordedService(), lambda total: None
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.req("002/19.2")
async def test_the_report_shows_no_personal_data_of_a_question(tmp_path: Path) -> None:
    """The report redacts personal data of questions, also in shortened ones."""
    mail = "jane.doe@example.org"
    asked = (f"Who is {mail}?", "why " * 20 + mail)
    cases = [
        a_case(id=f"case-{number}", gold_answer="41", input=text)
        for number, text in enumerate(asked)
    ]

    await evaluated(tmp_path, *cases)

    report = (tmp_path / "report.md").read_text()
    assert "Who is [email]?" in report
    assert "jane" not in report


@pytest.mark.req("002/26.2", "002/14.2")
async def test_the_folder_holds_metrics_a_report_and_a_trace_for_each_case(tmp_path: Path) -> None:
    """The folder contains metrics, report and one trace per case, without earlier traces."""
    (tmp_path / "gone.trace.jsonl").write_text("old")
    (tmp_path / "mine.txt").write_text("kept")

    evaluation = await evaluated(tmp_path, RIGHT, WRONG)

    assert names_in(tmp_path) == [
        "metrics.json",
        "mine.txt",
        "report.md",
        "right.trace.jsonl",
        "wrong.trace.jsonl",
    ]
    assert json.loads((tmp_path / "metrics.json").read_text()) == evaluation.metrics


@pytest.mark.req("002/14.2", "002/14.5", "002/22.2", "002/22.5")
async def test_a_trace_is_the_run_then_its_log_then_every_call_in_order(tmp_path: Path) -> None:
    """A trace file has one JSON object per line, grouped by repeat: run, log, then calls."""
    await evaluated(tmp_path, RIGHT, run=RunOptions(repeat=2, concurrency=1))

    lines = lines_of(tmp_path / "right.trace.jsonl")
    once = ["run", "log", "call", "call", "call"]
    assert [line["type"] for line in lines] == once * 2
    assert [line["run_id"] for line in lines] == ["eval-1:right"] * 5 + ["eval-1:right:2"] * 5
    assert [line["node_id"] for line in lines[2:5]] == ["n000001", "n000002", "n000009"]
    head = lines[0]
    assert (head["case_id"], head["outcome"], head["run"]["status"]) == (
        "right",
        "success",
        "completed",
    )
    assert "logs" not in head["run"]["result"]


@pytest.mark.req("002/22.5", "002/26.4")
async def test_metrics_say_what_was_measured_and_how(tmp_path: Path) -> None:
    """The metrics record data set, version, mode, seed, protocol and run IDs."""
    options = RunOptions(mode="fallback_only", seed=7, concurrency=2)

    metrics = (await evaluated(tmp_path, RIGHT, WRONG, run=options)).metrics

    about = metrics["evaluation"]
    assert about["dataset"] == {"name": "set.json", "sha256": "abc", "cases": 2, "left_out": 0}
    assert (about["service_version"], about["mode"], about["seed"]) == ("9.9.9", "fallback_only", 7)
    assert about["protocol"] == "blind"
    assert [case["run_ids"] for case in metrics["cases"]] == [["eval-1:right"], ["eval-1:wrong"]]


@pytest.mark.req("002/16.2", "002/26.3")
async def test_the_report_shows_what_failed_and_why(tmp_path: Path) -> None:
    """The report lists each failed case with input, expected and actual answer, and run ID."""
    await evaluated(tmp_path, RIGHT, WRONG)

    report = (tmp_path / "report.md").read_text()
    assert "1 of 2 trials of 2 cases from `set.json` succeeded. Protocol: blind" in report
    assert "- success@1 is 0.5000, below the target of 0.95" in report
    assert "- falsely_verified is 1, above the target of 0" in report
    failures = report.partition("## Failures")[2].partition("##")[0]
    assert (
        r"| wrong | wrong_answer | a \| b &lt;b>?&lt;/b> | 41 | 42 |"
        " verified but wrong answer | eval-1:wrong |"
    ) in failures
    assert "| right |" not in failures
    assert "| math | 1 | 1 | 1 | 0 | 0 | 1.0 |" in report


async def test_a_good_evaluation_says_so(tmp_path: Path) -> None:
    """If no target is missed, the report has no list of failures."""
    evaluation = await evaluated(tmp_path, RIGHT)

    assert evaluation.misses == []
    report = (tmp_path / "report.md").read_text()
    assert "All targets are met." in report
    assert "## Failures" not in report


@pytest.mark.req("002/26.4", "002/26.5")
async def test_an_evaluation_is_compared_with_an_earlier_one(tmp_path: Path) -> None:
    """The comparison lists new failures, new successes, changed figures and changed settings."""
    steady = a_case(id="steady")
    before = await evaluated(tmp_path / "before", RIGHT, WRONG, steady)

    def worse(body: Mapping[str, Any]) -> dict[str, Any]:
        return a_run("41", run_id=body["run_id"])

    after = await evaluated(
        tmp_path / "after",
        RIGHT,
        WRONG,
        steady,
        service=RecordedService(worse),
        earlier=read_metrics(tmp_path / "before" / "metrics.json"),
        run=RunOptions(seed=3),
        evaluation_id="eval-2",
    )

    assert before.metrics["success@1"] == after.metrics["success@1"] == 0.666667
    report = (tmp_path / "after" / "report.md").read_text()
    compared = report.partition("## Compared with eval-1")[2]
    assert "- Fails now: `right`\n" in compared
    assert "- Succeeds now: `wrong`\n" in compared
    assert "- seed: None before, 3 now" in compared
    assert "| success@1 | 0.666667 | 0.666667 | +0 |" in compared


async def test_cases_that_need_a_model_are_left_out_where_there_is_none(tmp_path: Path) -> None:
    """Cases that need a model are skipped for a service without one, and counted."""
    cases = (RIGHT, a_case(id="story", gold_answer="42", needs_model=True))
    with_model = RecordedService()
    with_model.provider = "openai"

    without = await evaluated(tmp_path / "without", *cases, selection={"limit": 1})
    asked = await evaluated(tmp_path / "all", *cases, all_cases=True)
    other = await evaluated(tmp_path / "model", *cases, service=with_model)

    assert [each["id"] for each in without.metrics["cases"]] == ["right"]
    assert without.metrics["evaluation"]["dataset"]["left_out"] == 1
    report = (tmp_path / "without" / "report.md").read_text()
    assert "Skipped because the service has no model: 1." in report
    for evaluation in (asked, other):
        assert evaluation.metrics["counts"]["cases"] == 2
        assert evaluation.metrics["evaluation"]["dataset"]["left_out"] == 0
    with pytest.raises(DatasetError, match=r"no case is selected; .* require a model"):
        await evaluated(tmp_path, cases[1])


@pytest.mark.parametrize("content", ["", "[]", "null", '{"format": 99}', '{"format": 1}'])
def test_what_are_no_metrics_is_refused(tmp_path: Path, content: str) -> None:
    """A metrics file of another format is rejected."""
    path = tmp_path / "metrics.json"
    path.write_text(content)

    with pytest.raises(DatasetError, match=r"metrics\.json"):
        read_metrics(path)


def test_ids_of_evaluations_fit_into_run_ids() -> None:
    """A run ID with evaluation, case and repeat has at most 64 characters."""
    one, other = new_evaluation_id(), new_evaluation_id()

    assert one != other
    assert len(run_id_of(one, a_case(id="c" * 32), 1000)) <= 64


@pytest.mark.req("002/26.2")
@pytest.mark.parametrize(("quick", "ended"), [("right", 1), ("none", 0)])
async def test_an_interrupted_evaluation_writes_what_it_has_and_judges_nothing(
    tmp_path: Path, quick: str, ended: int
) -> None:
    """An interrupted evaluation writes partial metrics, which cannot be compared later."""
    service = HangingService(quick)
    running = asyncio.create_task(evaluated(tmp_path, RIGHT, WRONG, service=service))
    await service.waiting.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["evaluation"]["interrupted"], metrics["counts"]["trials"]) == (True, ended)
    report = (tmp_path / "report.md").read_text()
    assert "The evaluation was interrupted" in report
    assert "target" not in report.replace("targets were not evaluated", "")
    assert ("right.trace.jsonl" in names_in(tmp_path)) == bool(ended)
    with pytest.raises(DatasetError, match="interrupted"):
        read_metrics(tmp_path / "metrics.json")
