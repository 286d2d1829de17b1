"""The status transitions of a step."""

from caseworker.core.graph.facts import NEXT, StepStatus

TERMINAL = set(StepStatus) - {StepStatus.NOT_STARTED, StepStatus.RUNNING}


def test_every_status_has_its_row() -> None:
    """Every status has a row in the transition table."""
    assert set(NEXT) == set(StepStatus)


def test_a_terminal_status_leads_nowhere() -> None:
    """Exactly the terminal statuses have no successors."""
    assert {status for status, then in NEXT.items() if not then} == TERMINAL


def test_a_step_fails_before_its_end_and_is_skipped_before_its_start() -> None:
    """A step may fail before or while it runs, and is skipped only before it starts."""
    assert {status for status, then in NEXT.items() if StepStatus.FAILED in then} == {
        StepStatus.NOT_STARTED,
        StepStatus.RUNNING,
    }
    assert {status for status, then in NEXT.items() if StepStatus.SKIPPED in then} == {
        StepStatus.NOT_STARTED
    }
