"""Tools that raise, return and take odd things, by name; a service loads them as plugins."""

import asyncio
import contextlib
import enum
import inspect
import itertools
import sys
from collections import OrderedDict, deque, namedtuple
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, NaiveDatetime, computed_field

from caseworker import CancelledError, Tool, ToolContext, ToolSpec, tool

# ruff: noqa: DTZ001


class UnreadableError(Exception):
    """Its message cannot be read."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class RudeError(BaseException):
    """Neither an Exception nor one of Python's own."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class LongNamedError(Exception):
    """Its class has a long name with control characters, and no module."""


LongNamedError.__name__ = "Long\x1b\n" * 10_000
LongNamedError.__module__ = None  # type: ignore[assignment]


class ChainedError(Exception):
    """The properties of its chain cannot be read."""

    @property
    def __cause__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no cause")


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception whose traceback cannot be set by libraries."""

    number: int = 1


class RetriedError(Exception):
    """An exception that looks like a request to wait."""

    retryable = property(lambda self: 1 / 0)
    retry_after_seconds = property(lambda self: 1 / 0)
    error_class = property(lambda self: 1 / 0)


def deep_group() -> BaseException:
    """Return a group inside of 5,000 groups."""
    error: BaseException = KeyboardInterrupt()
    for _ in range(5000):
        error = BaseExceptionGroup("more", [error])
    return error


def _raised(make: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def raises() -> NoReturn:
        raise make()

    return raises


def _ends_generator() -> object:
    """Raise StopIteration, as next() of an empty iterator does."""
    empty: Iterator[object] = iter(())
    return next(empty)


RAISES: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "keyboard_interrupt": _raised(KeyboardInterrupt),
        "generator_exit": _raised(GeneratorExit),
        "system_exit": lambda: sys.exit(3),
        "system_exit_zero": _raised(SystemExit),
        "cancelled": _raised(asyncio.CancelledError),
        "cancelled_run": _raised(lambda: CancelledError("The tool wants so.")),
        "base_exception": _raised(BaseException),
        "own_base_exception": _raised(RudeError),
        "group": _raised(lambda: BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()])),
        "cancelled_group": _raised(
            lambda: BaseExceptionGroup("stops", [CancelledError("inside"), GeneratorExit()])
        ),
        "deep_group": _raised(deep_group),
        "stop_iteration": _ends_generator,
        "stop_async_iteration": _raised(StopAsyncIteration),
        "unreadable": _raised(UnreadableError),
        "surrogates": _raised(lambda: ValueError("\ud800 \udfff \x00 \x1b[2J")),
        "huge_message": _raised(lambda: ValueError("x" * 2_000_000)),
        "long_name": _raised(LongNamedError),
        "broken_chain": _raised(ChainedError),
        "frozen": _raised(FrozenError),
        "retried": _raised(RetriedError),
        "recursion": lambda: _recurse(),
        "memory": _raised(MemoryError),
        "timeout": _raised(TimeoutError),
        "not_an_exception": lambda: _raise_text(),
    }
)
"""Functions that raise, by name."""


def _recurse() -> object:
    return _recurse()


def _raise_text() -> NoReturn:
    raise "text"  # type: ignore[misc]  # noqa: B016


async def _cancels_itself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)
    return "never"


async def _awaits_cancelled() -> object:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


async def _child_exits() -> str:
    async def child() -> None:
        sys.exit(4)

    async with asyncio.TaskGroup() as group:
        group.create_task(child())
    return "never"


async def _callback_interrupts() -> str:
    def interrupts() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupts)
    await asyncio.sleep(0)
    return "interrupted"


async def _swallows_cancel() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return "alive"


ASYNC: Mapping[str, Callable[[], Coroutine[Any, Any, object]]] = MappingProxyType(
    {
        "cancels_itself": _cancels_itself,
        "awaits_cancelled": _awaits_cancelled,
        "child_exits": _child_exits,
        "callback_interrupts": _callback_interrupts,
        "swallows_cancel": _swallows_cancel,
    }
)
"""Coroutine functions that end tasks in odd ways, by name."""


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: float
    at: datetime


class Order(BaseModel):
    number: int
    paid: Decimal
    day: date


class Exiting(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        sys.exit(5)


class Unprintable:
    def __repr__(self) -> str:
        raise KeyboardInterrupt

    __str__ = __repr__


class ShadyText(str):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    def encode(self, *_: object, **__: object) -> bytes:
        raise KeyboardInterrupt


class ShadyDict(dict[str, Any]):
    def items(self) -> NoReturn:
        raise KeyboardInterrupt

    keys = __iter__ = __getitem__ = get = __contains__ = items  # type: ignore[assignment]


class FailingMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise GeneratorExit

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


Pair = namedtuple("Pair", ["left", "right"])


def circular() -> list[Any]:
    """Return a list that contains itself twice."""
    value: list[Any] = []
    value.extend([value, value])
    return value


def nested(depth: int) -> Any:
    """Return nested lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def _interrupted_generator() -> Iterator[int]:
    yield 1
    raise KeyboardInterrupt


async def _numbers() -> AsyncIterator[int]:
    yield 1


RETURNS: Mapping[str, tuple[Callable[[], object], object]] = MappingProxyType(
    {
        "null_error": (
            lambda: {"data": [1, 2], "error": None},
            {"data": [1, 2], "error": None},
        ),
        "false_error": (lambda: {"data": 1, "error": False}, {"data": 1, "error": False}),
        "empty_error": (lambda: {"data": 1, "error": ""}, {"data": 1, "error": ""}),
        "no_errors": (lambda: {"data": 1, "error": []}, {"data": 1, "error": []}),
        "measured_error": (
            lambda: {"slope": 1.5, "error": 0.25},
            {"slope": 1.5, "error": 0.25},
        ),
        "said_error": (lambda: {"error": "The order is closed."}, None),
        "error_of_api": (lambda: {"error": {"status": 404, "message": "none"}}, None),
        "true_error": (lambda: {"error": True, "message": "none"}, None),
        "none": (lambda: None, {"value": None}),
        "odd_text": (lambda: "a\ud800b\x00c", {"value": "a\ufffdb\ufffdc"}),
        "odd_key": (lambda: {"\udfff": {"\x00": 1}}, {"\ufffd": {"\ufffd": 1}}),
        "text_class": (lambda: ShadyText("ok"), {"value": "ok"}),
        "huge_integer": (lambda: 10**300, {"value": 10**300}),
        "larger_integer": (lambda: [10**5000], None),
        "nan": (
            lambda: [float("nan"), float("inf"), 1e308, -0.0],
            {"value": [None, None, 1e308, -0.0]},
        ),
        "circular": (circular, None),
        "nested": (lambda: nested(10_000), None),
        "shared": (lambda: [[[1] * 1000] * 1000] * 8, None),
        "shared_text": (lambda: ["x" * 1_000_000] * 200_000, None),
        "shared_object": (lambda: [dict.fromkeys(map(str, range(1000)))] * 200_000, None),
        "generator": (lambda: (n * n for n in range(4)), {"value": [0, 1, 4, 9]}),
        "inner_generator": (lambda: {"rows": map(str, range(2))}, {"rows": ["0", "1"]}),
        "endless_generator": (itertools.count, None),
        "endless_inner": (lambda: {"rows": [itertools.repeat({})]}, None),
        "interrupted_generator": (_interrupted_generator, None),
        "async_generator": (_numbers, None),
        "set": (lambda: {7}, {"value": [7]}),
        "frozen_set": (lambda: {"tags": frozenset({"a"})}, {"tags": ["a"]}),
        "range": (lambda: range(3), {"value": [0, 1, 2]}),
        "deque": (lambda: deque([1, 2]), {"value": [1, 2]}),
        "views": (lambda: OrderedDict(a=1).items(), {"value": [["a", 1]]}),
        "mapping": (lambda: MappingProxyType({"a": 1}), {"a": 1}),
        "failing_mapping": (FailingMapping, None),
        "shady_dict": (lambda: ShadyDict(a=1), {"a": 1}),
        "pair": (lambda: Pair(1, 2), {"value": [1, 2]}),
        "bytes": (lambda: b"text", {"value": "text"}),
        "other_bytes": (lambda: b"\xff\x00", None),
        "unprintable": (Unprintable, None),
        "unprintable_key": (lambda: {Unprintable(): 1}, None),
        "class": (lambda: Point, None),
        "exception": (lambda: ValueError("not raised"), None),
        "function": (lambda: nested, None),
        "dataclass": (
            lambda: Point(1.5, datetime(2026, 3, 1, 9)),
            {"x": 1.5, "at": "2026-03-01T09:00:00"},
        ),
        "model": (
            lambda: Order(number=1, paid=Decimal("1.10"), day=date(2026, 3, 1)),
            {"number": 1, "paid": "1.10", "day": "2026-03-01"},
        ),
        "models": (
            lambda: [Order(number=2, paid=Decimal(2), day=date(2026, 3, 2))],
            {"value": [{"number": 2, "paid": "2", "day": "2026-03-02"}]},
        ),
        "exiting_model": (Exiting, None),
        "decimal": (lambda: Decimal("0.10"), {"value": "0.10"}),
        "decimal_nan": (lambda: Decimal("NaN"), {"value": "NaN"}),
        "fraction": (lambda: Fraction(1, 3), {"value": "1/3"}),
        "enum": (lambda: {"c": Colour.RED, "l": Level.HIGH}, {"c": "red", "l": 3}),
        "enum_key": (lambda: {Colour.RED: 1}, {"red": 1}),
        "local_time": (
            lambda: datetime(2026, 3, 1, 9, tzinfo=UTC),
            {"value": "2026-03-01T09:00:00Z"},
        ),
        "times": (
            lambda: [date(2026, 3, 1), time(9, 30), timedelta(minutes=5)],
            {"value": ["2026-03-01", "09:30:00", "PT5M"]},
        ),
        "uuid": (lambda: UUID(int=1), {"value": "00000000-0000-0000-0000-000000000001"}),
        "path": (lambda: Path("a/b"), {"value": "a/b"}),
        "integer_keys": (lambda: {1: "a", None: "b"}, {"1": "a", "None": "b"}),
        "equal_keys": (lambda: {1: "a", "1": "b"}, None),
        "large_text": (lambda: "x" * 1_200_000, None),
        "many_values": (lambda: [{}] * 20_000, {"value": [{}] * 20_000}),
    }
)
"""Functions and the results of their tools, by name; None is a failed call."""

_SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


@tool
async def leaks() -> str:
    """Returns the value that an earlier call has set in the context."""
    before = _SEEN.get()
    _SEEN.set("something")
    return before


@tool(timeout_seconds=150)
async def lingers() -> None:
    """Waits, and interrupts its process when it is cancelled."""
    try:
        await asyncio.sleep(150)
    finally:
        raise KeyboardInterrupt


@tool(timeout_seconds=150)
async def waits_for_ever() -> None:
    """Waits until it is cancelled."""
    await asyncio.sleep(150)


@tool
def books(at: datetime) -> str:
    """Books a table."""
    return at.isoformat()


@tool
def reminds(at: NaiveDatetime) -> str:
    """Sets a reminder at a local time."""
    return at.isoformat()


@tool
async def calls_at(at: AwareDatetime) -> str:
    """Calls at a time in a zone."""
    return at.isoformat()


@tool
def opens(at: time) -> str:
    """Sets the hour at which the shop opens."""
    return at.isoformat()


@tool
def waits(span: timedelta, days: list[date] | None = None) -> str:
    """Waits for a while."""
    return f"{span.total_seconds():g} {[each.isoformat() for each in days or ()]}"


@tool
def finds(id: UUID) -> str:  # noqa: A002
    """Finds a thing."""
    return str(id)


class OddTool:
    """A tool of a class that calls a function."""

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.spec = ToolSpec(
            name=name,
            description="Does something odd.",
            parameters={"type": "object", "additionalProperties": False, "properties": {}},
        )
        self._function = function

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the function; its result must be a dict."""
        found = self._function()
        return found if isinstance(found, Mapping) else {"value": found}


def odd_tool(name: str, function: Callable[[], object], kind: str) -> Tool:
    """Return a tool that calls ``function``; ``kind`` is ``plain``, ``async`` or ``class``."""
    if kind == "class":
        return OddTool(name, function)

    def plain() -> Any:
        return function()

    async def coroutine() -> Any:
        found = function()
        return await found if inspect.iscoroutine(found) else found

    return tool(name=name, description="Does something odd.")(
        plain if kind == "plain" else coroutine
    )


KINDS = ("plain", "async", "class")

for _kind in KINDS:
    for _name, _function in RAISES.items():
        globals()[f"raises_{_name}_{_kind}"] = odd_tool(f"raises_{_name}_{_kind}", _function, _kind)
    for _name, (_function, _) in RETURNS.items():
        globals()[f"returns_{_name}_{_kind}"] = odd_tool(
            f"returns_{_name}_{_kind}", _function, _kind
        )
for _name, _coroutine in ASYNC.items():
    globals()[f"raises_{_name}_async"] = odd_tool(f"raises_{_name}_async", _coroutine, "async")


def plugins() -> list[str]:
    """Return the import paths of all tools here."""
    found = (
        name
        for name, each in globals().items()
        if isinstance(getattr(each, "spec", None), ToolSpec) and not name.startswith("_")
    )
    return [f"tests.support.odd_tools:{name}" for name in found]
