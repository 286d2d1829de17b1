"""The life of a step."""

from app.kernel.lifecycle import NEXT, StepStatus

TERMINAL = {StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED}


def test_every_status_has_its_row() -> None:
    """The table is whole."""
    assert set(NEXT) == set(StepStatus)


def test_a_terminal_status_leads_nowhere() -> None:
    """And every other one leads on."""
    assert {status for status, then in NEXT.items() if not then} == TERMINAL


def test_only_what_has_started_can_fail() -> None:
    """A step that never ran is skipped, cancelled, or known from an earlier execution."""
    assert {status for status, then in NEXT.items() if StepStatus.FAILED in then} == {
        StepStatus.RUNNING
    }
    assert StepStatus.SKIPPED not in NEXT[StepStatus.RUNNING]
