"""The states of a step follow each other in a fixed order."""

import pytest

from caseworker.core.graph.facts import NEXT, StepStatus
from caseworker.engine.report import StepReport


@pytest.mark.parametrize("status", StepStatus)
@pytest.mark.parametrize("later", StepStatus)
def test_a_step_changes_to_its_next_states_alone(status: StepStatus, later: StepStatus) -> None:
    """A rejected change leaves the step unchanged and returns False."""
    report = StepReport(status=status, outputs={"default": 1})

    changed = report.become(later, {"default": 2})

    assert changed is (later in NEXT[status])
    expected = (later, {"default": 2}) if changed else (status, {"default": 1})
    assert (report.status, report.outputs) == expected
