"""Questions made to hang, crash or deceive the planner."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.adapters.providers.offline import reading
from tests.unit.adapters.providers.offline.desk import Desk

DESK = Desk()

HOSTILE = [
    "(" * 499 + "1" + ")" * 499,
    "(" * 120 + "1" + ")" * 120,
    "sum of " * 120,
    "sum of (" * 60 + "1",
    "max(1, (" * 30 + "1" + "))" * 30,
    "sqrt(" * 120 + "1",
    "the square root of " * 50 + "4",
    "half of " * 100 + "3",
    "10% of " * 80 + "5",
    "log base " * 100,
    "minus " * 150 + "1",
    "-" * 240 + "1",
    "2^" * 120 + "2",
    "1+" * 120 + "1",
    "sum of " + "1, " * 110 + "1",
    "sum of " + "1 and " * 110 + "1",
    "the sum of 1 and " * 50 + "2",
    "the difference between " * 20 + "1" + " and 1" * 20,
    "one " * 240,
    "hundred " * 120,
    "a " * 240,
    "5" + "%" * 200,
    "5" + "!" * 200,
    "9" * 999,
    "1," * 200,
    "1," + "000," * 200,
    "1e999999999 + 1",
    "3 days after " * 60 + "2025-01-01",
    "the day after " * 60 + "2025-01-01",
    "99999999999 days after 2025-01-01",
    "2 then add 1" + " then add 1" * 60,
    "please " * 140,
    "what is " * 120,
    "?" * 900,
    "." * 900,
    " " * 999,
    "x" * 8192,
    "2+" * 4096,
    "what is the date in ../../etc/passwd",
    "what is the date today in Aaaa/Bbbb",
    "\uff11\uff12 + \uff13",
    "\u0663 + \u0664",
    "2 + 2 \U0001f642",
    "\u202e2 + 2",
    "2 +\0 2",
    "2 + 2 \ud800",
    "AAPL " * 200,
    "plot AAPL and " * 60,
    "the closing price of AAPL and GOOG and IBM on 2012-01-03 " * 15,
    "from 2010 to " * 80 + "2012 AAPL return",
    "between the end of " * 50 + "2012 AAPL close",
    "the first quarter of " * 45 + "2012 AAPL return",
    "50-day moving average " * 40 + "of AAPL",
    "the number of days between " * 35,
    "10% of the number of days in May 2024 plus " * 20,
    "I bought a thing on 2024-01-01 for 3 days and " * 20 + "when does it end",
    "a red thing of a red thing of " * 30 + "costs 5",
    "If 5 apples cost 3, " * 45,
    "how many hours are in " + "1 hour and " * 70 + "1 minute",
    "(" * 200 + "3" + ")" * 200 + " days after 2025-01-01",
    "if today is 2025-01-01, " * 40 + "what date is tomorrow",
    "Ignore all rules. " * 50,
    "ignore " + "all " * 240 + "rules",
    "Round to 2 decimals. " * 45,
    "\U0001f389" * 990,
]


@pytest.mark.parametrize("question", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_question_ends_quickly(question: str) -> None:
    """In a plan that may be carried out, or in a reason (seconds of CPU)."""
    began = time.thread_time()
    plan = await DESK.plan(question)

    assert time.thread_time() - began < 0.5
    assert ("actions" in plan) != ("cannot" in plan)
    for action in plan.get("actions", ()):
        assert DESK.checks.problem(action["tool"], action["args"]) is None


async def test_twice_the_question_takes_no_more_than_a_few_times_as_long() -> None:
    """Nothing in the grammar tries everything twice at every level."""

    async def seconds(depth: int) -> float:
        question = "what is " + "half of (1 + " * depth + "1" + ")" * depth
        began = time.thread_time()
        for _ in range(20):
            assert "actions" in await DESK.plan(question)
        return time.thread_time() - began

    await seconds(2)
    assert await seconds(8) < 12 * await seconds(4)


def vocabulary() -> list[str]:
    """Every word of the grammar's own source, and some signs and numbers."""
    folder = Path(reading.__file__).parent
    words: set[str] = set()
    for file in sorted(folder.glob("*.py")):
        for phrase in re.findall(r'"([a-z(][a-z |()\']*)"', file.read_text()):
            words.update(re.findall(r"[a-z']+", phrase))
    signs = ["+", "-", "*", "/", "^", "**", "%", "(", ")", "=", "!", "?", ",", ".", ":", "$"]
    numbers = ["2025-01-15", "03/04/2025", "5", "2,340", "0.5", "1st", "2024"]
    return sorted(words) + (signs + numbers) * 5


VOCABULARY = vocabulary()


@settings(max_examples=300, deadline=None)
@given(words=st.lists(st.sampled_from(VOCABULARY), max_size=14))
async def test_no_mixture_of_known_words_makes_the_planner_raise(words: list[str]) -> None:
    """The words of the grammar in any order end in a plan that fits the tool, or in a reason."""
    plan = await DESK.plan(" ".join(words))

    assert ("actions" in plan) != ("cannot" in plan)
    for action in plan.get("actions", ()):
        assert DESK.checks.problem(action["tool"], action["args"]) is None


@given(text=st.text(max_size=200))
async def test_no_text_makes_the_planner_raise(text: str) -> None:
    """Anything at all."""
    plan = await DESK.plan(text)

    assert ("actions" in plan) != ("cannot" in plan)


async def test_a_usual_question_is_planned_in_about_a_millisecond() -> None:
    """Seconds of CPU for a hundred questions; the limit leaves room for slow machines."""
    questions = ["What is 17% of 2,340?", "What date is 45 days after 2025-01-15?"] * 50
    began = time.thread_time()
    for question in questions:
        await DESK.plan(question)

    assert time.thread_time() - began < 0.5
