"""From a request body to a run: defaults, ceilings, limits and the request hash."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.models.table import ModelTable, Tier
from caseworker.platform.http.problems import ProblemError
from caseworker.runs.http.admission import request_hash
from caseworker.runs.http.limits import MAX_METADATA_BYTES, ApiLimits
from caseworker.runs.run import NewRun
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker_cases.api import CaseAdmission
from caseworker_cases.schemas import CaseBody
from caseworker_cases.tools.calculator import Calculator
from tests.support.limits import SETTINGS, api_limits, tier_model, tool_dispatch

MODELS = ModelTable(dict.fromkeys(Tier, tier_model(provider=None, model="m")))
DEFAULTS = Budget(max_tool_calls=6, max_time_seconds=60.0)


def new_run(
    body: dict[str, Any] | None = None,
    limits: ApiLimits | None = None,
    policy: ToolPolicy | None = None,
    usual: Budget = SETTINGS.budget.limits,
) -> NewRun:
    tools = tool_dispatch(ToolRegistry([Calculator()]), policy or ToolPolicy())
    mode = SETTINGS.flags.mode
    admission = CaseAdmission(limits or api_limits(), tools, MODELS, budget=usual, mode=mode)
    read = CaseBody.model_validate({"input": "2+2?"} | (body or {}))
    return asyncio.run(admission.new_run(read, "t", ""))


def refused_fields(
    body: dict[str, Any], limits: ApiLimits | None = None, policy: ToolPolicy | None = None
) -> dict[str, str]:
    with pytest.raises(ProblemError) as refused:
        new_run(body, limits, policy)
    return {violation.field: violation.message for violation in refused.value.violations}


def hashed(**body: Any) -> str:
    return request_hash(CaseBody.model_validate({"input": "2+2?"} | body))


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        (None, DEFAULTS),
        ({}, DEFAULTS),
        ({"max_tool_calls": 1}, Budget(max_tool_calls=1, max_time_seconds=60.0)),
        ({"max_tool_calls": 0}, Budget(max_tool_calls=0, max_time_seconds=60.0)),
        ({"max_tool_calls": None}, Budget(max_time_seconds=60.0)),
        ({"max_seconds": 5}, Budget(max_tool_calls=6, max_time_seconds=5.0)),
        (
            {"max_cost_usd": 0.1},
            Budget(max_tool_calls=6, max_time_seconds=60.0, max_cost_dollars=Decimal("0.1")),
        ),
    ],
)
def test_what_a_caller_gives_replaces_the_defaults_one_by_one(given: Any, budget: Budget) -> None:
    """A null limit is unlimited, 0 allows nothing, and a missing limit takes its default."""
    limits = api_limits(budget_ceiling=Budget())

    assert new_run({"budget": given}, limits, usual=DEFAULTS).request.budget == budget


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (None, 100),
        ({}, 100),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": None}, 100),
        ({"max_tokens": 500}, 100),
    ],
)
def test_no_caller_gets_past_a_ceiling(given: Any, tokens: int) -> None:
    """The smaller of the requested limit and the ceiling counts; null does not lift the ceiling."""
    limits = api_limits(budget_ceiling=Budget(max_tokens=100))

    assert new_run({"budget": given}, limits).request.budget.max_tokens == tokens


@pytest.mark.req("002/9.3", "002/23.4", "002/23.5")
def test_an_input_is_counted_in_characters_and_refused_beyond_the_limit() -> None:
    """The input limit counts characters, not bytes, is inclusive, and is named in the message."""
    limits = api_limits(max_input_chars=10)

    assert new_run({"input": "😀" * 10}, limits).request.input == "😀" * 10
    assert refused_fields({"input": "😀" * 11}, limits) == {
        "input": "The input must not exceed 10 characters (flags.max_input_chars)."
    }


@pytest.mark.req("002/9.3")
def test_the_usual_limit_of_an_input_is_8192_characters() -> None:
    """The default limit of an input is 8192 characters."""
    assert new_run({"input": "x" * 8192}).request.input == "x" * 8192
    assert list(refused_fields({"input": "x" * 8193})) == ["input"]


def test_metadata_is_bounded_as_json() -> None:
    """Metadata is limited by its stored size in bytes."""
    text = "é" * ((MAX_METADATA_BYTES - len('{"a":""}')) // 2)

    assert new_run({"metadata": {"a": text}}).metadata == {"a": text}
    assert list(refused_fields({"metadata": {"a": text + "é"}})) == ["metadata"]


def test_an_expected_tool_must_be_usable() -> None:
    """The message lists the available tools and does not repeat the requested name."""
    body = {"expected_tools": ["calculator", "canary"]}

    assert refused_fields(body) == {
        "expected_tools.1": "Unknown tool. Available tools: calculator."
    }
    assert list(refused_fields(body, policy=ToolPolicy(deny=frozenset({"calculator"})))) == [
        "expected_tools.0",
        "expected_tools.1",
    ]


def test_everything_wrong_is_said_at_once() -> None:
    """All problems of a request are reported together."""
    limits = api_limits(max_input_chars=1)
    metadata = {"a": "x" * MAX_METADATA_BYTES}

    assert set(refused_fields({"metadata": metadata, "expected_tools": ["x"]}, limits)) == {
        "input",
        "metadata",
        "expected_tools.0",
    }


def test_an_id_is_made_for_a_run_that_has_none() -> None:
    """A generated run ID is unique and marked as not chosen by the client."""
    chosen, made = new_run({"run_id": "mine"}), new_run()

    assert (chosen.key.run_id, chosen.named) == ("mine", True)
    assert (len(made.key.run_id), made.named) == (36, False)
    assert made.key != new_run().key


@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Olympus",
        "",
        "../../etc/passwd",
        "/etc/passwd",
        "UTC\0",
        "Europe/",
        "a" * 200,
        "tzdata.zi",
    ],
)
def test_only_known_time_zones_are_taken(zone: str) -> None:
    """A time zone is looked up by name and never opened as a path."""
    with pytest.raises(ValueError, match="IANA time zone"):
        CaseBody.model_validate({"input": "2+2?", "timezone": zone})


@pytest.mark.parametrize(
    "instant",
    [
        "2025-09-08",
        "2025-09-08T12:00:00",
        "2025-09-08 12:00:00Z",
        "2025-13-08T12:00:00Z",
        "2025-09-08T12:00:00+99:00",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "20250908T120000Z",
        1757332800,
        True,
    ],
)
def test_an_instant_needs_its_date_its_time_and_its_offset(instant: Any) -> None:
    """A deadline needs date, time and offset, and must be representable in UTC."""
    with pytest.raises(ValueError, match="RFC 3339"):
        CaseBody.model_validate({"input": "2+2?", "deadline": instant})


@pytest.mark.parametrize("run_id", ["a", ".a", "..a", "...", "A-1_b:c.d", "x" * 64])
def test_a_run_id_may_be_anything_that_a_url_can_name(run_id: str) -> None:
    """A run ID has 1 to 64 letters, digits or any of ``.-_:``."""
    assert CaseBody.model_validate({"input": "2+2?", "run_id": run_id}).run_id == run_id


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "a b", "a\n", "é", "x" * 65, "a?", "%41"])
def test_other_run_ids_are_refused(run_id: str) -> None:
    """Other run IDs are rejected, including ``.`` and ``..``, which name other resources."""
    with pytest.raises(ValueError, match="run ID"):
        CaseBody.model_validate({"input": "2+2?", "run_id": run_id})


def test_bodies_that_mean_the_same_are_the_same() -> None:
    """The hash ignores key order, null fields, the run ID and different forms of equal values."""
    assert hashed() == hashed(mode=None, metadata={}, expected_tools=[], kind="case")
    assert hashed() == hashed(run_id="a")
    assert hashed(budget={"max_seconds": 5}) == hashed(budget={"max_seconds": 5.0})
    assert hashed(deadline="2025-09-08T12:00:00Z") == hashed(deadline="2025-09-08T14:00:00+02:00")
    assert hashed(metadata={"a": 1, "b": 2}) == hashed(metadata={"b": 2, "a": 1})


def test_bodies_that_mean_something_else_are_not_the_same() -> None:
    """A change of any field changes the hash, including a limit of null."""
    bodies: list[dict[str, Any]] = [
        {},
        {"input": "2+2? "},
        {"expected_tools": ["a", "b"]},
        {"expected_tools": ["b", "a"]},
        {"gold_answer": "4"},
        {"gold_answer": ""},
        {"mode": "fallback_only"},
        {"budget": {"max_tokens": None}},
        {"budget": {"max_tokens": 0}},
        {"budget": {"max_steps": 0}},
        {"deadline": "2025-09-08T12:00:00Z"},
        {"seed": 0},
        {"seed": 1},
        {"timezone": "UTC"},
        {"metadata": {"a": 1}},
        {"metadata": {"a": "1"}},
        {"metadata": {"a": None}},
    ]

    assert len({hashed(**body) for body in bodies}) == len(bodies)


def test_metadata_counts_as_it_comes_back() -> None:
    """A number counts in its stored form: 1e308 has five bytes in a request and 309 when stored."""
    assert "metadata" in refused_fields({"metadata": {"k": [1e308] * 100}})
    assert new_run({"metadata": {"k": [1.5] * 100}}).metadata == {"k": [1.5] * 100}


def test_a_limit_of_cost_refuses_unknown_prices_only_if_somebody_has_set_it() -> None:
    """Only a client's own cost limit requires known prices, unless the ceiling is configured to."""
    assert not new_run().request.requires_prices
    assert new_run().request.budget.max_cost_usd is not None
    assert not new_run({"budget": {"max_cost_usd": None}}).request.requires_prices
    assert new_run({"budget": {"max_cost_usd": 0.5}}).request.requires_prices
    assert new_run(limits=api_limits(ceiling_requires_prices=True)).request.requires_prices
