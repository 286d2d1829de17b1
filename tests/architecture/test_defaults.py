"""A configurable default is defined only in the schema of the settings."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caseworker.settings.schema import Settings
from tests.support.syntax import parsed

SHARED = {
    ("ModelEndpoint", "max_reply_bytes", Settings().limits.max_reply_kb * 1024),
    ("ModelEndpoint", "max_embeddings_bytes", Settings().limits.max_embeddings_kb * 1024),
}
"""Defaults for those who write providers, made of the constant that the schema uses."""
OURS = ("caseworker.", "caseworker_cases.")
APP = Path(__file__).parents[2] / "app"


def configured_arguments(source: str, module: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the arguments that our own objects get from settings: callee, name, default."""
    for call in ast.walk(parsed(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        callee: Any = getattr(module, call.func.id, None)
        if callee is None or not str(callee.__module__).startswith(OURS):
            continue
        for argument in call.keywords:
            if argument.arg is not None and _is_configured(argument.value):
                parameter = inspect.signature(callee).parameters[argument.arg]
                yield call.func.id, argument.arg, parameter.default


def _is_configured(value: ast.expr) -> bool:
    """Return whether a value is read from a section of the settings."""
    sections = {"settings", "database", "worker", "chosen"}
    return any(
        isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name | ast.Attribute)
        and bool(sections & set(ast.unparse(part.value).split(".")))
        for part in ast.walk(value)
    )


def _module(path: Path) -> Any:
    return importlib.import_module(".".join(path.relative_to(APP).with_suffix("").parts))


def test_what_is_configured_has_no_other_default() -> None:
    """Values that the composition root passes from the settings have no default in the callee."""
    found = [
        argument
        for path in (*APP.glob("caseworker/main/*.py"), APP / "caseworker_cases/agent/node.py")
        for argument in configured_arguments(path.read_text(), _module(path))
    ]

    assert len(found) > 30
    # None is not a default of its own; it means that the setting is missing.
    defaults = {each for each in found if each[2] not in (inspect.Parameter.empty, None)}
    assert defaults <= SHARED
