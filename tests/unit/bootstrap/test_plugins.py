"""Functions that other packages add to the service."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from app.bootstrap.errors import StartupError
from app.bootstrap.plugins import FUNCTIONS, functions_of
from app.engine.context import ExecutionContext
from app.nodes.function import FunctionNode

HERE = "tests.unit.bootstrap.test_plugins"

ready_made = FunctionNode("its own name", lambda context: None, persistent=True)
no_function = 7


def plain(context: ExecutionContext) -> Any:
    return context.input


async def coroutine(context: ExecutionContext) -> Any:
    return context.input


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=FUNCTIONS)


def test_functions_are_found_by_name_and_plain_ones_get_a_thread() -> None:
    """Nobody knows whether they block; a node is taken as it is."""
    found = functions_of(
        [
            point("z", f"{HERE}:ready_made"),
            point("plain", f"{HERE}:plain"),
            point("coroutine", f"{HERE}:coroutine"),
        ]
    )

    assert [(node.id, node.blocking) for node in found] == [
        ("coroutine", False),
        ("plain", True),
        ("its own name", False),
    ]
    assert found[2].id == ready_made.id


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (f"{HERE}:absent", "'x' .* cannot be loaded: AttributeError"),
        ("no.such.module:f", "'x' .* cannot be loaded: ModuleNotFoundError"),
        (f"{HERE}:no_function", "'x' .* cannot be called"),
    ],
)
def test_one_that_is_broken_stops_the_start(value: str, said: str) -> None:
    """Rather than failing every graph that names it."""
    with pytest.raises(StartupError, match=said):
        functions_of([point("x", value)])
