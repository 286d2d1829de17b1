"""A step that sends a value on by conditions on its inputs.

Conditions are data: nothing in them is ever executed. A value that is not there meets no condition
but ``missing``. Values of kinds that cannot be compared make a comparison false, and so does true
or false in the place of a number. A text that is a number, as exact results are, counts as that
number where it is compared with one.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from app.engine.context import FlowContext
from app.engine.events import ROUTED, Event
from app.engine.node import ExecutionResult
from app.kernel.validation import Handles
from app.nodes.node_type import NONE, NodeType
from app.nodes.reading import HandleName, PathField, StepData, refusal, usual_path
from app.nodes.templates import MISSING

_Comparison = Literal["eq", "ne", "gt", "ge", "lt", "le"]
_Alone = Literal["exists", "missing", "is_true"]
"""The operators that take no value."""
Operator = Literal[_Comparison, "in", "contains", "starts_with", "ends_with", _Alone]

_ALONE = frozenset(get_args(_Alone))
_TEXTS = frozenset({"starts_with", "ends_with"})
_ORDERS = frozenset({"gt", "ge", "lt", "le"})
_COMPARISONS = frozenset(get_args(_Comparison))
_LONGEST_NUMBER = 1000
"""Characters; a longer text is no number here."""

_Several = Annotated[list["Condition"], Field(min_length=1, max_length=100)]


class Condition(StepData):
    """``{path, op, value}``, or one of ``{all: [...]}``, ``{any: [...]}`` and ``{not: ...}``."""

    path: PathField | None = None
    """What is looked at."""
    op: Operator | None = None
    value: Any = None
    """What it is compared with: a JSON value, taken as it stands."""
    all_: _Several | None = Field(default=None, alias="all")
    any_: _Several | None = Field(default=None, alias="any")
    not_: "Condition | None" = Field(default=None, alias="not")

    @model_validator(mode="after")
    def _has_one_form(self) -> "Condition":
        joins = [self.all_, self.any_, self.not_]
        compares = not self.model_fields_set.isdisjoint({"path", "op", "value"})
        if sum(join is not None for join in joins) + compares != 1:
            raise refusal("A condition is one of {path, op, value}, {all}, {any} and {not}.")
        if compares:
            self._require_comparison()
        return self

    def _require_comparison(self) -> None:
        if self.path is None or self.op is None:
            raise refusal("A comparison needs a path and an op.")
        if self.op in _ALONE:
            if "value" in self.model_fields_set:
                raise refusal("This op takes no value.")
            return
        if "value" not in self.model_fields_set:
            raise refusal("This op needs a value.")
        if self.op in _ORDERS and not (_is_number(self.value) or isinstance(self.value, str)):
            raise refusal("This op needs a number or a string as its value.")
        if self.op in _TEXTS and not isinstance(self.value, str):
            raise refusal("This op needs a string as its value.")
        if self.op == "in" and not isinstance(self.value, list | str):
            raise refusal("This op needs a list or a string as its value.")

    def holds(self, inputs: Mapping[str, Any]) -> bool:
        """Return whether the inputs of a step meet the condition."""
        if self.all_ is not None:
            return all(one.holds(inputs) for one in self.all_)
        if self.any_ is not None:
            return any(one.holds(inputs) for one in self.any_)
        if self.not_ is not None:
            return not self.not_.holds(inputs)
        if self.path is None or self.op is None:
            return False
        found = self.path.find(inputs)
        if found is MISSING:
            return self.op == "missing"
        if self.op in _COMPARISONS and _is_number(self.value):
            number = _number_in(found)
            if number is not None:  # a float counts by its digits: 0.1 is more than 1/10
                return _OPERATORS[self.op](number, Decimal(str(self.value)))
        return _OPERATORS[self.op](found, self.value)


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; 1 is 1.0, but neither is true."""
    left = [(one, other)]
    while left:
        a, b = left.pop()
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if a.keys() != b.keys():
                return False
            left += ((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            left += zip(a, b, strict=True)
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
    """Return the number that a text is; None for anything else."""
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(found: Any, value: Any) -> bool:
        numbers = _is_number(found) and _is_number(value)
        texts = isinstance(found, str) and isinstance(value, str)
        return (numbers or texts) and compare(found, value)

    return compared


def _contains(whole: Any, part: Any) -> bool:
    """Return whether a list has an item, a text a part, an object a key."""
    if isinstance(whole, list):
        return any(same(item, part) for item in whole)
    return isinstance(whole, str | Mapping) and isinstance(part, str) and part in whole


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": same,
    "ne": lambda found, value: not same(found, value),
    "gt": _ordered(lambda found, value: found > value),
    "ge": _ordered(lambda found, value: found >= value),
    "lt": _ordered(lambda found, value: found < value),
    "le": _ordered(lambda found, value: found <= value),
    "in": lambda found, value: _contains(value, found),
    "contains": _contains,
    "starts_with": lambda found, value: isinstance(found, str) and found.startswith(value),
    "ends_with": lambda found, value: isinstance(found, str) and found.endswith(value),
    "exists": lambda found, value: True,
    "missing": lambda found, value: False,
    "is_true": lambda found, value: found is True,
}


class Route(StepData):
    """Where a value goes, and when."""

    when: Condition
    to: HandleName
    """The output handle."""


class RouterData(StepData):
    """The routes of a value."""

    routes: Annotated[list[Route], Field(min_length=1, max_length=100)]
    """Tried in their order."""
    otherwise: HandleName | None = None
    """The output handle where no route applies; left out, the value goes nowhere."""
    mode: Literal["first", "all"] = "first"
    """Whether the first route that applies is taken, or all that do."""
    value: PathField = usual_path()
    """What is sent on."""

    @property
    def ways(self) -> frozenset[str]:
        """The handles on which a value may leave."""
        named = {route.to for route in self.routes}
        return frozenset(named if self.otherwise is None else {*named, self.otherwise})

    def taken(self, inputs: Mapping[str, Any]) -> list[str]:
        """Return the handles on which the value leaves."""
        applying = (route.to for route in self.routes if route.when.holds(inputs))
        ways = list(islice(applying, 1 if self.mode == "first" else None))
        return ways or ([] if self.otherwise is None else [self.otherwise])


class RouterNode:
    """Routes the value of its step; a branch without a value is dead."""

    async def execute(
        self, data: RouterData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Put the value on the handles whose conditions the inputs meet.

        Raises:
            MissingValueError: there is no value to send.
        """
        ways = data.taken(inputs)
        events = context.run.events
        if events is not None:
            at, node = context.path.text, context.trace_parent
            events.emit(Event(type=ROUTED, step_id=at, node_id=node, data={"handles": ways}))
        if not ways:
            return ExecutionResult()
        return ExecutionResult(dict.fromkeys(ways, data.value.value_in(inputs)))


def router_type() -> NodeType:
    """Return the type of steps that send a value on by conditions."""
    return NodeType(
        name="router",
        description="Sends its input on to the handles whose conditions it meets."
        " Steps behind the other handles are skipped.",
        node=RouterNode(),
        data=RouterData,
        handles=Handles(link_inputs=NONE, link_outputs=NONE),
        flow_outputs=lambda data: data.ways,
    )
