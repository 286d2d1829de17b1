"""What a planner may reply: a strict schema (seed 002, requirements 8, 10 and 18).

The reply is one JSON object and nothing else; a code fence or a word of prose around it is refused,
and the reprompt says so. That costs one call where guessing could execute what nobody planned.
What a model that can be asked for JSON in words alone puts around it is cut off before, where the
model is asked.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.nodes.case.references import UnfilledPlaceError, require_earlier

MAX_ACTIONS = 3
MAX_REPLY_CHARS = 20_000
MAX_DEPTH = 12
"""How deep the arguments of an action may be nested."""

_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")

PLAN_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {
        "actions": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_ACTIONS,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["tool", "args"],
                "properties": {
                    "tool": {"type": "string", "minLength": 1},
                    "args": {"type": "object"},
                },
            },
        },
        "cannot": {"type": "string", "minLength": 1},
    },
}
"""The schema for providers that can hold a model to one; exactly one of the two keys."""


class PlanSchemaError(ValueError):
    """A reply that is no plan. The message says what to change and repeats nothing of the reply."""


@dataclass(frozen=True, slots=True)
class Action:
    """One use of a tool."""

    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """One to three actions, executed in order."""

    actions: tuple[Action, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a planner writes it."""
        return {"actions": [{"tool": act.tool, "args": dict(act.args)} for act in self.actions]}


@dataclass(frozen=True, slots=True)
class Cannot:
    """A planner says that it cannot plan this case."""

    reason: str


def parse_plan(reply: str) -> Plan | Cannot:
    """Read a planner's reply.

    Raises:
        PlanSchemaError: it is anything else than a plan, or than a refusal to make one.
    """
    value = _json_in(reply)
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"actions", "cannot"}:
        raise PlanSchemaError("Reply with an object that has one key, either actions or cannot.")
    if "cannot" in value:
        return Cannot(_text(value["cannot"], "cannot"))
    actions = value["actions"]
    if not isinstance(actions, list):
        raise PlanSchemaError("actions must be a list.")
    if not 1 <= len(actions) <= MAX_ACTIONS:
        raise PlanSchemaError(f"actions must hold 1 to {MAX_ACTIONS} items, not {len(actions)}.")
    return Plan(tuple(_action(item, number) for number, item in enumerate(actions, start=1)))


def _action(item: Any, number: int) -> Action:
    place = f"actions[{number - 1}]"
    if not isinstance(item, dict) or item.keys() != {"tool", "args"}:
        raise PlanSchemaError(f"{place} must be an object with exactly the keys tool and args.")
    if not isinstance(item["args"], dict):
        raise PlanSchemaError(f"{place}.args must be an object.")
    try:
        require_earlier(item["args"], number)
    except UnfilledPlaceError as problem:
        raise PlanSchemaError(f"{place}.args: {problem}.") from None
    return Action(_text(item["tool"], f"{place}.tool"), item["args"])


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
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except PlanSchemaError:
        raise
    except (ValueError, RecursionError):
        raise PlanSchemaError(
            "The reply is not JSON: reply with one JSON object alone, without prose and without "
            "a code fence."
        ) from None
    _require_storable([value], 0)
    return value


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PlanSchemaError("A key stands twice in one object.")
        found[key] = value
    return found


def _refuse_constant(constant: str) -> Any:
    raise PlanSchemaError(f"{constant} is not a JSON number.")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise PlanSchemaError("A number is too large.")
    return number


def _require_storable(values: Iterable[Any], depth: int) -> None:
    """Refuse what no database or trace could hold: NUL, half characters, endless nesting."""
    if depth > MAX_DEPTH:
        raise PlanSchemaError("The arguments are nested too deeply.")
    for value in values:
        if isinstance(value, str):
            if _NO_CHARACTER.search(value) is not None:
                raise PlanSchemaError("A text holds a character that is none.")
        elif isinstance(value, dict):
            _require_storable(value, depth)  # its keys
            _require_storable(value.values(), depth + 1)
        elif isinstance(value, list):
            _require_storable(value, depth + 1)
