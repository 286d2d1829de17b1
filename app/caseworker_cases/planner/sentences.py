"""Matches whole sentences with typed placeholders, and returns their tool calls.

A sentence is plain text with three notations: ``[a ]`` is optional, ``(a|b)`` is one of several
alternatives, and ``{place}`` or ``{name:place}`` is a placeholder. ``<what is>`` and ``<which date
is>`` are short for the usual optional openings. A sentence is split at its placeholders. Each part
is matched once, from left to right and without backtracking, so parsing takes linear time.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from unicodedata import normalize

from caseworker_cases.planner.places import PLACES, Placeholder, PlaceholderMismatchError

MAX_CHARS: Final = 500
"""Maximum length of a question, in characters."""
BEGINNINGS: Final = {
    "<what is>": "[(what is|what's|what was|which is|which was|how much is|calculate|compute"
    "|evaluate|find|give me|tell me|work out) ][the ]",
    "<which date is>": "[((what|which) date (is it|was it|is|was|will be)"
    "|(what|when) (is|was)[ the date[ of]]|find|give me|tell me) ][the ]",
}

Part = tuple[str, Placeholder]
"""A part of a sentence: the name of its value, and its placeholder type. The name is empty for
literal text between placeholders."""

_ROW = re.compile(r'(?:# (.+)\n)?((?:\S.*\n)+) +"(.+)"((?:\s+-> .+)+)\n')
_PLACE = re.compile(r"\{(?:([a-z ]+):)?([a-z ]+)\}")
_FILLED = re.compile(r"(?<!\$)\{([a-z ]+)\}")
_ARGUMENT = re.compile(r"(\w+)=(\[[^]]*\]|\{[^}]*\}|\S+)")
_SIGNS = {"[": "(?:", "]": ")?", "(": "(?:", ")": ")", "|": "|"}
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070\u2074-\u2079]+")
_SPELLINGS = str.maketrans(
    "\u2212\u00d7\u22c5\u00f7\u2018\u2019" + "".join(map(chr, range(0xFF01, 0xFF5F))),
    "-**/''" + "".join(map(chr, range(0x21, 0x7F))),
)
_PLEASE = re.compile(r"\Aplease,? |,? please\Z", re.IGNORECASE)
_ROUNDED = re.compile(
    r"[,.?;]? (?:and )?(?:round(?:ed)?(?: it| the result)? )?"
    rf"to (?:{PLACES['rounding'].pattern.pattern})\Z",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call that the planner proposes.

    In rows of the sentence table, string arguments may contain placeholders such as ``{number}``.
    """

    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SentenceRow:
    """A table row: sentences that lead to the same calls, and an example."""

    section: str
    sentences: tuple[str, ...]
    example: str
    written: tuple[str, ...]
    """Calls as written in the table."""
    calls: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One interpretation of a question as tool calls."""

    calls: tuple[PlannedCall, ...]
    flexible: bool
    """Whether ``start`` and ``end`` come from a month or year in the question, and may be narrowed
    to days with prices."""


def rows_of(table: str) -> tuple[SentenceRow, ...]:
    """Parse a table of sentences and their tool calls.

    A row is one or more lines with a sentence each, followed by an indented line
    ``"example" -> calls``.

    Raises:
        ValueError: a line does not belong to a row.
    """
    if stray := _ROW.sub("", table):
        raise ValueError(f"this is in no row: {stray}")
    rows, section = list[SentenceRow](), ""
    for match in _ROW.finditer(table):
        section = match[1] or section
        written = tuple(call.strip() for call in match[4].split("->")[1:])
        sentences = tuple(match[2].splitlines())
        rows.append(SentenceRow(section, sentences, match[3], written, tuple(map(_call, written))))
    return tuple(rows)


def _call(written: str) -> PlannedCall:
    tool, _, rest = written.partition(" ")
    if tool == "calculator":
        return PlannedCall(tool, {"expression": rest})
    operation = {"operation": rest.split()[0]} if tool == "calendar" else {}
    return PlannedCall(
        tool, operation | {name: _value(text) for name, text in _ARGUMENT.findall(rest)}
    )


def _value(text: str) -> Any:
    if text.startswith("["):
        return text[1:-1].split(", ")
    return int(text) if text.isdigit() else text


def readings(rows: Sequence[SentenceRow], question: str) -> Iterator[Reading]:
    """Yield an interpretation for each row with a sentence that matches the whole question.

    A question that is too long has none. ``rounded to 2 decimals`` may follow a sentence that asks
    for a number.
    """
    if len(question) > MAX_CHARS:
        return
    text = normalised(question)
    tail = _ROUNDED.search(text)
    for row in rows:
        if (values := _values(row, text)) is not None:
            yield _reading(row, values)
        elif tail is not None and (values := _values(row, text[: tail.start()])) is not None:
            reading = _reading(row, values)
            calls = _rounded(reading.calls, PLACES["rounding"].read(tail))
            if calls:
                yield Reading(calls, reading.flexible)


def normalised(question: str) -> str:
    """Return the question with normalised signs and spaces, without its final punctuation."""
    text = " ".join(question.translate(_SPELLINGS).split())
    text = _RAISED.sub(lambda digits: "^" + normalize("NFKC", digits[0]), text)
    return _PLEASE.sub("", text.rstrip(" =?."))


def _values(row: SentenceRow, text: str) -> Mapping[str, Any] | None:
    """Return the placeholder values of the first sentence of ``row`` that matches the text."""
    readings = (_matched(_parts(sentence), text) for sentence in row.sentences)
    return next((values for values in readings if values is not None), None)


def _matched(parts: Sequence[Part], text: str) -> Mapping[str, Any] | None:
    values: dict[str, Any] = {}
    position = 0
    for name, place in parts:
        match = place.pattern.match(text, position)
        if match is None:
            return None
        try:
            value = place.read(match)
        except PlaceholderMismatchError:
            return None
        values.update(value if isinstance(value, Mapping) else {name: value})
        position = match.end()
    return values if position == len(text) else None


@cache
def _parts(sentence: str) -> tuple[Part, ...]:
    """Return the literal texts and the placeholders of a sentence, in order."""
    for short, long in BEGINNINGS.items():
        sentence = sentence.replace(short, long)
    parts, end = list[Part](), 0
    for match in _PLACE.finditer(sentence):
        parts += [_words(sentence[end : match.start()]), (match[1] or match[2], PLACES[match[2]])]
        end = match.end()
    return (*parts, _words(sentence[end:]))


@cache
def _words(written: str) -> Part:
    pattern = "".join(_SIGNS.get(char, re.escape(char)) for char in written)
    return "", Placeholder(re.compile(pattern, re.ASCII | re.IGNORECASE), lambda _: {}, written)


def _reading(row: SentenceRow, values: Mapping[str, Any]) -> Reading:
    calls = [
        PlannedCall(call.tool, {name: _filled(value, values) for name, value in call.args.items()})
        for call in row.calls
    ]
    return Reading(_answering(*calls), bool(values.get("flexible")))


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(template, list):
        return [_filled(one, values) for one in template]
    if not isinstance(template, str):
        return template
    match = _FILLED.fullmatch(template)
    return values[match[1]] if match else _FILLED.sub(lambda one: str(values[one[1]]), template)


def _answering(*calls: PlannedCall) -> tuple[PlannedCall, ...]:
    """Return the calls; for several, add one that makes the last result the whole answer."""
    if len(calls) == 1:
        return calls
    return (*calls, PlannedCall("respond", {"answer": f"${{result.{len(calls)}}}"}))


def _rounded(calls: Sequence[PlannedCall], decimals: int) -> tuple[PlannedCall, ...]:
    """Return the calls with the answer rounded by a tool; empty if the answer is not a number."""
    *before, last = [call for call in calls if call.tool != "respond"]
    if last.tool == "numeric_analysis":
        return _answering(*before, PlannedCall(last.tool, {**last.args, "decimals": decimals}))
    if last.tool == "data_fetch_stock" and "fields" in last.args:
        before, last = [*before, last], PlannedCall("calculator", {"expression": "${result.1}"})
    if last.tool != "calculator":
        return ()
    expression = f"round({last.args['expression']}, {decimals})"
    return _answering(*before, PlannedCall(last.tool, {"expression": expression}))
