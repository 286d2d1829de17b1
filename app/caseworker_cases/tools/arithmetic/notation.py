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
    pieces: list[str] = []
    groups: list[int] = []  # where the open parentheses start in pieces, with their function
    operand: int | None = None  # where the operand just read starts; None after an operator

    def wrap(before: str, after: str) -> None:
        pieces[operand:] = [before + "".join(pieces[operand:]) + after]

    for (kind, lexeme), (_, following) in pairwise([*_tokens(text), ("", "")]):
        if operand is not None and (kind != "sign" or lexeme == "("):
            raise malformed(f"an operator is missing before {_quoted(lexeme)!r}")
        name = lexeme.lower()
        if kind == "number" or (kind == "name" and name in constants):
            operand = len(pieces)
            pieces.append(_checked_number(lexeme) if kind == "number" else name)
        elif kind == "name":
            if name not in functions:
                raise malformed(f"{_quoted(lexeme)!r} is neither a function nor a constant here")
            if following != "(":
                raise malformed(f"{name} needs its argument in parentheses: {name}(2)")
            pieces.append(name)
        elif lexeme == "(":
            if len(groups) >= MAX_DEPTH:
                raise calculation_too_large(f"parentheses are nested more than {MAX_DEPTH} deep")
            groups.append(len(pieces) - (bool(pieces) and pieces[-1] in functions))
            pieces.append("(")
        elif lexeme in {"+", "-"} and operand is None:
            pieces.append(lexeme)
        elif operand is None:
            raise malformed(f"a number is missing before {lexeme!r}")
        elif lexeme == "!":
            if pieces[-1].startswith("factorial("):
                raise malformed("'!!' can mean two things; write factorial(factorial(n))")
            wrap("factorial(", ")")
        elif lexeme == "%" and following in {"+", "-"}:
            raise malformed(
                "'%' before a sign can be a percentage or a remainder; write mod(a, b) or a/100"
            )
        elif lexeme == "%" and following in _AFTER_PERCENT:
            sign = pieces[operand - 1].strip() if operand and " " in pieces[operand - 1] else ""
            if sign in {"+", "-"} and following not in _SCALES:
                raise malformed(
                    f"a {sign} b% can mean two things; write a {sign} b/100 or a * (1 {sign} b/100)"
                )
            wrap("(", "/100)")
        elif lexeme in {")", ","}:
            if not groups:
                raise malformed(f"{lexeme!r} stands outside parentheses")
            if lexeme == ",":
                if pieces[groups[-1]] == "(":
                    raise malformed("a comma separates arguments; write 1000 and not 1,000")
                pieces.append(", ")
                operand = None
            else:
                pieces.append(")")
                operand = groups.pop()
        else:
            pieces.append(f" {lexeme} ")
            operand = None
    if groups or operand is None:
        raise malformed("a number or a closing parenthesis is missing at the end")
    return "".join(pieces)


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
