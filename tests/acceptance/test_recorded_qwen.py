"""Replays replies of a real model of 1.5 billion parameters to sixty cases.

The recording was made with the command in docs/evaluation.md, on two cores. A replay is strict:
record it again when a prompt, a schema or the result of a tool changes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import run_caseworker

DATA = Path(__file__).parents[1] / "data"
RECORDING = DATA / "recordings" / "qwen2.5-coder-1.5b.jsonl"
MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m"
SETTINGS = {
    "MODELS_SMALL_PROVIDER": "recorded",
    "MODELS_SMALL_RECORDING": str(RECORDING),
    "MODELS_SMALL_MODEL": MODEL,
    "MODELS_SMALL_STRUCTURED_OUTPUT": "schema",
    "MODELS_SMALL_TEMPERATURE": "0",
    "MODELS_SMALL_MAX_OUTPUT_TOKENS": "300",
    "MODELS_SMALL_PRICE_PER_MILLION_IN_USD": "0",
    "MODELS_SMALL_PRICE_PER_MILLION_OUT_USD": "0",
    "BUDGET_MAX_LLM_CALLS_BIG": "0",
    "FLAGS_TIMEZONE": "UTC",
}
FAMILIES = {
    "calendar": (18, 16, 0),
    "hostile": (6, 6, 0),
    "math": (21, 18, 1),
    "mixed": (3, 0, 0),
    "stocks": (12, 9, 0),
}
"""The numbers of cases, of solved ones, and of wrongly verified ones."""
OPTIONS = ("--seed", "1", "--sample", "60", "--sample-seed", "10", "--no-gate")


@pytest.fixture(scope="module")
def metrics(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the metrics of a replay of the recording."""
    folder = tmp_path_factory.mktemp("replayed")
    ended = run_caseworker(
        *("eval", str(DATA / "cases" / "cases.json"), "--out", str(folder), *OPTIONS),
        env={**SETTINGS, "DATABASE_URL": module_database_url},
    )
    assert ended.returncode == 0, ended.stderr
    for trace in folder.glob("*.trace.jsonl"):
        assert "record it again" not in trace.read_text(), trace.name
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found


def first_plans() -> list[dict[str, Any]]:
    """Return the exchanges with the first plan of each case."""
    exchanges = [json.loads(line) for line in RECORDING.read_text().splitlines()[1:]]
    return [each for each in exchanges if each["purpose"].endswith("/small/1/plan")]


@pytest.mark.req("002/16.4", "002/22.4")
def test_what_the_model_solves_is_what_the_readme_says(metrics: dict[str, Any]) -> None:
    """The harness compares with gold answers, also for wrongly verified ones."""
    counts = metrics["counts"]
    families = {
        name: (group["trials"], group["succeeded"], group["falsely_verified"])
        for name, group in metrics["by_family"].items()
    }

    assert metrics["evaluation"]["protocol"] == "blind"
    assert (counts["cases"], counts["errors"]) == (60, 0)
    assert families == FAMILIES


def test_most_of_what_the_model_reads_for_a_plan_it_has_read_before() -> None:
    """The server caches only the last prompt, and every other case expects other tools."""
    usages = [each["reply"]["usage"] for each in first_plans()]
    cached = sum(usage.get("tokens_cached", 0) for usage in usages)

    assert cached / sum(usage["tokens_in"] for usage in usages) >= 0.8


@pytest.mark.req("002/12.3")
def test_a_plan_of_a_one_line_case_reads_at_most_600_tokens() -> None:
    """The prompt has all built-in tools and is counted with the model's own tokenizer."""
    tokens = [each["reply"]["usage"]["tokens_in"] for each in first_plans() if "reply" in each]

    assert len(tokens) > 40
    assert max(tokens) <= 600
