"""Plans: a strict JSON schema, and references to results of earlier actions.

A reply must be a single JSON object. A code fence or prose around it is rejected, and the reprompt
explains why. That costs one call, but guessing could execute actions that were not planned. (For
models without structured output, the gateway has already removed text around the JSON.)

``${result.1}`` in the arguments of an action refers to the finding of action 1, and
``${result.1.closes.0}`` to a value inside its result. A string that is only one reference becomes
the value itself, of any type. Inside a longer string, the value becomes text. References are
substituted once: results are never parsed for references, and nothing is evaluated.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caseworker.models.forms import StatedSchema, storable_json
from caseworker.tools.functions import PlannerFunction, closed, texts_in
from caseworker.tools.ports import ToolResult, is_failure
from caseworker_cases.agent.evidence import Action, finding

MAX_ACTIONS = 3
MAX_REPLY_CHARS = 20_000
MAX_DEPTH = 12
"""Maximum nesting depth of an action's arguments."""

MAX_FILLED_CHARS = 100_000
"""Maximum number of characters substituted in one action. JSON values are counted as text."""

MISSING_RESULT = "missing_result"
"""Error code of an action that did not run because a reference in its arguments has no value."""

_PLACE = re.compile(r"\$\{result\.([1-9])((?:\.[A-Za-z0-9_-]{1,64}){0,8})\}", re.ASCII)
_INTENDED = re.compile(r"\$\{results?\b")
_INDEX = re.compile(r"[0-9]{1,6}", re.ASCII)

CANNOT = "cannot"
"""Function name that a planner calls, instead of a tool, to decline the case."""

_CANNOT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["reason"],
    "properties": {"reason": {"type": "string"}},
}


@dataclass(frozen=True, slots=True)
class PlanForm:
    """The keys that a plan uses in JSON."""

    actions: str
    tool: str
    args: str
    lead: str | None = None
    """Key of an introductory text before the actions; None if the form has none."""


ACTIONS = PlanForm("actions", "tool", "args")
CALLS = PlanForm("calls", "function", "arguments", lead="steps")
"""The form of a second plan: first the steps in words, then the calls."""


def plan_schema(functions: Iterable[PlannerFunction], form: PlanForm = ACTIONS) -> StatedSchema:
    """Return the JSON Schema for plans, with a branch per function and one for ``CANNOT``.

    The title of a branch is the name of the tool that its function belongs to.
    """

    def branch(name: str, tool: str, args: Mapping[str, Any]) -> dict[str, Any]:
        properties = {form.tool: {"type": "string", "enum": [name]}, form.args: args}
        return {"title": tool, **_object(properties)}

    branches = {one.name: branch(one.name, one.tool, closed(one.parameters)) for one in functions}
    branches.setdefault(CANNOT, branch(CANNOT, CANNOT, _CANNOT_SCHEMA))
    action = {"anyOf": list(branches.values())}
    actions = {"type": "array", "minItems": 1, "maxItems": MAX_ACTIONS, "items": action}
    lead = {form.lead: {"type": "string"}} if form.lead else {}
    return StatedSchema(_object({**lead, form.actions: actions}))


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


class PlanSchemaError(ValueError):
    """A reply is not a valid plan. The message states the fix and quotes no part of the reply."""


class UnresolvedReferenceError(ValueError):
    """A reference cannot be resolved. The message states why and contains no values."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One to three actions that run in order."""

    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Cannot:
    """A planner's statement that it cannot plan the case."""

    reason: str


def parse_plan(reply: str, form: PlanForm = ACTIONS) -> Plan | Cannot:
    """Parse a planner's reply; raise PlanSchemaError if it is not a valid plan."""
    value, listed = _json_in(reply), form.actions
    if not isinstance(value, dict) or value.keys() - {form.lead} not in ({listed}, {CANNOT}):
        raise PlanSchemaError(f"Reply with an object that has one key, either {listed} or cannot.")
    if CANNOT in value:
        return Cannot(_text(value[CANNOT], CANNOT))
    actions = value[listed]
    if reason := _reason_to_give_up(actions, form):
        return Cannot(reason)
    if not isinstance(actions, list):
        raise PlanSchemaError(f"{listed} must be a list.")
    if not 1 <= len(actions) <= MAX_ACTIONS:
        raise PlanSchemaError(f"{listed} must hold 1 to {MAX_ACTIONS} items, not {len(actions)}.")
    return Plan(tuple(_action(item, number, form) for number, item in enumerate(actions, start=1)))


def _reason_to_give_up(actions: Any, form: PlanForm) -> str | None:
    """Return the reason if the planner gives up through an action, else None."""
    for each in actions if isinstance(actions, list) else ():
        if isinstance(each, dict) and each.get(form.tool) == CANNOT:
            args = each.get(form.args)
            reason = args.get("reason") if isinstance(args, dict) else None
            return reason.strip() if isinstance(reason, str) and reason.strip() else "no reason"
    return None


def _action(item: Any, number: int, form: PlanForm) -> Action:
    place, tool, args = f"{form.actions}[{number - 1}]", form.tool, form.args
    if not isinstance(item, dict) or item.keys() != {tool, args}:
        raise PlanSchemaError(f"{place} must be an object with exactly the keys {tool} and {args}.")
    if not isinstance(item[args], dict):
        raise PlanSchemaError(f"{place}.{args} must be an object.")
    try:
        require_earlier(item[args], number)
    except UnresolvedReferenceError as problem:
        raise PlanSchemaError(f"{place}.{args}: {problem}.") from None
    return Action(_text(item[tool], f"{place}.{tool}"), item[args])


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PlanSchemaError(f"{place} must be text that is not empty.")
    return value


def _json_in(reply: str) -> Any:
    if len(reply) > MAX_REPLY_CHARS:
        raise PlanSchemaError(f"The reply is longer than {MAX_REPLY_CHARS} characters.")
    try:
        value = json.loads(
            reply,
            object_pairs_hook=_without_duplicates,
            parse_constant=_finite,
            parse_float=_finite,
        )
        if _depth(value) > MAX_DEPTH:
            raise PlanSchemaError("The arguments are nested too deeply.")
    except PlanSchemaError:
        raise
    except (ValueError, RecursionError):
        raise PlanSchemaError(
            "The reply is not JSON: reply with one JSON object alone, without prose and without "
            "a code fence."
        ) from None
    if storable_json(value) != value:
        raise PlanSchemaError("A text contains a NUL character or an unpaired surrogate.")
    return value


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise PlanSchemaError("A key stands twice in one object.")
        members[key] = value
    return members


def _finite(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        constant = f"{written} is not a JSON number."
        raise PlanSchemaError("A number is too large." if written[-1].isdigit() else constant)
    return number


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


def require_earlier(args: Mapping[str, Any], number: int) -> None:
    """Check that the arguments refer only to results of actions before ``number``.

    Raises:
        UnresolvedReferenceError: a reference is malformed, or names another action.
    """
    for text in texts_in(args):
        places = [int(place[1]) for place in _PLACE.finditer(text)]
        if len(places) != len(_INTENDED.findall(text)):
            raise UnresolvedReferenceError(
                "write ${result.1}, or ${result.1.name} for a part of it"
            )
        if any(place >= number for place in places):
            raise UnresolvedReferenceError("only the results of earlier actions can be used")


def results_used(args: Mapping[str, Any]) -> set[int]:
    """Return the numbers of the actions whose results the arguments reference."""
    return {int(place[1]) for text in texts_in(args) for place in _PLACE.finditer(text)}


def fill(args: Mapping[str, Any], results: Mapping[int, ToolResult]) -> dict[str, Any]:
    """Return the arguments with all references replaced by their values.

    ``results`` holds the results of earlier actions, keyed by action number.

    Raises:
        UnresolvedReferenceError: a result or a part of it is missing, or the values are too large.
    """
    filling = _Filling(results)
    return {name: filling.filled(value) for name, value in args.items()}


class _Filling:
    """Replaces the references in the arguments of one action."""

    def __init__(self, results: Mapping[int, ToolResult]) -> None:
        self._results = results
        self._chars_left = MAX_FILLED_CHARS

    def filled(self, value: Any) -> Any:
        """Return a part of the arguments with its references replaced."""
        if isinstance(value, dict):
            return {name: self.filled(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(inner) for inner in value]
        if not isinstance(value, str):
            return value
        match = _PLACE.fullmatch(value)
        if match is None:
            return _PLACE.sub(lambda place: self._value_at(place, as_text=True), value)
        return self._value_at(match, as_text=False)

    def _value_at(self, place: re.Match[str], *, as_text: bool) -> Any:
        result = self._results.get(int(place[1]))
        if result is None or is_failure(result):
            raise UnresolvedReferenceError(
                f"Action {place[1]} has no result that could be used here."
            )
        value: Any = result
        if not place[2]:
            value = result["value"] if "value" in result and not as_text else finding(result)
        for name in place[2].split(".")[1:]:
            value = _part(value, name)
        if value is None:
            raise UnresolvedReferenceError(f"There is no value at {place[0]}.")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self._chars_left -= len(text)
        if self._chars_left < 0:
            limit_text = f"more than {MAX_FILLED_CHARS} characters"
            raise UnresolvedReferenceError(f"The results to be used here come to {limit_text}.")
        return text if as_text else value


def _part(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
        return value[int(name)]
    return None
