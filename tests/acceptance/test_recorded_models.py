"""An evaluation recorded from a real endpoint can be replayed without it, and only unchanged."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.configured_cases import calculation
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import run_caseworker
from tests.support.service import model_settings

KEY = "sk-not-a-real-key-0123456789"
QUICK = {
    "RETRY_BASE_SECONDS": "0.01",
    "RETRY_MAX_RETRIES": "1",
    "VERIFIER_THRESHOLDS_SECOND_PLAN": "off",
}
CASES: list[dict[str, Any]] = [
    {"id": "plain", "input": "plain: what is 6 * 7?", "gold_answer": "42"},
    {"id": "mended", "input": "mended: what is 6 * 8?", "gold_answer": "48"},
    {"id": "flaky", "input": "flaky: what is 6 * 9?", "gold_answer": "54"},
    {"id": "down", "input": "down: what is 6 * 10?", "gold_answer": "60"},
]
SCRIPTS = {
    "plain:": [calculation("6 * 7")],
    "mended:": [Step(plan={"tools": []}), calculation("6 * 8")],
    "flaky:": [Step(status=503), calculation("6 * 9")],
    "down:": [Step(status=500)],
}


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of an evaluation."""

    exit_code: int
    stderr: str
    folder: Path

    @property
    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads((self.folder / "metrics.json").read_text())
        return metrics

    @property
    def report(self) -> str:
        return (self.folder / "report.md").read_text()


def evaluate(
    folder: Path, settings: Mapping[str, str], *options: str, cases: list[dict[str, Any]] = CASES
) -> Ended:
    """Evaluate cases in a separate process, with models from the settings."""
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    options = ("--seed", "3", *options)
    ended = run_caseworker(
        *("eval", str(folder / "cases.json"), "--out", str(folder), *options),
        env={**QUICK, **settings},
    )
    return Ended(ended.returncode, ended.stderr, folder)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording and the evaluation that made it."""

    path: Path
    recorded: Ended
    database: Mapping[str, str]

    def replay(
        self, folder: Path, lines: list[str] | None = None, cases: list[dict[str, Any]] = CASES
    ) -> Ended:
        """Evaluate again without an endpoint, optionally with other lines or cases."""
        path = self.path
        if lines is not None:
            path = folder / "changed.jsonl"
            path.write_text("\n".join(lines) + "\n")
        models = {
            f"MODELS_{tier}_{name}": value
            for tier in ("SMALL", "BIG")
            for name, value in {
                "PROVIDER": "recorded",
                "RECORDING": str(path),
                "MODEL": f"fake-{tier.lower()}",
                "PRICE_PER_MILLION_IN_USD": "1",
                "PRICE_PER_MILLION_OUT_USD": "2",
            }.items()
        }
        return evaluate(folder, {**self.database, **models}, cases=cases)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recording(
    running_provider: FakeProvider,
    module_database_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Recording:
    """Record an evaluation with a real endpoint and every kind of reply."""
    folder = tmp_path_factory.mktemp("recording")
    for marker, steps in SCRIPTS.items():
        await running_provider.script(marker, steps, repeat_last=True)
    prices = {
        f"MODELS_{tier}_PRICE_PER_MILLION_{way}_USD": price
        for tier in ("SMALL", "BIG")
        for way, price in (("IN", "1"), ("OUT", "2"))
    }
    keys = {f"MODELS_{tier}_API_KEY": KEY for tier in ("SMALL", "BIG")}
    database = {"DATABASE_URL": module_database_url}
    settings = {**database, **model_settings(running_provider.openai_url), **prices, **keys}
    path = folder / "recording.jsonl"
    recorded = evaluate(folder, settings, "--record", str(path), "--no-gate")
    assert recorded.exit_code == 0, recorded.stderr
    return Recording(path, recorded, database)


def figures(ended: Ended) -> dict[str, Any]:
    """Return the figures that must be equal in two evaluations of the same replies."""
    names = ("success@1", "avg_llm_small", "avg_llm_big", "tokens", "outcomes", "counts")
    cases = {case["id"]: case["outcomes"] for case in ended.metrics["cases"]}
    return {**{name: ended.metrics[name] for name in names}, "cases": cases}


def test_a_replay_without_a_network_gives_the_same_results(
    recording: Recording, tmp_path: Path
) -> None:
    """Answers, tokens, cost and failures are equal; a retried failure is not replayed."""
    replayed = recording.replay(tmp_path)

    assert figures(replayed) == figures(recording.recorded)
    assert replayed.metrics["outcomes"] == {"not_verified": 1, "success": 3}
    assert replayed.metrics["tokens"]["total"]["cost_usd"] > 0
    assert replayed.metrics["models"]["small"] == ["recorded:fake-small"]


def test_a_recording_says_what_it_is_and_holds_no_secret(recording: Recording) -> None:
    """A recording has a header and one exchange per line in order, without keys and prompts."""
    text = recording.path.read_text()
    header, *exchanges = map(json.loads, text.splitlines())

    assert [model["model"] for model in header["models"]] == ["fake-small", "fake-big"]
    assert header["models"][0]["endpoint"].startswith("127.0.0.1:")
    assert (header["asked"]["seed"], header["asked"]["protocol"]) == (3, "blind")
    places = [(each["case"], each["purpose"]) for each in exchanges]
    assert places == sorted(places)
    mended = [each["purpose"] for each in exchanges if each["case"] == "mended"]
    assert mended == ["case/small/1/plan", "case/small/1/reprompt"]
    flaky = [(each["attempt"], "reply" in each) for each in exchanges if each["case"] == "flaky"]
    assert flaky == [(2, True)]
    down = [each["error"] for each in exchanges if each["case"] == "down"]
    assert {(error["fault"], error["status"]) for error in down} == {("ModelUnavailable", 500)}
    assert KEY not in text
    assert "what is" not in text


def test_what_was_changed_or_is_missing_fails_loudly_and_alone(
    recording: Recording, tmp_path: Path
) -> None:
    """The error names the case, the purpose and the attempt; other cases stay unchanged."""
    lines = recording.path.read_text().splitlines()
    changed = [{**CASES[0], "input": "plain: what is 7 * 6?"}, *CASES[1:]]
    kept = [line for line in lines if '"case":"mended"' not in line]
    replayed = recording.replay(tmp_path, kept, changed)

    assert replayed.exit_code == 1
    outcomes = {case["id"]: case["outcomes"] for case in replayed.metrics["cases"]}
    failing = {"plain": ["not_verified"], "mended": ["not_verified"]}
    assert outcomes == {**figures(recording.recorded)["cases"], **failing}
    assert (
        "recorded: case plain, purpose case/small/1/plan, attempt 1: the request has changed in"
        " changed.jsonl; record it again"
    ) in (replayed.folder / "plain.trace.jsonl").read_text()
    assert "case mended, purpose case/big/2/plan, attempt 1: there is no such" in replayed.report
