"""The state of a case: progress, evidence, artifacts and tier."""

import pytest

from caseworker.models.gateway import Tier
from caseworker_cases.agent.evidence import Action
from caseworker_cases.agent.work import CaseState, ModelName

MODELS = dict.fromkeys(Tier, ModelName("scripted", "model"))


@pytest.mark.req("002/6.4", "002/11.1")
def test_an_improvement_of_at_least_the_minimum_resets_the_stalled_rounds() -> None:
    """An improvement of the minimum resets the count; a smaller one only raises the best metric."""
    state = CaseState(models=MODELS)
    seen = []

    for metric in (0.25, 0.5, 0.625, 0.625, 0.875):
        state.measure(metric, min_improvement=0.25)
        seen.append((state.best_metric, state.stalled_rounds))

    assert seen == [(0.25, 0), (0.5, 0), (0.625, 1), (0.625, 2), (0.875, 0)]


@pytest.mark.req("002/6.4", "002/11.1")
def test_a_metric_that_falls_is_a_stalled_round() -> None:
    """A lower metric counts as stalled and does not change the best one."""
    state = CaseState(models=MODELS)

    state.measure(0.75, min_improvement=0.01)
    state.measure(0.25, min_improvement=0.01)

    assert (state.best_metric, state.stalled_rounds) == (0.75, 1)


@pytest.mark.req("002/5.4", "002/9.4")
def test_the_files_of_a_result_are_appended_to_the_artifacts() -> None:
    """Files are added to the artifacts; the evidence keeps only their names."""
    state = CaseState(models=MODELS)
    plot = {
        "name": "plot-1.png",
        "media_type": "image/png",
        "size_bytes": 9,
        "sha256": "ab",
        "url": "/runs/r/artifacts/plot-1.png",
    }
    result = {"text": "a plot", "artifacts": [plot]}

    found = state.add_evidence(Action("plotter", {}), result)
    state.add_evidence(Action("calculator", {}), {"value": "2"})

    assert state.artifacts == [plot]
    assert found.result == {"text": "a plot", "artifacts": ["plot-1.png"]}
    assert found.files == ("plot-1.png",)
    assert result["artifacts"] == [plot]
    assert [found.number for found in state.evidence] == [1, 2]


@pytest.mark.parametrize("said", ["coins", ["a coin"], [{"name": "plot.png"}], [], None, {}])
def test_what_else_is_called_artifacts_in_a_result_is_none_of_ours(said: object) -> None:
    """A result's own ``artifacts`` field of another form stays in the evidence unchanged."""
    state = CaseState(models=MODELS)

    found = state.add_evidence(Action("museum", {}), {"artifacts": said})

    assert (state.artifacts, found.files) == ([], ())
    assert found.result == {"artifacts": said}


@pytest.mark.req("002/11.4", "002/7.4")
def test_escalation_switches_the_tier_and_keeps_the_evidence() -> None:
    """Escalation switches the tier, keeps the evidence and restarts the pass counter."""
    state = CaseState(models=MODELS)
    state.begin_pass(gated=True)
    state.add_evidence(Action("calculator", {}), {"value": "2"})

    state.escalate()
    state.begin_pass(gated=True)

    assert (state.tier, state.path, state.act_steps) == (Tier.BIG, "big/1", 1)
    assert len(state.evidence) == 1
