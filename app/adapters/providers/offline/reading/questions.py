"""Every kind of question that is understood."""

from collections.abc import Callable
from datetime import date

from app.adapters.providers.offline.reading.action import Action
from app.adapters.providers.offline.reading.calculations import (
    read_calculation,
    read_comparison,
    read_share,
)
from app.adapters.providers.offline.reading.cursor import Cursor, MisreadError
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
from app.adapters.providers.offline.reading.tokens import TooLongError, tokenize

_CALCULATIONS: tuple[Callable[[Cursor], Action], ...] = (
    read_calculation,
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
_SHOWN_CHARS = 60
_SCOPE = "I can work out arithmetic and dates that are asked for in plain English"


class NotUnderstoodError(Exception):
    """A question that cannot be read, or not in one way only; says which part and why."""


def understand(question: str, today: date) -> Action:
    """Return the one tool call that answers the question.

    Every kind of question is tried, even after one has fitted: if two read it differently, it is
    not understood.

    Raises:
        NotUnderstoodError: no kind reads all of it, or it can mean two things.
    """
    try:
        cursor = Cursor(tokenize(question), question)
    except TooLongError as error:
        raise NotUnderstoodError(f"I do not understand so long a question: {error}.") from None
    readings = _readings(cursor, today)
    if len(readings) > 1:
        raise NotUnderstoodError(
            "I do not understand for certain what is asked: it can be read in two ways."
        )
    if not readings:
        raise NotUnderstoodError(_explanation(cursor, question))
    return readings[0]


def _readings(cursor: Cursor, today: date) -> list[Action]:
    """Return the different actions that the rules make of all of the question."""
    attempts = [
        *(lambda rule=rule: rule(cursor) for rule in _CALCULATIONS),
        *(lambda rule=rule: rule(DateTerms(cursor, today)) for rule in _DATES),
    ]
    found: list[Action] = []
    for attempt in attempts:
        cursor.back(0)
        try:
            action = attempt()
        except MisreadError:
            continue
        if action not in found:
            found.append(action)
    return found


def _explanation(cursor: Cursor, question: str) -> str:
    if cursor.reason is not None:
        return f"I do not understand the question for certain: {cursor.reason}."
    rest = question[cursor.token(cursor.farthest).start :].strip()
    if not rest.strip("?!. "):
        return f"I do not understand what is asked: the question ends too early. {_SCOPE}."
    shown = rest if len(rest) <= _SHOWN_CHARS else rest[:_SHOWN_CHARS].rstrip() + "…"
    return f"I do not understand '{shown}' in the question. {_SCOPE}."
