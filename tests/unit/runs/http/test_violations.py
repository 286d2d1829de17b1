"""Validation errors are reported in our own words."""

import typing
from collections.abc import Collection
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core.core_schema import ErrorType

from caseworker.core.graph.validation import Problem
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.platform import validation
from caseworker.platform.http.problems import MAX_VIOLATIONS, Violation, violations_of
from caseworker.platform.suggestions import suggestion
from caseworker.platform.validation import field_of
from caseworker.runs.http.problems import graph_violations, words_of
from caseworker_cases.schemas import CaseBody

CANARY = "canary-5e1f"


def found(body: Any, model: type[BaseModel] = CaseBody) -> dict[str, str]:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    return {wrong.field: wrong.message for wrong in violations_of(refused.value.errors())}


@pytest.mark.req("002/23.5")
def test_every_field_at_fault_is_named_with_what_to_do() -> None:
    """All invalid fields are reported together, each with the required change."""
    body = {
        "input": " ",
        "mode": "fast",
        "budget": {"max_tokens": -1, "max_steps": True, "max_seconds": "5", "max_cost_usd": None},
        "seed": 1.5,
        "expected_tools": ["x"] * 51,
        "concurrency_key": "x" * 201,
        "unknown": 1,
    }

    assert found(body) == {
        "input": "The input must not be blank.",
        "mode": "This must be one of: 'hrm_small_then_escalate', 'escalate' or 'fallback_only'.",
        "budget.max_tokens": "This must be at least 0.",
        "budget.max_steps": "This must be a whole number, not a boolean.",
        "budget.max_seconds": "This must be a number, not a string.",
        "seed": "This must be a whole number, not a fraction.",
        "expected_tools": "This must have at most 50 items.",
        "concurrency_key": "This must have at most 200 characters.",
        "unknown": "Unknown field. /openapi.json lists the allowed fields.",
    }


@pytest.mark.parametrize("value", [CANARY, [CANARY], {CANARY: CANARY}, -1, 1.5, True])
@pytest.mark.parametrize("field", [name for name in CaseBody.model_fields if name != "metadata"])
def test_no_message_repeats_what_was_sent(field: str, value: Any) -> None:
    """Messages do not repeat sent values, which could be secrets."""
    body = {"input": "2+2?", field: value, "unknown": CANARY}

    with pytest.raises(ValidationError) as refused:
        CaseBody.model_validate(body)

    assert CANARY not in repr(violations_of(refused.value.errors()))


def test_only_keys_that_look_like_names_are_shown() -> None:
    """Keys that do not look like field names are replaced, because they could be values."""
    assert field_of(("metadata", "ticket_id", 3)) == "metadata.ticket_id.3"
    assert field_of(("maxTokens", "gpt4_mini", 0)) == "maxTokens.gpt4_mini.0"
    assert field_of(("sk-live-51Hx", "AKIAIOSFODNN7EXAMPLE", "a" * 25)) == "*.*.*"
    assert field_of(("ü", "a b", "a\nb", "")) == "*.*.*.*"


def test_only_some_fields_are_named_at_once() -> None:
    """The number of reported fields is limited."""
    body = {"input": "2+2?", **{f"field{number}": 1 for number in range(500)}}

    assert len(found(body)) == MAX_VIOLATIONS


def test_every_known_kind_of_error_is_one_of_the_librarys() -> None:
    """Every error type with a message exists in pydantic."""
    kinds = set(typing.get_args(ErrorType))

    assert set(validation.MESSAGES) <= kinds


def test_an_unknown_kind_of_error_is_said_plainly() -> None:
    """An unknown error type gets a generic message, not the one of the library."""
    error = {"type": "brand_new", "loc": ("body", "input"), "msg": CANARY, "input": CANARY}

    assert violations_of([error]) == [Violation("input", "This value is not accepted here.")]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("There is no step 'total'. Name one.", "There is no step 'total'. Name one."),
        ("Use one of these: case, function.", "Use one of these: case, function."),
        (
            "The id 'closing_prices_of_2012_v2' is taken.",
            "The id 'closing_prices_of_2012_v2' is taken.",
        ),
        ("Type 'sk-proj-abcdEFGH12345678'.", "Type '[secret]'."),
        ("No step 'ada@example.org' and no 'b'.", "No step '[email]' and no 'b'."),
        ("No step 'for ada.lovelace@exa.... Add it.", "No step 'for .... Add it."),
        ('No step "it\'s ada@example.org".', 'No step "it\'s [email]".'),
    ],
)
def test_names_that_a_problem_of_a_graph_quotes_are_shown_without_secrets(
    message: str, told: str
) -> None:
    """Quoted names are redacted, and a name that was cut within a secret loses that part."""
    problem = Problem("steps.0.id", message)

    assert words_of(problem) == told
    assert graph_violations([problem], "graph") == [Violation("graph.steps.0.id", told)]


@pytest.mark.parametrize("model", [CaseBody, AgentDefinition])
def test_thousands_of_unknown_fields_cost_few_comparisons(
    model: type[BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are compared for the errors that are shown; all of them would block the service."""
    compared: list[object] = []

    def counted(given: object, known: Collection[str]) -> str:
        compared.append(given)
        return suggestion(given, known)

    monkeypatch.setattr(validation, "suggestion", counted)
    fields = {f"max_cost_usd_{number}": 1 for number in range(5000)}

    found({"kind": "case", "input": "x", "name": "x", "prompt": {}, **fields}, model)

    assert len(compared) < 200


@pytest.mark.parametrize("path", ["", "budget"])
def test_few_errors_are_built_for_thousands_of_unknown_fields(path: str) -> None:
    """Building an error for each field would block the service; an unknown field stays one."""
    fields: dict[str, Any] = {f"field_{number}": 1 for number in range(5000)}
    body = {"kind": "case", "input": "x", **({path: fields} if path else fields)}

    with pytest.raises(ValidationError) as refused:
        CaseBody.model_validate(body)

    assert 1 < refused.value.error_count() < 200
