"""Every kind of question that is understood."""

from collections.abc import Callable
from datetime import date
from typing import TypeVar

from app.adapters.providers.offline.quoting import quoted
from app.adapters.providers.offline.reading.action import Action
from app.adapters.providers.offline.reading.calculations import (
    read_calculation,
    read_comparison,
    read_joined,
    read_left_over,
    read_share,
)
from app.adapters.providers.offline.reading.cursor import Cursor, MisreadError, new_cursor
from app.adapters.providers.offline.reading.date_terms import DateTerms
from app.adapters.providers.offline.reading.day_questions import (
    read_day_question,
    read_move,
    read_normalise,
    read_plain_day,
)
from app.adapters.providers.offline.reading.distance_questions import (
    read_days_in,
    read_distance,
    read_leap_year,
)
from app.adapters.providers.offline.reading.frames import is_courtesy
from app.adapters.providers.offline.reading.tokens import MAX_CHARS, TooLongError

_CALCULATIONS: tuple[Callable[[Cursor], Action], ...] = (
    read_calculation,
    read_left_over,
    read_joined,
    read_share,
    read_comparison,
)
_DATES: tuple[Callable[[DateTerms], Action], ...] = (
    read_day_question,
    read_plain_day,
    read_move,
    read_normalise,
    read_distance,
    read_leap_year,
    read_days_in,
)
T = TypeVar("T")

MAX_QUESTIONS = 3
"""As many as a plan may have actions (seed 002, 8.2)."""
_SHOWN_CHARS = 60
_SCOPE = "I can work out arithmetic and dates that are asked for in plain English"


class NotUnderstoodError(Exception):
    """A question that cannot be read, or not in one way only; says which part and why."""


def understand(question: str, today: date) -> tuple[Action, ...]:
    """Return the tool calls that answer a question, or up to ``MAX_QUESTIONS`` in a row.

    Raises:
        NotUnderstoodError: a part cannot be read, or can mean two things.
    """
    if len(question) > MAX_CHARS:
        raise NotUnderstoodError(
            f"I do not understand so long a question: it has more than {MAX_CHARS} characters."
        )
    parts = [part for part in question.split("?") if _asks(part)]
    if not 1 <= len(parts) <= MAX_QUESTIONS:
        raise NotUnderstoodError(
            f"I do not understand more than {MAX_QUESTIONS} questions at a time."
            if parts
            else f"I do not understand what is asked: there is no question. {_SCOPE}."
        )
    return tuple(_understand_one(part, today) for part in parts)


def _asks(part: str) -> bool:
    """Tell whether there is more than polite words between two question marks."""
    try:
        return not is_courtesy(new_cursor(part))
    except TooLongError:
        return True


def _understand_one(question: str, today: date) -> Action:
    """Try every kind of question, even after one has fitted: two that differ are one too many."""
    try:
        cursor = new_cursor(question)
    except TooLongError as error:
        raise NotUnderstoodError(f"I do not understand so long a question: {error}.") from None
    readings = _readings(cursor, today)
    if len(readings) > 1:
        raise NotUnderstoodError(
            "I do not understand for certain what is asked: it can be read in two ways."
        )
    if not readings:
        raise NotUnderstoodError(_explanation(cursor))
    return readings[0]


def _readings(cursor: Cursor, today: date) -> list[Action]:
    """Return the different actions that the rules make of all of the question."""
    found: list[Action] = []
    for rule in _CALCULATIONS:
        _collect(found, cursor, rule, cursor)
    for dated in _DATES:
        _collect(found, cursor, dated, DateTerms(cursor, today))
    return found


def _collect(found: list[Action], cursor: Cursor, rule: Callable[[T], Action], reader: T) -> None:
    cursor.back(0)
    try:
        action = rule(reader)
    except MisreadError:
        return
    if action not in found:
        found.append(action)


def _explanation(cursor: Cursor) -> str:
    if cursor.reason is not None:
        return f"I do not understand the question for certain: {cursor.reason}."
    rest = cursor.source[cursor.token(cursor.farthest).start :].strip()
    if not rest.strip("!. "):
        return f"I do not understand what is asked: the question ends too early. {_SCOPE}."
    shown = quoted(rest, limit=_SHOWN_CHARS)
    return f"I do not understand '{shown}' in the question. {_SCOPE}."
