"""The step type that routes a value according to conditions on its inputs.

Conditions are data and are never executed. A missing value satisfies only ``missing``. A comparison
of incompatible types, such as a boolean and a number, is false. If a numeric string, such as an
exact result, is compared with a number, it counts as a number.

The caller chooses both the conditions and the values, so the total work is limited. Each comparison
charges its cost in advance, and a step that exceeds MAX_COMPARISONS fails.
"""

import asyncio
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from caseworker.core.graph.validation import Handles
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.events import ROUTED, Event
from caseworker.nodes.node_type import NONE, NodeType
from caseworker.nodes.strict_parsing import HandleName, PathField, StepData, usual_path
from caseworker.nodes.templates import MISSING
from caseworker.platform.validation import refusal

_Comparison = Literal["eq", "ne", "gt", "ge", "lt", "le"]
_Alone = Literal["exists", "missing", "is_true"]
"""The operators that take no value."""
Operator = Literal[_Comparison, "in", "contains", "starts_with", "ends_with", _Alone]

_ALONE = frozenset(get_args(_Alone))
_TEXTS = frozenset({"starts_with", "ends_with"})
_ORDERS = frozenset({"gt", "ge", "lt", "le"})
_COMPARISONS = frozenset(get_args(_Comparison))
MAX_COMPARISONS = 50_000
"""Maximum number of single-value comparisons in one step; together they take less than 100 ms."""
YIELD_AFTER = 2000
"""Number of comparisons after which a step yields to other tasks."""

_CHARS_PER_COMPARISON = 200
"""Number of text characters that cost as much as one comparison."""
_LONGEST_NUMBER = 1000
"""Characters; a longer text is not treated as a number."""

_Several = Annotated[list["Condition"], Field(min_length=1, max_length=100)]


class Condition(StepData):
    """``{path, op, value}``, or one of ``{all: [...]}``, ``{any: [...]}`` and ``{not: ...}``."""

    path: PathField | None = None
    """Path, in the step's inputs, to the value to test."""
    op: Operator | None = None
    value: Any = None
    """JSON value to compare with. It is not a template."""
    all_: _Several | None = Field(default=None, alias="all")
    any_: _Several | None = Field(default=None, alias="any")
    not_: "Condition | None" = Field(default=None, alias="not")

    @model_validator(mode="after")
    def _has_one_form(self) -> "Condition":
        joins = [self.all_, self.any_, self.not_]
        compares = not self.model_fields_set.isdisjoint({"path", "op", "value"})
        if sum(join is not None for join in joins) + compares != 1:
            raise refusal(
                "A condition must be exactly one of {path, op, value}, {all}, {any} and {not}."
            )
        if compares:
            self._require_comparison()
        return self

    def _require_comparison(self) -> None:
        if self.path is None or self.op is None:
            raise refusal("A comparison requires path and op.")
        if self.op in _ALONE:
            if "value" in self.model_fields_set:
                raise refusal("This op does not accept a value.")
            return
        if "value" not in self.model_fields_set:
            raise refusal("This op requires a value.")
        if self.op in _ORDERS and not (_is_number(self.value) or isinstance(self.value, str)):
            raise refusal("This op requires a number or a string as its value.")
        if self.op in _TEXTS and not isinstance(self.value, str):
            raise refusal("This op requires a string as its value.")
        if self.op == "in" and not isinstance(self.value, list | str):
            raise refusal("This op requires a list or a string as its value.")

    def holds(self, inputs: Mapping[str, Any], work: "Work") -> bool:
        """Return whether a step's inputs satisfy the condition.

        Raises:
            TooManyComparisonsError: the step has made all comparisons that ``work`` allows.
        """
        if self.all_ is not None:
            return all(one.holds(inputs, work) for one in self.all_)
        if self.any_ is not None:
            return any(one.holds(inputs, work) for one in self.any_)
        if self.not_ is not None:
            return not self.not_.holds(inputs, work)
        if self.path is None or self.op is None:
            return False
        work.charge(len(self.path.names))
        actual = self.path.find(inputs)
        if actual is MISSING:
            return self.op == "missing"
        if self.op in _COMPARISONS and _is_number(self.value):
            work.charge_text(actual)
            number = _number_in(actual)
            if number is not None:  # compare floats by their shortest digits
                return _OPERATORS[self.op](number, Decimal(str(self.value)), work)
        return _OPERATORS[self.op](actual, self.value, work)


class TooManyComparisonsError(ValueError):
    """A step's conditions compare too many values."""

    def __init__(self) -> None:
        super().__init__(
            f"The conditions of the step compare more than {MAX_COMPARISONS:,} values: use fewer"
            " conditions or a shorter list."
        )


class Work:
    """Counts the comparisons of one step and enforces their limit."""

    __slots__ = ("comparisons",)

    def __init__(self) -> None:
        self.comparisons = 0

    def charge(self, count: int) -> None:
        """Count comparisons before they are made, or raise TooManyComparisonsError."""
        self.comparisons += count
        if self.comparisons > MAX_COMPARISONS:
            raise TooManyComparisonsError

    def charge_text(self, value: Any) -> None:
        """Count the comparison of one value; a long text counts as several comparisons."""
        self.charge(1 + (len(value) // _CHARS_PER_COMPARISON if isinstance(value, str) else 0))


def same(one: Any, other: Any, work: Work) -> bool:
    """Return whether two JSON values are equal; 1 equals 1.0, but neither equals true."""
    pairs = [(one, other)]
    while pairs:
        a, b = pairs.pop()
        work.charge_text(a)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            work.charge(len(a))
            if a.keys() != b.keys():
                return False
            pairs += ((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            work.charge(len(a))
            pairs += zip(a, b, strict=True)
        elif _kind(a) != _kind(b) or a != b:
            return False
    return True


def _kind(value: Any) -> type:
    if _is_number(value):
        return float
    return type(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _number_in(value: Any) -> Decimal | None:
    """Return the value of a numeric text; None for anything else."""
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


_Operation = Callable[[Any, Any, Work], bool]


def _ordered(compare: Callable[[Any, Any], bool]) -> _Operation:
    def compared(actual: Any, value: Any, work: Work) -> bool:
        work.charge_text(value)
        numbers = _is_number(actual) and _is_number(value)
        texts = isinstance(actual, str) and isinstance(value, str)
        return (numbers or texts) and compare(actual, value)

    return compared


def _contains(container: Any, part: Any, work: Work) -> bool:
    """Return whether a list has an item, a text a substring, or an object a key."""
    if isinstance(container, list):
        if isinstance(part, Mapping | list):
            return any(same(item, part, work) for item in container)
        longest = len(part) // _CHARS_PER_COMPARISON if isinstance(part, str) else 0
        work.charge(len(container) * (1 + longest))
        kind = _kind(part)
        return any(item == part and _kind(item) == kind for item in container)
    if not (isinstance(container, str | Mapping) and isinstance(part, str)):
        return False
    work.charge_text(container)
    return part in container


def _affix(matches: Callable[[str, str], bool]) -> _Operation:
    def matched(actual: Any, value: Any, work: Work) -> bool:
        work.charge_text(value)
        return isinstance(actual, str) and matches(actual, value)

    return matched


_OPERATORS: Mapping[str, _Operation] = {
    "eq": same,
    "ne": lambda actual, value, work: not same(actual, value, work),
    "gt": _ordered(lambda actual, value: actual > value),
    "ge": _ordered(lambda actual, value: actual >= value),
    "lt": _ordered(lambda actual, value: actual < value),
    "le": _ordered(lambda actual, value: actual <= value),
    "in": lambda actual, value, work: _contains(value, actual, work),
    "contains": _contains,
    "starts_with": _affix(str.startswith),
    "ends_with": _affix(str.endswith),
    "exists": lambda actual, value, work: True,
    "missing": lambda actual, value, work: False,
    "is_true": lambda actual, value, work: actual is True,
}


class Route(StepData):
    """A condition and the output that it selects."""

    when: Condition
    to: HandleName
    """Name of the output handle that receives the value."""


class RouterData(StepData):
    """The routes of a router step."""

    routes: Annotated[list[Route], Field(min_length=1, max_length=100)]
    """Routes, evaluated in order."""
    otherwise: HandleName | None = None
    """Output handle if no route matches. By default the value is then sent nowhere."""
    mode: Literal["first", "all"] = "first"
    """Which matching routes to take: ``first`` takes only the first one, ``all`` takes all."""
    value: PathField = usual_path()
    """Path, in the step's inputs, to the value to send."""

    @property
    def ways(self) -> frozenset[str]:
        """All handles on which the value can be sent."""
        targets = {route.to for route in self.routes}
        return frozenset(targets if self.otherwise is None else {*targets, self.otherwise})

    def chosen_handles(self, inputs: Mapping[str, Any], work: Work) -> list[str]:
        """Return the handles on which the value is sent.

        Raises:
            TooManyComparisonsError: the conditions compare too many values.
        """
        applying = (route.to for route in self.routes if route.when.holds(inputs, work))
        ways = list(islice(applying, 1 if self.mode == "first" else None))
        return ways or ([] if self.otherwise is None else [self.otherwise])


class RouterNode:
    """Routes a step's value. Branches that receive no value are skipped."""

    async def execute(
        self, data: RouterData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Put the value on the handles of the matching routes.

        Raises:
            MissingValueError: the value to send is missing.
            TooManyComparisonsError: the conditions compare too many values.
        """
        work = Work()
        ways = data.chosen_handles(inputs, work)
        if work.comparisons > YIELD_AFTER:
            await asyncio.sleep(0)
        events = context.run.events
        if events is not None:
            at, node = context.path.text, context.trace_parent
            events.emit(Event(type=ROUTED, step_id=at, node_id=node, data={"handles": ways}))
        if not ways:
            return ExecutionResult()
        return ExecutionResult(dict.fromkeys(ways, data.value.value_in(inputs)))


def router_type() -> NodeType:
    """Return the step type that routes a value by conditions."""
    return NodeType(
        name="router",
        description="Sends its input to the output handles whose conditions are met."
        " Steps that only the other handles lead to are skipped.",
        node=RouterNode(),
        data=RouterData,
        handles=Handles(link_inputs=NONE, link_outputs=NONE),
        flow_outputs=lambda data: data.ways,
    )
