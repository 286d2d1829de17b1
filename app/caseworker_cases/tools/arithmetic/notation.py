"""Translates calculator notation to a Python expression.

Only numbers, operators, known names, commas and parentheses are accepted; Python's parser then
checks their order. Two postfix marks are rewritten: ``5!`` becomes ``factorial(5)`` and ``17%``
becomes ``(17/100)``.

``%`` is the remainder operator if an operand follows it, else a percent sign. Ambiguous uses are
refused: ``5 % -3`` (a remainder, or 5 % less 3?) and ``100 + 8%`` (100.08 or 108?).
"""

import re
from collections.abc import Container
from itertools import pairwise

from caseworker.platform.logs.redaction import redact_text
from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.arithmetic.real import MAX_DIGITS, calculation_too_large

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
    expression = _Expression(functions, constants)
    for (kind, lexeme), (_, following) in pairwise([*_tokens(text), ("", "")]):
        expression.add(kind, lexeme, following)
    return expression.end()


class _Expression:
    """The Python expression for the tokens so far."""

    def __init__(self, functions: Container[str], constants: Container[str]) -> None:
        self._functions = functions
        self._constants = constants
        self._pieces: list[str] = []
        self._groups: list[int] = []
        """Where the open parentheses start in the pieces, with their function."""
        self._operand: int | None = None
        """Where the operand just read starts; None after an operator."""

    def add(self, kind: str, lexeme: str, following: str) -> None:
        """Translate a token, which ``following`` comes after."""
        if self._operand is not None and (kind != "sign" or lexeme == "("):
            raise malformed(f"an operator is missing before {_quoted(lexeme)!r}")
        if kind == "sign":
            self._add_sign(lexeme, following)
            return
        name = lexeme.lower()
        if kind == "number" or name in self._constants:
            self._operand = len(self._pieces)
            self._pieces.append(_checked_number(lexeme) if kind == "number" else name)
            return
        if name not in self._functions:
            raise malformed(f"{_quoted(lexeme)!r} is neither a function nor a constant here")
        if following != "(":
            raise malformed(f"{name} needs its argument in parentheses: {name}(2)")
        self._pieces.append(name)

    def end(self) -> str:
        """Return the whole expression."""
        if self._groups or self._operand is None:
            raise malformed("a number or a closing parenthesis is missing at the end")
        return "".join(self._pieces)

    def _add_sign(self, sign: str, following: str) -> None:
        pieces = self._pieces
        if sign == "(":
            if len(self._groups) >= MAX_DEPTH:
                raise calculation_too_large(f"parentheses are nested more than {MAX_DEPTH} deep")
            has_function = bool(pieces) and pieces[-1] in self._functions
            self._groups.append(len(pieces) - has_function)
            pieces.append("(")
        elif sign in {"+", "-"} and self._operand is None:
            pieces.append(sign)
        elif self._operand is None:
            raise malformed(f"a number is missing before {sign!r}")
        elif sign == "!":
            if pieces[-1].startswith("factorial("):
                raise malformed("'!!' can mean two things; write factorial(factorial(n))")
            self._wrap("factorial(", ")")
        elif sign == "%" and following in {"+", "-", *_AFTER_PERCENT}:
            self._add_percent(self._operand, following)
        elif sign in {")", ","}:
            self._end_argument(sign)
        else:
            pieces.append(f" {sign} ")
            self._operand = None

    def _add_percent(self, operand: int, following: str) -> None:
        if following in {"+", "-"}:
            raise malformed(
                "'%' before a sign can be a percentage or a remainder; write mod(a, b) or a/100"
            )
        before = self._pieces[operand - 1] if operand else ""
        sign = before.strip() if " " in before else ""
        if sign in {"+", "-"} and following not in _SCALES:
            raise malformed(
                f"a {sign} b% can mean two things; write a {sign} b/100 or a * (1 {sign} b/100)"
            )
        self._wrap("(", "/100)")

    def _end_argument(self, sign: str) -> None:
        if not self._groups:
            raise malformed(f"{sign!r} stands outside parentheses")
        if sign == ")":
            self._pieces.append(sign)
            self._operand = self._groups.pop()
            return
        if self._pieces[self._groups[-1]] == "(":
            raise malformed("a comma separates arguments; write 1000 and not 1,000")
        self._pieces.append(", ")
        self._operand = None

    def _wrap(self, before: str, after: str) -> None:
        at = self._operand
        self._pieces[at:] = [before + "".join(self._pieces[at:]) + after]


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


def _quoted(lexeme: str) -> str:
    """Return a token, redacted and shortened, for a message."""
    return redact_text(lexeme, max_chars=40)


def _checked_number(lexeme: str) -> str:
    mantissa, _, exponent = lexeme.lower().partition("e")
    integer_part = mantissa.partition(".")[0]
    if len(integer_part) > 1 and integer_part.startswith("0"):
        raise malformed(f"{_quoted(lexeme)!r} has a leading zero; write it without")
    if len(mantissa) + abs(int(exponent or 0)) > MAX_DIGITS:
        raise calculation_too_large(f"a number has more than {MAX_DIGITS} digits")
    return lexeme
