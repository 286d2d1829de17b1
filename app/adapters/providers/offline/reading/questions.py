"""Every kind of question that is understood."""

from collections.abc import Callable
from datetime import date

from app.adapters.providers.offline.quoting import quoted
from app.adapters.providers.offline.reading.action import Action, Reading, alone
from app.adapters.providers.offline.reading.ages import read_age
from app.adapters.providers.offline.reading.bills import read_share_of_bill
from app.adapters.providers.offline.reading.calculations import (
    read_calculation,
    read_comparison,
    read_joined,
    read_left_over,
    read_share,
)
from app.adapters.providers.offline.reading.change import read_change
from app.adapters.providers.offline.reading.cursor import Cursor, MisreadError, new_cursor
from app.adapters.providers.offline.reading.date_terms import DateTerms
from app.adapters.providers.offline.reading.day_questions import (
    read_day_question,
    read_move,
    read_normalise,
    read_plain_day,
)
from app.adapters.providers.offline.reading.day_stories import read_day_story
from app.adapters.providers.offline.reading.distance_questions import (
    read_days_in,
    read_distance,
    read_leap_year,
)
from app.adapters.providers.offline.reading.frames import is_courtesy
from app.adapters.providers.offline.reading.gaps import (
    read_gap,
    read_times_into,
    read_told_change,
)
from app.adapters.providers.offline.reading.motion import read_motion
from app.adapters.providers.offline.reading.purchases import read_rate_question
from app.adapters.providers.offline.reading.sentences import tidied
from app.adapters.providers.offline.reading.sharing import read_sharing
from app.adapters.providers.offline.reading.stock_questions import read_stock_question
from app.adapters.providers.offline.reading.supposed_today import supposed_today, with_today
from app.adapters.providers.offline.reading.time_units import read_time_units
from app.adapters.providers.offline.reading.tokens import MAX_CHARS, TooLongError

_RULES: tuple[Callable[[DateTerms], Action | Reading], ...] = (
    read_calculation,
    read_left_over,
    read_joined,
    read_share,
    read_comparison,
    read_gap,
    read_times_into,
    read_day_question,
    read_plain_day,
    read_move,
    read_normalise,
    read_distance,
    read_leap_year,
    read_days_in,
    read_age,
    read_time_units,
    read_stock_question,
)
_PROBLEMS: tuple[Callable[[DateTerms], Action | Reading], ...] = (
    read_day_story,
    read_rate_question,
    read_share_of_bill,
    read_change,
    read_sharing,
    read_motion,
    read_told_change,
)
"""Those with words of which any may stand there."""

MAX_QUESTIONS = 3
"""As many as a plan may have actions (seed 002, 8.2)."""
_SHOWN_CHARS = 60
_SCOPE = (
    "I can work out arithmetic, dates and daily stock prices that are asked for in plain English"
)


class NotUnderstoodError(Exception):
    """A question that cannot be read, or not in one way only; says which part and why."""


def understand(question: str, today: date) -> Reading:
    """Return what answers a question, or up to ``MAX_QUESTIONS`` in a row.

    Raises:
        NotUnderstoodError: a part cannot be read, or can mean two things.
    """
    if len(question) > MAX_CHARS:
        raise NotUnderstoodError(
            f"I do not understand so long a question: it has more than {MAX_CHARS} characters."
        )
    parts = [part for part in tidied(question).split("?") if _asks(part)]
    if not 1 <= len(parts) <= MAX_QUESTIONS:
        raise NotUnderstoodError(
            f"I do not understand more than {MAX_QUESTIONS} questions at a time."
            if parts
            else f"I do not understand what is asked: there is no question. {_SCOPE}."
        )
    return _joined([_understand_one(part, today) for part in parts])


def _joined(readings: list[Reading]) -> Reading:
    """Return one plan for several questions; each of them must then be one step."""
    if len(readings) == 1:
        return readings[0]
    if any(len(reading.actions) > 1 for reading in readings):
        raise NotUnderstoodError(
            "I do not understand so much at a time: a question that takes several steps has to be "
            "asked alone."
        )
    return Reading(actions=tuple(reading.actions[0] for reading in readings))


def _asks(part: str) -> bool:
    """Tell whether there is more than polite words between two question marks."""
    try:
        return not is_courtesy(new_cursor(part))
    except TooLongError:
        return True


def _understand_one(question: str, today: date) -> Reading:
    """Try every kind of question, even after one has fitted: two that differ are one too many."""
    supposed = supposed_today(question, today)
    if supposed is not None:
        question, today = supposed
        return with_today(_understand_one(question, today), today)
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


def _readings(cursor: Cursor, today: date) -> list[Reading]:
    """Return the different readings that the rules make of all of the question."""
    found: list[Reading] = []
    # Words that only a problem passes over must not count as understood in an explanation.
    apart = new_cursor(cursor.source)
    for rules, reader in ((_RULES, cursor), (_PROBLEMS, apart)):
        for rule in rules:
            reader.back(0)
            try:
                made = rule(DateTerms(reader, today))
            except MisreadError:
                continue
            reading = alone(made) if isinstance(made, Action) else made
            if all(reading.actions != other.actions for other in found):
                found.append(reading)
    return found


def _explanation(cursor: Cursor) -> str:
    if cursor.reason is not None:
        return f"I do not understand the question for certain: {cursor.reason}."
    rest = cursor.source[cursor.token(cursor.farthest).start :].strip()
    if not rest.strip("!. "):
        return f"I do not understand what is asked: the question ends too early. {_SCOPE}."
    shown = quoted(rest, limit=_SHOWN_CHARS)
    return f"I do not understand '{shown}' in the question. {_SCOPE}."
