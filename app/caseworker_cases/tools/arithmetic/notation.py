"""Translates calculator notation to a Python expression.

The text is read token by token. Only numbers, operators, known names, commas and parentheses in a
valid position are accepted. The result is an expression that Python's parser reads the same way.
Two postfix marks are rewritten: ``5!`` becomes ``factorial(5)`` and ``17%`` becomes ``(17/100)``.

``%`` is the remainder operator if an operand follows it, else a percent sign. Ambiguous uses are
refused: ``5 % -3`` (a remainder, or 5 % less 3?) and ``100 + 8%`` (100.08 or 108?).
"""

import re
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import pairwise

from caseworker.platform.logs.redaction import redact_text
from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.arithmetic.real import MAX_DIGITS, too_large

MAX_DEPTH = 30
"""Maximum nesting depth of parentheses."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<sign>\*\*|//|[-+*/%^!(),\u00d7\u00f7\u2212]))",
    re.ASCII,
)
_PYTHON_SIGN = {"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "^": "**"}
_AFTER_PERCENT = frozenset({"", ")", ",", "*", "/", "//", "**"})
_SCALES = frozenset({"*", "/", "//"})


def malformed(message: str) -> ToolRefusedError:
    """Return the error for a text that is not an expression."""
    return ToolRefusedError(message, code="invalid_expression")


def to_python(text: str, *, functions: Container[str], constants: Container[str]) -> str:
    """Translate ``text`` to a Python expression that uses only the given names."""
    reader = _Reader(functions, constants)
    for (kind, lexeme), (_, following) in pairwise([*_tokens(text), ("", "")]):
        reader.read(kind, lexeme, following)
    return reader.finish()


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            stray = text[position:].lstrip()[0]
            raise malformed(f"{stray!r} is not part of an expression")
        lexeme = match[match.lastgroup]
        tokens.append((match.lastgroup, _PYTHON_SIGN.get(lexeme, lexeme)))
        position = match.end()
    return tokens


@dataclass(slots=True)
class _Group:
    """An open parenthesis: its start in the output, and whether it is a call that takes commas."""

    start: int
    is_call: bool
    sum_sign: str
    """The plus or minus directly before it."""


@dataclass(slots=True)
class _Reader:
    functions: Container[str]
    constants: Container[str]
    pieces: list[str] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)
    operand: int | None = None
    """The index in ``pieces`` of the operand just read; None if an operand must come next."""
    sum_sign: str = ""
    """The binary plus or minus directly before the operand, if any."""

    def read(self, kind: str, lexeme: str, following: str) -> None:
        """Process one token; ``following`` is the next one."""
        if kind == "number":
            self._begin_operand(lexeme)
            self._push_operand(_checked_number(lexeme))
        elif kind == "name":
            self._read_name(lexeme, following)
        elif lexeme == "(":
            self._open()
        elif lexeme in {")", ",", "!"}:
            self._close_or_mark(lexeme)
        elif lexeme == "%" and self.operand is not None:
            self._percent_or_remainder(following)
        else:
            self._operator(lexeme)

    def finish(self) -> str:
        """Return the translated expression."""
        if self.groups:
            raise malformed("a closing parenthesis is missing")
        if self.operand is None:
            raise malformed(
                "a number is missing at the end" if self.pieces else "the expression is empty"
            )
        return "".join(self.pieces)

    def _read_name(self, lexeme: str, following: str) -> None:
        name = lexeme.lower()
        self._begin_operand(lexeme)
        if name in self.constants:
            self._push_operand(name)
        elif name not in self.functions:
            raise malformed(f"{_shown(lexeme)!r} is neither a function nor a constant here")
        elif following != "(":
            raise malformed(f"{name} needs its argument in parentheses: {name}(2)")
        else:
            self.pieces.append(name)

    def _begin_operand(self, lexeme: str) -> None:
        if self.operand is not None:
            raise malformed(f"an operator is missing before {_shown(lexeme)!r}")

    def _push_operand(self, text: str) -> None:
        self.operand = len(self.pieces)
        self.pieces.append(text)

    def _open(self) -> None:
        is_call = bool(self.pieces) and self.pieces[-1] in self.functions
        if not is_call:
            self._begin_operand("(")
        if len(self.groups) >= MAX_DEPTH:
            raise too_large(f"parentheses are nested more than {MAX_DEPTH} deep")
        self.groups.append(_Group(len(self.pieces) - is_call, is_call, self.sum_sign))
        self.pieces.append("(")
        self.sum_sign = ""

    def _close_or_mark(self, lexeme: str) -> None:
        if self.operand is None:
            raise malformed(f"a number is missing before {lexeme!r}")
        if lexeme == "!":
            if self.pieces[-1].startswith("factorial("):
                raise malformed("'!!' can mean two things; write factorial(factorial(n))")
            self._wrap("factorial(", ")")
        elif not self.groups:
            raise malformed(f"{lexeme!r} stands outside parentheses")
        elif lexeme == ")":
            self.pieces.append(")")
            group = self.groups.pop()
            self.operand, self.sum_sign = group.start, group.sum_sign
        elif not self.groups[-1].is_call:
            raise malformed(
                "a comma separates the arguments of a function; write 1000 and not 1,000"
            )
        else:
            self.pieces.append(", ")
            self.operand, self.sum_sign = None, ""

    def _percent_or_remainder(self, following: str) -> None:
        if following in {"+", "-"}:
            raise malformed(
                "'%' before a sign can be a percentage or a remainder; write mod(a, b) or a/100"
            )
        if following not in _AFTER_PERCENT:
            self._operator("%")
        elif self.sum_sign and following not in _SCALES:
            raise malformed(
                f"a {self.sum_sign} b% can mean two things; write a {self.sum_sign} b/100 "
                f"or a * (1 {self.sum_sign} b/100)"
            )
        else:
            self._wrap("(", "/100)")

    def _operator(self, lexeme: str) -> None:
        if self.operand is not None:
            self.pieces.append(f" {lexeme} ")
            self.sum_sign = lexeme if lexeme in {"+", "-"} else ""
        elif lexeme in {"+", "-"}:
            self.pieces.append(lexeme)
            self.sum_sign = ""
        else:
            raise malformed(f"a number is missing before {lexeme!r}")
        self.operand = None

    def _wrap(self, before: str, after: str) -> None:
        start = self.operand or 0
        self.pieces[start:] = [before + "".join(self.pieces[start:]) + after]


def _shown(lexeme: str) -> str:
    """Return a token, redacted and shortened, for a message."""
    return redact_text(lexeme, max_chars=40)


def _checked_number(lexeme: str) -> str:
    mantissa, _, exponent = lexeme.lower().partition("e")
    whole = mantissa.partition(".")[0]
    if len(whole) > 1 and whole.startswith("0"):
        raise malformed(f"{_shown(lexeme)!r} has a leading zero; write it without")
    if len(mantissa) + abs(int(exponent or 0)) > MAX_DIGITS:
        raise too_large(f"a number has more than {MAX_DIGITS} digits")
    return lexeme
