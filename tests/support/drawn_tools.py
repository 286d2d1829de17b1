"""Odd tools that Hypothesis draws as Python source; a service loads them as plugins.

A test writes the drawn tools to a file, and passes its path to the service in ``DRAWN``.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.odd_tools import RAISES

DRAWN = "DRAWN_TOOLS"
"""Environment variable with the path of the drawn tools."""

_IMPORTS = """
import asyncio, itertools, sys
from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Literal
from uuid import UUID
from pydantic import AwareDatetime, Field, NaiveDatetime
from caseworker import ToolContext, ToolRefusedError, failure, tool
from tests.support import odd_tools as odd
"""


@dataclass(frozen=True)
class DrawnTool:
    """The source of a tool, and the arguments for its call."""

    source: str
    """Source with the placeholder NAME."""
    args: dict[str, Any]


_NUMBERS = st.integers(-(2**63), 2**63 - 1)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
_TIMES = st.sampled_from(["2026-03-01T09:00:00", "2026-03-01 09:00", "2026-03-01T09:00:00.5"])
_PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "int": _NUMBERS,
    "float": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    "bool": st.booleans(),
    "str": _TEXTS,
    "bytes": _TEXTS,
    "datetime": _TIMES | st.just("2026-03-01T09:00:00Z"),
    "NaiveDatetime": _TIMES,
    "AwareDatetime": st.just("2026-03-01T09:00:00+02:00"),
    "date": st.dates().map(str),
    "time": st.sampled_from(["09:30", "09:30:00", "09:30:00Z"]),
    "timedelta": st.sampled_from(["PT5M", "00:05:00", "P1DT2H"]),
    "UUID": st.uuids().map(str) | st.uuids().map(lambda each: each.hex),
    "Decimal": st.sampled_from(["1.10", 1, 0.1]),
    "odd.Colour": st.just("red"),
    "Literal['a', 2]": st.sampled_from(["a", 2]),
    "list[int]": st.lists(_NUMBERS, max_size=3),
    "set[str]": st.lists(_TEXTS, max_size=3, unique=True),
    "tuple[int, str]": st.tuples(_NUMBERS, _TEXTS).map(list),
    "dict[str, datetime]": st.dictionaries(_TEXTS, _TIMES, max_size=2),
    "odd.Point": st.just({"x": 1, "at": "2026-03-01T09:00:00"}),
    "odd.Order | None": st.none() | st.just({"number": 1, "paid": "1.1", "day": "2026-03-01"}),
    "Any": st.none() | _NUMBERS | _TEXTS,
    "Annotated[int, Field(strict=True, ge=0)]": st.integers(0, 9),
}
"""Types of arguments, and JSON values for them."""

_LEAVES = st.one_of(
    st.none().map(repr),
    st.booleans().map(repr),
    _NUMBERS.map(repr),
    _ANY_TEXT.map(ascii),
    st.binary(max_size=4).map(repr),
    st.sampled_from(
        [
            *("float('nan')", "-float('inf')", "-0.0", "1e308", "10**400", "10**5000", "1j"),
            *("Decimal('1.10')", "Decimal('sNaN')", "datetime(2026, 3, 1, 9)", "time(9, 30)"),
            *("date.max", "timedelta.min", "datetime.min.replace(tzinfo=timezone.utc)"),
            *("UUID(int=1)", "odd.Colour.RED", "odd.Level.HIGH", "odd.Unprintable()", "object()"),
            *("odd.ShadyText('x')", "odd.ShadyDict(a=1)", "odd.FailingMapping()", "range(5)"),
            *("odd.Point(1, datetime.min)", "odd.Exiting()", "odd.Pair(1, {2})", "odd.circular()"),
            *("odd.nested(200)", "itertools.count()", "(n for n in 'ab')", "iter([iter([])])"),
            *("odd._numbers()", "odd._interrupted_generator()", "odd.Point", "ValueError('x')"),
            *("[[]] * 60000", "'x' * 2000000", "NotImplemented", "...", "sys", "lambda: 1"),
            *("failure('no')", "failure('')", "{'error': None}", "{'error': {'code': 1}}"),
        ]
    ),
)
_RESULTS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.lists(inner, max_size=3).map(lambda each: f"deque([{', '.join(each)}])"),
        inner.map(lambda each: f"({each},)"),
        st.tuples(_ANY_TEXT, inner).map(lambda pair: f"{{{pair[0]!a}: {pair[1]}}}"),
        st.tuples(_NUMBERS, inner).map(lambda pair: f"MappingProxyType({{{pair[0]}: {pair[1]}}})"),
        st.tuples(inner, inner).map(lambda pair: f"{{'data': {pair[0]}, 'error': {pair[1]}}}"),
    ),
    max_leaves=5,
)
_CLASSES = st.sampled_from(
    [
        *("Exception", "BaseException", "KeyboardInterrupt", "SystemExit", "GeneratorExit"),
        *("StopIteration", "StopAsyncIteration", "asyncio.CancelledError", "TimeoutError"),
        *("OSError", "KeyError", "odd.CancelledError", "odd.RudeError", "MemoryError"),
        *("ToolRefusedError", "asyncio.QueueShutDown if False else LookupError"),
    ]
)
_RAISED = st.one_of(
    st.sampled_from(sorted(RAISES)).map(lambda name: f"odd.RAISES[{name!r}]()"),
    st.tuples(_CLASSES, _ANY_TEXT).map(lambda each: f"raise ({each[0]})({each[1]!a})"),
    st.tuples(_CLASSES, _CLASSES).map(
        lambda each: f"raise BaseExceptionGroup('g', [({each[0]})('a'), ({each[1]})('b')])"
    ),
    st.tuples(_CLASSES, _CLASSES).map(lambda each: f"raise ({each[0]})('a') from ({each[1]})('b')"),
    _CLASSES.map(lambda each: f"raise type('Own' * 99, ({each},), {{}})('c')"),
)
_BODIES = st.one_of(_RESULTS.map(lambda each: f"return {each}"), _RAISED)
_ASYNC = st.sampled_from(
    [
        "{body}",
        "await asyncio.sleep(0); {body}",
        "asyncio.current_task().cancel(); await asyncio.sleep(9); {body}",
        "asyncio.get_running_loop().call_soon(odd.RAISES['keyboard_interrupt']); {body}",
        "async with asyncio.TaskGroup() as group: group.create_task(child())",
    ]
)


@st.composite
def _drawn(draw: st.DrawFn) -> DrawnTool:
    types = draw(st.lists(st.sampled_from(sorted(_PARAMETERS)), max_size=3))
    taken = [f"a{number}: {kind}" for number, kind in enumerate(types)]
    args = {f"a{number}": draw(_PARAMETERS[kind]) for number, kind in enumerate(types)}
    if draw(st.booleans()):
        taken.append("context: ToolContext")
    body, kind = draw(_BODIES), draw(st.sampled_from(odd_kinds))
    option = draw(st.sampled_from(["", "idempotent=False", "external=True", "deterministic=True"]))
    if kind == "class":
        source = f"def body():\n    {body}\nNAME = odd.OddTool('NAME', body)\n"
        return DrawnTool(source, {})
    head = f"@tool(name='NAME', description='Drawn.', {option})\n"
    if kind == "plain":
        return DrawnTool(f"{head}def NAME({', '.join(taken)}):\n    {body}\n", args)
    child = f"    async def child():\n        {body}\n"
    line = draw(_ASYNC).format(body=body)
    return DrawnTool(f"{head}async def NAME({', '.join(taken)}):\n{child}    {line}\n", args)


odd_kinds = ("plain", "async", "class")


def drawn(count: int) -> list[DrawnTool]:
    """Return ``count`` tools."""
    found: list[DrawnTool] = []

    @settings(max_examples=count, database=None, phases=[Phase.generate])
    @given(_drawn())
    def collect(one: DrawnTool) -> None:
        found.append(one)

    collect()
    return found


def write(tools: list[DrawnTool], path: Path) -> list[str]:
    """Write tools to a file; return their import paths."""
    sources = [one.source.replace("NAME", f"drawn_{at}") for at, one in enumerate(tools)]
    path.write_text("\n\n".join([_IMPORTS, *sources]), encoding="utf-8")
    return [f"tests.support.drawn_tools:drawn_{at}" for at in range(len(tools))]


if DRAWN in os.environ:
    exec(compile(Path(os.environ[DRAWN]).read_text(encoding="utf-8"), "drawn", "exec"))  # noqa: S102
