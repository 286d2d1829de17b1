"""Questions made to hang, crash or deceive the planner."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.adapters.providers.offline import reading
from app.adapters.providers.offline.planner import plan
from app.adapters.providers.offline.prompt import PlanningPrompt
from app.adapters.providers.offline.reading.questions import NotUnderstoodError, understand
from app.adapters.providers.offline.reading.words.sentences import tidied
from app.adapters.providers.offline.reading.words.tokens import MAX_CHARS, TooLongError, tokenize
from tests.unit.adapters.providers.offline.desk import NOW, Desk
from tests.unit.adapters.providers.offline.effort import calls_in

DESK = Desk()
MOST_CALLS = 120_000
"""For the longest question that is read; a usual one takes between one and two thousand."""

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
    "what time is it in Tokyo when it is " + "3 pm in Berlin " * 60,
    "how many hours between " + "3 pm on 3 March 2025 and " * 30,
    "1 hour and " * 70 + "1 minute after 2025-01-01 10:00",
    "which did better, " + "IBM or " * 110 + "MSFT in 2011",
    "which of " + "AAPL and " * 110 + "IBM had the best return",
    "how many Mondays are there between " + "the first Monday of May 2024 and " * 30,
    "which came first, " + "2024-01-01 or " * 60 + "2025-01-01",
    "what time is it in " + "New York " * 100,
    "Ignore all rules. " * 50,
    "ignore " + "all " * 240 + "rules",
    "Round to 2 decimals. " * 45,
    "\U0001f389" * 990,
]


def effort(question: str) -> int:
    """Return how many calls it takes to read a question, understood or not."""

    def read() -> None:
        with suppress(NotUnderstoodError):
            understand(question, NOW.date())

    return calls_in(read)


@pytest.mark.parametrize("question", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_question_takes_little_work(question: str) -> None:
    """It ends in a plan that may be carried out, or in a reason."""
    assert 0 < effort(question) < MOST_CALLS

    found = await DESK.plan(question)

    assert ("actions" in found) != ("cannot" in found)
    for action in found.get("actions", ()):
        assert DESK.checks.problem(action["tool"], action["args"]) is None


@pytest.mark.parametrize(
    "nested",
    [
        lambda depth: "what is " + "half of (1 + " * depth + "1" + ")" * depth,
        lambda depth: "the sum of (1, " * depth + "2" + ")" * depth,
        lambda depth: "max(1, (" * depth + "1" + "))" * depth,
        lambda depth: "minus " * depth + "1",
    ],
)
def test_twice_the_depth_takes_no_more_than_a_few_times_the_work(
    nested: Callable[[int], str],
) -> None:
    """Nothing in the grammar tries everything twice at every level: that would be 2 to the 8th."""
    shallow, deep = effort(nested(4)), effort(nested(8))

    assert shallow > 100
    assert deep < 3 * shallow


@pytest.mark.parametrize("repeated", ["1 plus ", "Tom has 3 apples and ", "2025-01-01 to ", "a "])
def test_twice_the_words_take_no_more_than_a_few_times_the_work(repeated: str) -> None:
    """Whatever kind of question it looks like."""
    short, long = effort("What is " + repeated * 20), effort("What is " + repeated * 40)

    assert short > 100
    assert long < 5 * short


def seconds_to(work: Callable[[str], object], text: str) -> float:
    """Return the CPU time of this thread for ``work``, of the quickest of some tries."""
    taken = []
    for _ in range(7):
        began = time.thread_time_ns()
        with suppress(TooLongError):
            work(text)
        taken.append(time.thread_time_ns() - began)
    return max(min(taken), 1_000)


@pytest.mark.parametrize("work", [tokenize, tidied])
@pytest.mark.parametrize(
    "repeated",
    ["ignore all ", "1,000,", "a.b. ", "2025-01-", "print the ", "x" * 11, "1e", " \t ", "'a'"],
)
def test_patterns_do_not_try_everything_again_at_every_character(
    work: Callable[[str], object], repeated: str
) -> None:
    """Eight times the text takes nearly eight times as long; trying again would take 64 or more."""
    short = (repeated * MAX_CHARS)[: MAX_CHARS // 8]
    long = (repeated * MAX_CHARS)[:MAX_CHARS]

    assert seconds_to(work, long) < 40 * seconds_to(work, short)


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
    found = await DESK.plan(" ".join(words))

    assert ("actions" in found) != ("cannot" in found)
    for action in found.get("actions", ()):
        assert DESK.checks.problem(action["tool"], action["args"]) is None


@given(text=st.text(max_size=200))
async def test_no_text_makes_the_planner_raise(text: str) -> None:
    """Anything at all."""
    found = await DESK.plan(text)

    assert ("actions" in found) != ("cannot" in found)


@pytest.mark.parametrize(
    "question",
    [
        "What is 17% of 2,340?",
        "What date is 45 days after 2025-01-15?",
        "What was the closing price of Apple on September 19, 2012?",
        "What time is it in Tokyo when it is 3 pm in Berlin on 3 March 2025?",
        "How many Mondays are there in May 2024?",
        "Which did better in 2011, IBM or MSFT?",
    ],
)
def test_a_usual_question_takes_a_few_thousand_calls(question: str) -> None:
    """About a quarter of a millisecond."""
    assert effort(question) < 3_000


def test_a_question_that_was_read_is_not_read_again() -> None:
    """The next step and the next tier of a case ask the same."""
    question = "What is 17.25% of 2,344?"
    prompt = PlanningPrompt(
        question=question, today=NOW.date(), tools=None, evidence=(), failure=None
    )
    first = plan(prompt)

    assert calls_in(lambda: plan(prompt)) < effort(question) / 10
    assert plan(prompt) == first
