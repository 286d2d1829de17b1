"""The tree of a run, built from its events."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from caseworker_client import ApiError, Event
from rich.console import Console

from caseworker.cli.run_tree import RunTree
from caseworker.cli.service import explained

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """A tree that receives one event per second."""

    def __init__(self) -> None:
        self.tree = RunTree("r", kind="graph", status="queued")
        self.seq = 0

    @property
    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.seq)

    def tell(
        self, type_: str, /, step: str | None = None, node: str | None = None, **data: Any
    ) -> str | None:
        self.seq += 1
        event = Event(
            run_id="r", seq=self.seq, ts=self.now, type=type_, step_id=step, node_id=node, data=data
        )
        return self.tree.tell(event)

    def drawn(self, height: int = 40) -> list[str]:
        console = Console(file=StringIO(), width=100)
        with console.capture() as captured:
            console.print(self.tree.draw(self.now, height=height))
        return captured.get().splitlines()


def test_calls_stand_below_their_steps_with_how_they_stand() -> None:
    """Calls appear below their steps; running ones show their time, failed ones their reason."""
    story = Story()
    story.tell("run.started")
    story.tell("step.started", "a")
    story.tell("call.started", "a", "n1", kind="tool", name="calculator")
    story.tell("call.completed", "a", "n1", tokens_in=1200, tokens_out=3)
    story.tell("step.completed", "a")
    story.tell("step.started", "b")
    line = story.tell("step.error", "b", error="Nothing there\x1b[2J.")
    story.tell("step.started", "c")
    story.tell("call.started", "c", "n2", kind="llm", name="plan", model="m")

    root, a, call, b, c, open_call = story.drawn()

    assert "graph r" in root
    assert ("✓ a" in a, "✓ tool calculator  1.00 s  1,200 → 3 tokens" in call) == (True, True)
    assert "✗ b failed  1.00 s  Nothing there?[2J." in b
    assert "▸ c  1.00 s" in c
    assert "▸ llm plan (m)  0 ms" in open_call
    assert line == "   6.00 s  step.error  b  Nothing there?[2J."


def test_a_tree_that_is_too_high_keeps_what_is_under_way_and_what_failed() -> None:
    """A tree that is too high keeps running and failed steps, and counts the hidden ones."""
    story = Story()
    story.tell("run.started")
    for number in range(300):
        story.tell("step.started", f"s{number}")
    for number in range(300):
        kind = "step.error" if number == 7 else "step.completed"
        if number != 150:
            story.tell(kind, f"s{number}")

    lines = story.drawn(height=20)

    assert len(lines) <= 20
    assert [line for line in lines if "s7 failed" in line]
    assert [line for line in lines if "▸ s150" in line]
    hidden = next(line for line in lines if "⋯" in line)
    assert int(hidden.split("⋯ ")[1].split(" completed")[0]) + len(lines) - 2 == 300
    assert len(story.drawn(height=1000)) == 301


def test_the_end_and_what_is_asked_of_a_person_are_shown() -> None:
    """A pending approval shows the command that decides it, and the end shows the stop reason."""
    story = Story()
    story.tell("run.started")
    story.tell("step.started", "pay")
    story.tell("approval.requested", "pay", approval_id="n9")
    asked = story.drawn()
    story.tell("budget.warning", dimension="tokens", used=80, limit=100)
    story.tell("run.halted", stop={"reason": "No tokens are left."})
    ended = story.drawn()

    assert "caseworker approve r n9" in asked[1]
    assert "■ graph r halted  4.00 s  No tokens are left." in ended[0]
    assert "tokens used 80 limit 100" in ended[-1]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "CASEWORKER_API_KEY"),
        (403, "CASEWORKER_API_KEY"),
        (429, "Retry in 7 s."),
        (404, "`caseworker runs` lists all that exist."),
        (409, "This is the detail."),
    ],
)
def test_refusals_say_what_to_do(status: int, told: str) -> None:
    """An API error is explained in one line with a next step, whatever page describes its type."""
    wait = 7.0 if status == 429 else None
    page = "https://docs.example.com/problems.html#run-not-found-404"
    code = {"type": page, "code": "run-not-found"} if status == 404 else {}
    problem = {"title": "The title", "detail": "This is the detail.", **code}
    text = explained(ApiError(status, problem, retry_after_seconds=wait))

    assert text.startswith("The title. ")
    assert told in text
    assert "\n" not in text
