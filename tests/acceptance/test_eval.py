"""The evaluation as in continuous integration, whose gates detect a worse service.

With ``EVALUATION_DIR`` in the environment, metrics and traces are kept there.
"""

import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.processes import ChildProcess, run_caseworker
from tests.support.service import QUICK, ServiceProcess, finished, model_settings

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "data" / "cases" / "cases.json"
UNSEEN = CASES.with_name("unseen.json")
ALL_OF_THEM = ("--min-success", "1")
"""Each case must be answered as expected; the service's verifier has no gold answers."""
QUICKLY = 2.0
"""The allowed seconds for an easy question, from requirement 002/26.1."""
OFFLINE = {"MODELS_SMALL_PROVIDER": "offline", "MODELS_BIG_PROVIDER": "offline"}


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of the command and its output folder."""

    exit_code: int
    stderr: str
    folder: Path

    @property
    def metrics(self) -> dict[str, Any]:
        """The contents of metrics.json."""
        metrics: dict[str, Any] = json.loads((self.folder / "metrics.json").read_text())
        return metrics


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Runs ``caseworker eval`` with the built-in planner."""

    folder: Path
    database_url: str

    def evaluate(self, dataset: Path, *options: str, name: str) -> Evaluated:
        """Evaluate a file of cases: in process, unless ``options`` hold a ``--url``."""
        folder, quickly = self.folder / name, str(QUICKLY)
        ended = run_caseworker(
            *("eval", str(dataset), "--out", str(folder), *options),
            *("--max-p95-latency-easy-seconds", quickly),
            env={**OFFLINE, "DATABASE_URL": self.database_url},
        )
        return Evaluated(ended.returncode, ended.stderr, folder)


@pytest.fixture
def evaluator(tmp_path: Path, module_database_url: str) -> Evaluator:
    """Return the command with the folder for its results."""
    return Evaluator(Path(os.environ.get("EVALUATION_DIR", tmp_path)), module_database_url)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service_url(module_database_url: str) -> AsyncIterator[str]:
    """Return the URL of a running service that calls no model."""
    async with ServiceProcess(module_database_url, settings=OFFLINE) as service:
        yield service.url


def lines_of(folder: Path, case_id: str) -> list[dict[str, Any]]:
    text = (folder / f"{case_id}.trace.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.req("002/12.2", "002/12.4", "002/14.2", "002/14.4", "002/16.3", "002/26.1", "002/26.2")
def test_every_case_that_the_built_in_planner_reads_is_solved(evaluator: Evaluator) -> None:
    """There are no false verifications or errors, and every case leaves a complete trace."""
    evaluated = evaluator.evaluate(CASES, *ALL_OF_THEM, name="cases")

    metrics = evaluated.metrics
    assert metrics["counts"]["cases"] > 130
    marked = [case["id"] for case in json.loads(CASES.read_text()) if case.get("needs_model")]
    assert metrics["evaluation"]["dataset"]["left_out"] == len(marked) > 0
    assert not {case["id"] for case in metrics["cases"]} & set(marked)
    assert metrics["counts"]["falsely_verified"] == 0, evaluated.stderr
    assert metrics["counts"]["errors"] == 0
    assert evaluated.exit_code == 0, evaluated.stderr
    assert metrics["models"]["small"] == ["offline:offline"]
    for case in metrics["cases"]:
        lines = lines_of(evaluated.folder, case["id"])
        assert {line["run_id"] for line in lines} == set(case["run_ids"])
    told = lines_of(evaluated.folder, "math-percent-of")
    steps = [line["step_type"] for line in told if line["type"] == "log"]
    assert steps == ["gate", "plan", "tool", "verify", "gate"]
    assert [line["kind"] for line in told if line["type"] == "call"][-2:] == ["llm", "tool"]


@pytest.mark.req("002/12.1")
def test_easy_questions_are_answered_quickly_with_one_small_pass(
    evaluator: Evaluator, service_url: str
) -> None:
    """The mode is fallback_only, and no false answer is verified without the gold answers."""
    chosen = (*ALL_OF_THEM, "--only", "easy", "--mode", "fallback_only", "--url", service_url)
    evaluated = evaluator.evaluate(CASES, *chosen, name="easy-fallback-only")

    assert evaluated.exit_code == 0, evaluated.stderr
    metrics = evaluated.metrics
    assert metrics["p95_latency_easy"] <= QUICKLY
    assert metrics["counts"]["falsely_verified"] == 0
    assert metrics["counts"]["ran"] > 50


@pytest.mark.proof
def test_nothing_wrong_is_claimed_of_questions_that_need_a_model(
    evaluator: Evaluator, service_url: str, tmp_path: Path
) -> None:
    """The planner answers no question that it cannot read."""
    cases = [case for path in (CASES, UNSEEN) for case in json.loads(path.read_text())]
    (tmp_path / "all.json").write_text(json.dumps(cases))
    options = ("--all", "--no-gate", "--url", service_url)
    evaluated = evaluator.evaluate(tmp_path / "all.json", *options, name="all")

    assert evaluated.exit_code == 0, evaluated.stderr
    assert evaluated.metrics["counts"]["verified"] > 150
    assert evaluated.metrics["counts"]["falsely_verified"] == 0


@pytest.mark.req("002/22.4")
def test_the_same_questions_with_the_same_seed_end_the_same(
    evaluator: Evaluator, service_url: str
) -> None:
    """Each question is asked three times."""
    options = ("--url", service_url, "--limit", "8", "--seed", "3", "--repeat", "3")
    evaluated = evaluator.evaluate(CASES, *options, name="repeated")

    assert evaluated.exit_code == 0, evaluated.stderr
    assert evaluated.metrics["counts"]["trials"] == 24
    assert all(case["stable"] for case in evaluated.metrics["cases"])


@pytest.mark.req("002/12.5", "002/16.3", "002/26.3", "002/26.5")
@pytest.mark.parametrize(
    ("protocol", "outcome", "missed"),
    [
        (
            "--with-gold",
            "not_verified",
            "escalation_rate is 1, above the target of 0.15",
        ),
        (
            "--blind",
            "wrong_answer",
            "falsely_verified is 1, above the target of 0: wrong answers reported as verified",
        ),
    ],
)
def test_an_answer_that_is_not_the_right_one_misses_the_target(
    evaluator: Evaluator,
    service_url: str,
    tmp_path: Path,
    protocol: str,
    outcome: str,
    missed: str,
) -> None:
    """The command exits with 1 and prints each missed target; the warning goes to the log file."""
    cases = [{"id": "wrong", "input": "What is 2 + 2?", "gold_answer": "5"}]
    (tmp_path / "wrong.json").write_text(json.dumps(cases))
    options = (protocol, "--url", service_url)
    evaluated = evaluator.evaluate(tmp_path / "wrong.json", *options, name="wrong")

    assert evaluated.exit_code == 1
    assert evaluated.stderr.splitlines() == [
        "target missed: success@1 is 0.0000, below the target of 0.95",
        f"target missed: {missed}",
    ]
    logged = (evaluated.folder / "log.jsonl").read_text()
    assert '"event": "performance.target_missed"' in logged
    assert evaluated.metrics["outcomes"] == {outcome: 1}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("over", ["http", "in_process"])
async def test_ctrl_c_cancels_the_runs_under_way_and_keeps_what_had_ended(
    over: str,
    tmp_path: Path,
    service: ServiceProcess,
    client: JsonClient,
    provider: FakeProvider,
    module_database_url: str,
) -> None:
    """No paid call continues after the interrupt, and the exit code is 130."""
    cases = [{"id": "done", "input": "quick: what is 6 * 7?"}] + [
        {"id": f"waits-{number}", "input": f"forever {number}"} for number in range(2)
    ]
    (tmp_path / "set.json").write_text(json.dumps(cases))
    plan = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
    await provider.script("quick", [Step(plan=plan)])
    await provider.script("forever", [Step(hang=True)], repeat_last=True)
    where = ["--url", service.url] if over == "http" else []
    arguments = ["eval", str(tmp_path / "set.json"), "--out", str(tmp_path / "out"), *where]
    arguments += ["--concurrency", "2"]
    env = {**QUICK, **model_settings(provider.openai_url), "DATABASE_URL": module_database_url}

    with ChildProcess.service(*arguments, env=env, name="eval") as command:
        await provider.wait_for_arrivals(2, "forever")  # the second took the lane of the quick one
        os.killpg(command.pid, signal.SIGINT)
        assert await command.wait() == 130
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert [case["id"] for case in metrics["cases"]] == ["done"]
    assert metrics["evaluation"]["interrupted"] is True
    for number in range(2):
        run = await finished(client, f"{metrics['evaluation']['id']}:waits-{number}")
        assert (run["status"], run["stop"]["kind"]) == ("cancelled", "cancelled")
        assert run["stop"]["reason"] == "The evaluation was interrupted."
