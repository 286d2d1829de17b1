"""A run and its statuses."""

import pytest

from caseworker.runs.run import NEXT, TERMINAL, RunStatus


def test_every_status_has_its_row() -> None:
    """The table of transitions is complete."""
    assert set(NEXT) == set(RunStatus)


def test_a_terminal_status_never_changes() -> None:
    """Every other status can lead to an end."""
    assert {status for status, then in NEXT.items() if not then} == TERMINAL
    for status in set(RunStatus) - TERMINAL:
        assert RunStatus.CANCELLED in NEXT[status]


@pytest.mark.parametrize("end", [RunStatus.COMPLETED, RunStatus.FAILED])
def test_what_was_never_begun_neither_completes_nor_fails(end: RunStatus) -> None:
    """A queued run is started, cancelled, or halted by its deadline."""
    assert end not in NEXT[RunStatus.QUEUED]
