"""Every kind of question that is understood."""

from datetime import date

from app.adapters.providers.offline.quoting import quoted
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.supposed_today import (
    asks_for_now,
    supposed_today,
    with_today,
)
from app.adapters.providers.offline.reading.rules import ASIDE, RULES, Rule
from app.adapters.providers.offline.reading.words.action import Action, Reading, alone
from app.adapters.providers.offline.reading.words.cursor import Cursor, MisreadError, new_cursor
from app.adapters.providers.offline.reading.words.frames import is_courtesy
from app.adapters.providers.offline.reading.words.sentences import tidied
from app.adapters.providers.offline.reading.words.tokens import MAX_CHARS, TooLongError

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
        reading = _understand_one(question, today)
        if asks_for_now(reading):
            raise NotUnderstoodError("I do not understand what time it is on a supposed day.")
        return with_today(reading, today)
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
    for rules, reader in ((RULES, cursor), (ASIDE, cursor.anew())):
        for rule in rules:
            reading = _reading(rule, reader, today) if rule.may_apply(reader) else None
            if reading and all(reading.actions != other.actions for other in found):
                found.append(reading)
    return found


def _reading(rule: Rule, cursor: Cursor, today: date) -> Reading | None:
    cursor.back(0)
    try:
        made = rule.read(DateTerms(cursor, today))
    except MisreadError:
        return None
    return alone(made) if isinstance(made, Action) else made


def _explanation(cursor: Cursor) -> str:
    if cursor.reason is not None:
        return f"I do not understand the question for certain: {cursor.reason}."
    rest = cursor.source[cursor.token(cursor.farthest).start :].strip()
    if not rest.strip("!. "):
        return f"I do not understand what is asked: the question ends too early. {_SCOPE}."
    shown = quoted(rest, limit=_SHOWN_CHARS)
    return f"I do not understand '{shown}' in the question. {_SCOPE}."
