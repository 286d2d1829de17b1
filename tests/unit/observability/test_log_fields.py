"""Every line that the service logs says only what may be said."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.observability.field_names import LOG_FIELDS

APP = Path(__file__).parents[3] / "app"
_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def logged() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of a logger, with where it stands."""
    for file in sorted(APP.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log" | "_LOG"), attr=level)
                ) if level in _LEVELS:
                    yield f"{file.relative_to(APP)}:{node.lineno}", node


@pytest.mark.req("002/19.2", "002/19.5")
def test_lines_have_fields_of_the_allowlist_alone() -> None:
    """Others would be logged without their values, and nobody would see why."""
    found = list(logged())
    strangers = [
        f"{place} {keyword.arg}"
        for place, call in found
        for keyword in call.keywords
        if keyword.arg not in LOG_FIELDS
    ]

    assert len(found) > 15
    assert strangers == []


@pytest.mark.req("002/19.2")
def test_lines_say_what_happened_in_words_that_stand_in_the_source() -> None:
    """An event with a value in it could hold anything, and could not be searched for."""
    assert [place for place, call in logged() if not isinstance(call.args[0], ast.Constant)] == []
