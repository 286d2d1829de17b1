"""Random calculations, said in English, against fractions."""

import re
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.adapters.providers.offline.desk import Desk
from tests.unit.adapters.providers.offline.english import spelled

DESK = Desk()


@dataclass(frozen=True)
class Said:
    """Something said, what it is worth, and whether it may stand beside an operator as it is."""

    words: str
    value: Fraction
    simple: bool = True

    def closed(self) -> str:
        """Return it for a place beside an operator."""
        return self.words if self.simple else f"({self.words})"


@st.composite
def numbers(draw: st.DrawFn) -> Said:
    """A number in digits, with separators, with decimals or in words."""
    whole = draw(st.integers(0, 2_000_000))
    style = draw(st.sampled_from(["digits", "separated", "decimal", "words", "and", "spaced"]))
    if style == "decimal":
        value = Fraction(whole, 100)
        return Said(f"{whole // 100}.{whole % 100:02}", value)
    words = {
        "digits": str(whole),
        "separated": f"{whole:,}",
        "words": spelled(whole),
        "and": spelled(whole, joined=" and "),
        "spaced": spelled(whole, hyphen=" "),
    }
    return Said(words[style], Fraction(whole))


OPERATORS = {
    "+": ("+", "plus"),
    "-": ("-", "minus", "\u2212"),
    "*": ("*", "times", "multiplied by", "\u00d7", "x"),
    "/": ("/", "divided by", "over", "\u00f7"),
}
APPLIED = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


@st.composite
def operations(draw: st.DrawFn, parts: st.SearchStrategy[Said]) -> Said:
    """Two parts and an operator between them."""
    left, right, kind = draw(parts), draw(parts), draw(st.sampled_from("+-*/"))
    assume(kind != "/" or right.value)
    word = draw(st.sampled_from(OPERATORS[kind]))
    value = APPLIED[kind](left.value, right.value)
    return Said(f"{left.closed()} {word} {right.closed()}", value, simple=False)


@st.composite
def phrases(draw: st.DrawFn, parts: st.SearchStrategy[Said]) -> Said:
    """A phrase around one part."""
    part = draw(parts)
    percent = draw(st.integers(0, 300))
    said, value = draw(
        st.sampled_from(
            [
                (f"half of {part.closed()}", part.value / 2),
                (f"two thirds of {part.closed()}", part.value * 2 / 3),
                (f"twice {part.closed()}", part.value * 2),
                (f"{percent}% of {part.closed()}", part.value * percent / 100),
                (f"{spelled(percent)} percent of {part.closed()}", part.value * percent / 100),
                (f"the square of {part.closed()}", part.value**2),
                (f"{part.closed()} squared", part.value**2),
                (f"the absolute value of {part.closed()}", abs(part.value)),
                (f"minus {part.closed()}", -part.value),
            ]
        )
    )
    return Said(said, value, simple=False)


def stands_alone(part: Said) -> bool:
    """Tell whether an ``and`` after the part cannot be its own: ``two hundred and five``."""
    return not re.search(r" and |(hundred|thousand|million)$", part.words)


@st.composite
def lists(draw: st.DrawFn, parts: st.SearchStrategy[Said]) -> Said:
    """A list of parts, in which every ``and`` is the list's own."""
    items = draw(st.lists(parts.filter(stands_alone), min_size=2, max_size=4))
    comma = draw(st.sampled_from([", and ", " and "])) if len(items) > 2 else " and "
    listed = ", ".join(item.closed() for item in items[:-1]) + comma + items[-1].closed()
    values = [item.value for item in items]
    total, product = sum(values, Fraction(0)), Fraction(1)
    for value in values:
        product *= value
    said, value = draw(
        st.sampled_from(
            [
                (f"the sum of {listed}", total),
                (f"the average of {listed}", total / len(values)),
                (f"the product of {listed}", product),
                (f"the largest of {listed}", max(values)),
                (f"the minimum of {listed}", min(values)),
            ]
        )
    )
    return Said(said, value, simple=False)


def grown(parts: st.SearchStrategy[Said]) -> st.SearchStrategy[Said]:
    """Return larger things to say."""
    return operations(parts) | phrases(parts) | lists(parts)


FRAMES = st.sampled_from(
    ["what is {}?", "{}", "How much is {}", "Please calculate {}.", "Can you tell me what {} is?"]
)


async def assert_worth(question: str, value: Fraction) -> None:
    """The answer is the value, to the last digit that it shows."""
    (result,) = await DESK.results(question)
    got = Fraction(result["value"])
    assert got == value if result["exact"] else abs(got - value) <= abs(value) / 10**33


@pytest.mark.req("002/5.1")
@settings(deadline=None)
@given(said=st.recursive(numbers(), grown, max_leaves=6), frame=FRAMES)
async def test_whatever_is_said_with_parentheses_is_worked_out(said: Said, frame: str) -> None:
    """Words, signs, phrases and lists in any combination."""
    assume(not said.words.replace(",", "").replace(".", "").isdigit())
    assume(len(said.words) < 400)

    await assert_worth(frame.format(said.words), said.value)


@pytest.mark.req("002/5.1")
@settings(deadline=None)
@given(
    first=numbers(),
    rest=st.lists(st.tuples(st.sampled_from("+-*/"), numbers()), min_size=1, max_size=5),
    data=st.data(),
)
async def test_without_parentheses_the_rules_of_school_hold(
    first: Said, rest: list[tuple[str, Said]], data: st.DataObject
) -> None:
    """Products before sums, from left to right, for words as for signs."""
    assume(all(number.value for kind, number in rest if kind == "/"))
    words = first.words
    sums, product = [Fraction(0)], first.value
    for kind, number in rest:
        words += f" {data.draw(st.sampled_from(OPERATORS[kind]))} {number.words}"
        if kind in "*/":
            product = APPLIED[kind](product, number.value)
        else:
            sums.append(product)
            product = APPLIED[kind](Fraction(0), number.value)

    await assert_worth(f"what is {words}?", sum(sums, product))


@pytest.mark.req("002/5.1")
@given(number=st.integers(0, 999_999_999), joined=st.sampled_from([" ", " and "]))
async def test_every_number_is_understood_in_words(number: int, joined: str) -> None:
    """Up to a billion, with and without ``and``."""
    await assert_worth(f"{spelled(number, joined=joined)} plus zero", Fraction(number))
