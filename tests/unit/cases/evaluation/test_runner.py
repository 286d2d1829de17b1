"""The runner sends cases through the public API."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from caseworker_client import ApiError

from caseworker_cases.evaluation.results import Trial
from caseworker_cases.evaluation.runner import Runner, RunOptions
from tests.unit.cases.evaluation.recorded import HangingService, RecordedService, a_case, a_run

Passing = ApiError(503, {"detail": "the queue is full"})
IN_INPUT = {"detail": "Correct it.", "errors": [{"field": "input", "message": "It is blank."}]}
IN_TOOLS = {"detail": "Correct it.", "errors": [{"field": "expected_tools.0", "message": "No."}]}


async def run(service: RecordedService, *cases: Any, **options: Any) -> list[Trial]:
    trials: list[Trial] = []
    runner = Runner(service, RunOptions(**options), evaluation_id="eval-1")
    await runner.run(cases or [a_case()], trials.append)
    return trials


def raising(*errors: Exception) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Raise each error once, then answer."""
    left = list(errors)

    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        if left:
            raise left.pop(0)
        return a_run(run_id=body["run_id"])

    return answer


async def test_a_case_is_posted_with_what_it_says_and_nothing_else() -> None:
    """The request contains the case's fields; its mode overrides that of the evaluation."""
    service = RecordedService()
    full = a_case(
        gold_answer="42", expected_tools=["calculator"], mode="fallback_only", timezone="UTC"
    )
    await run(service, full, mode="hrm_small_then_escalate", seed=7, protocol="with_gold")
    await run(service, a_case())

    metadata = {"evaluation": "eval-1", "case": "sum", "repeat": 1}
    question = {"run_id": "eval-1:sum", "input": "What is 20 + 22?", "metadata": metadata}
    assert service.posted[0] == {
        **question,
        "gold_answer": "42",
        "expected_tools": ["calculator"],
        "mode": "fallback_only",
        "timezone": "UTC",
        "seed": 7,
    }
    assert service.posted[1] == question


@pytest.mark.req("002/22.2", "002/22.4")
async def test_every_trial_has_a_run_id_of_its_own_and_the_same_seed() -> None:
    """Each repeat has its own run ID and the same seed."""
    service = RecordedService()

    trials = await run(service, a_case(id="a"), a_case(id="b"), repeat=2, seed=11)

    assert sorted((trial.case.id, trial.repeat, trial.run_id) for trial in trials) == [
        ("a", 1, "eval-1:a"),
        ("a", 2, "eval-1:a:2"),
        ("b", 1, "eval-1:b"),
        ("b", 2, "eval-1:b:2"),
    ]
    assert {body["seed"] for body in service.posted} == {11}


async def test_a_run_that_takes_longer_is_asked_for_again_under_its_id() -> None:
    """A run that is not finished is posted again under its ID, which waits for its end."""
    runs = [{**a_run(), "finished_at": None}, {**a_run(), "finished_at": None}, a_run()]
    service = RecordedService(lambda body: runs.pop(0))

    (trial,) = await run(service)

    assert trial.error is None
    assert [body["run_id"] for body in service.posted] == ["eval-1:sum"] * 3


async def test_a_case_that_takes_too_long_is_cancelled_and_is_an_error() -> None:
    """A case that times out is cancelled, so that it causes no further cost."""
    service = RecordedService(lambda body: {**a_run(), "finished_at": None})

    (trial,) = await run(service, timeout_seconds=0.01)

    assert trial.error == "timed out after 0.01 seconds"
    assert service.cancelled == ["eval-1:sum"]


@pytest.mark.parametrize("error", [Passing, httpx.ConnectError("no answer")])
async def test_what_passes_is_tried_again(error: Exception) -> None:
    """Overload and lost responses are retried, which the run ID makes safe."""
    service = RecordedService(raising(error))

    (trial,) = await run(service)

    assert trial.error is None
    assert len(service.posted) == 2


async def test_what_does_not_pass_is_an_error() -> None:
    """After six attempts, a failure is reported with the service's message."""
    service = RecordedService(raising(*[Passing] * 9))

    (trial,) = await run(service)

    assert trial.error == "503: the queue is full."
    assert len(service.posted) == 6


async def test_input_that_the_service_does_not_take_is_a_refusal() -> None:
    """A 422 about the input alone counts as a refusal."""
    service = RecordedService(raising(ApiError(422, IN_INPUT)))

    (trial,) = await run(service)

    assert (trial.run, trial.error) == (None, None)
    assert trial.refusal == "422: Correct it.\ninput: It is blank."


@pytest.mark.parametrize(
    "error", [ApiError(422, IN_TOOLS), ApiError(400, {}), ApiError(500, {}), ApiError(401, {})]
)
async def test_any_other_refusal_is_an_error(error: ApiError) -> None:
    """Any other error response counts as an error, not as a refusal."""
    (trial,) = await run(RecordedService(raising(error)))

    assert trial.refusal is None
    assert str(error.status) in str(trial.error)


async def test_no_more_cases_run_at_a_time_than_wanted() -> None:
    """At most ``concurrency`` cases run at the same time."""
    service = CountingService()

    await run(service, *(a_case(id=f"c{number}") for number in range(9)), concurrency=3)

    assert service.most == 3
    assert len(service.posted) == 9


async def test_what_the_listener_raises_cancels_what_is_under_way() -> None:
    """An error in the listener cancels the running cases."""
    service = HangingService("quick")

    def full(trial: Trial) -> None:
        raise OSError("no space left")

    runner = Runner(service, RunOptions(), evaluation_id="eval-1")
    with pytest.raises(OSError, match="no space left"):
        await runner.run([a_case(id="slow"), a_case(id="quick")], full)

    assert service.cancelled == ["eval-1:slow"]


async def test_an_interruption_cancels_the_runs_under_way_and_begins_no_other() -> None:
    """An interruption cancels running cases, starts no other and reports only finished ones."""
    service = HangingService("quick", waits=2)
    reported: list[Trial] = []
    runner = Runner(service, RunOptions(concurrency=2), evaluation_id="eval-1")
    cases = [a_case(id=name) for name in ("quick", "slow", "slower", "later")]
    running = asyncio.create_task(runner.run(cases, reported.append))
    await service.waiting.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert sorted(service.cancelled) == ["eval-1:slow", "eval-1:slower"]
    assert [body["metadata"]["case"] for body in service.posted] == ["quick", "slow", "slower"]
    assert [trial.case.id for trial in reported] == ["quick"]


async def test_an_interruption_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption ends even if the service does not cancel its runs."""
    monkeypatch.setattr("caseworker_cases.evaluation.runner._LAST_SECONDS", 0)
    service = HangingService(cancels=False)
    runner = Runner(service, RunOptions(), evaluation_id="eval-1")
    running = asyncio.create_task(runner.run([a_case()], lambda trial: None))
    await service.waiting.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert asyncio.all_tasks() == {asyncio.current_task()}


class CountingService(RecordedService):
    """Counts the number of concurrent requests."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0
        self.most = 0

    async def run_of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        return await super().run_of(body)
