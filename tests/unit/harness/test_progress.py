"""What is shown while an evaluation works."""

import io

from rich.console import Console

from app.harness.command import progress_bar
from tests.unit.harness.recorded import a_case, a_result

WRONG = a_case(gold_answer="41")


def shown(*, terminal: bool) -> str:
    """What stands on the console after a right and a wrong result of three."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=80)
    with progress_bar(console) as show:
        show(a_result(), 3)
        show(a_result(WRONG), 3)
    return written.getvalue()


def test_a_bar_tells_how_many_have_ended_and_how_many_failed() -> None:
    """Of how many."""
    written = shown(terminal=True)

    assert "2/3" in written
    assert "1 failed" in written


def test_nothing_is_written_where_nobody_watches() -> None:
    """A log of continuous integration stays readable."""
    assert shown(terminal=False) == ""
