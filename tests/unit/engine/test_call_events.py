"""What the event stream tells of the calls of a run."""

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import AttemptError, CallFailedError, Reply
from caseworker.engine.events import Event
from tests.unit.engine.gateway import REAL, Gateway, play
from tests.unit.runs.world import loop


class Heard(list[Event]):
    """Implements the sink of events."""

    def emit(self, event: Event) -> None:
        self.append(event)


def opened(budget: Budget | None = None) -> tuple[Gateway, Heard]:
    gateway = Gateway(loop(), budget=budget or Budget())
    gateway.calls.events = heard = Heard()
    return gateway, heard


@pytest.mark.req("003/FR3.1")
def test_a_call_tells_its_begin_and_its_end() -> None:
    """With its kind, its name and its model, below the step that makes it."""

    async def story() -> None:
        gateway, heard = opened()

        async def answers() -> Reply:
            assert [event.type for event in heard] == ["call.started"]
            return Reply("hello", REAL)

        await gateway.perform(answers)

        begun, ended = heard
        assert (begun.step_id, begun.node_id) == ("run", "n000002")
        assert dict(begun.data) == {"kind": "llm", "name": "plan", "model": "m-1"}
        assert (ended.type, ended.node_id) == ("call.completed", "n000002")
        assert (ended.data["attempts"], ended.data["tokens_in"], ended.data["tokens_out"]) == (
            1,
            70,
            5,
        )

    play(story)


@pytest.mark.req("003/FR3.1")
def test_an_event_names_the_step_of_a_call_that_another_call_asked_for() -> None:
    """The parent of the call is an LLM call; clients know steps."""

    async def story() -> None:
        gateway, heard = opened()

        async def answers() -> Reply:
            return Reply("hello", REAL)

        await gateway.perform(answers)
        await gateway.perform(answers, key="step/tool", parent="n000002")

        assert [(event.step_id, event.node_id) for event in heard[2:]] == [("run", "n000003")] * 2

    play(story)


@pytest.mark.req("003/FR3.3")
def test_a_call_that_failed_says_what_went_wrong_once() -> None:
    """However often it was tried."""

    async def story() -> None:
        gateway, heard = opened()

        async def fails() -> Reply:
            raise AttemptError("busy", error_class="ModelUnavailable", retryable=True)

        with pytest.raises(CallFailedError):
            await gateway.perform(fails)

        begun, ended = heard
        assert (begun.type, ended.type) == ("call.started", "call.error")
        assert (ended.data["error_class"], ended.data["error"]) == ("ModelUnavailable", "busy")
        assert ended.data["attempts"] == 3

    play(story)


def test_a_call_that_broke_says_so_in_the_words_of_its_error() -> None:
    """They are redacted, and in the trace as well."""

    async def story() -> None:
        gateway, heard = opened()

        async def breaks() -> Reply:
            raise RuntimeError("kaput, ask alice@example.org")

        with pytest.raises(RuntimeError):
            await gateway.perform(breaks)

        said = "RuntimeError: kaput, ask [email]"
        assert heard[-1].data["error"] == said
        assert (gateway.node()["error_class"], gateway.node()["stop_reason"]) == (
            "RuntimeError",
            said,
        )

    play(story)


def test_a_call_that_is_refused_tells_nothing() -> None:
    """It was never made; the trace has it as a halted node."""

    async def story() -> None:
        gateway, heard = opened(Budget(max_api_calls=0))

        async def never() -> Reply:
            raise AssertionError

        with pytest.raises(BudgetExceededError):
            await gateway.perform(never)

        assert heard == []
        assert gateway.node()["status"] == "halt"

    play(story)


def test_a_call_whose_result_cannot_be_stored_ends_once() -> None:
    """As a failure: nobody hears before that it was completed."""

    async def story() -> None:
        gateway, heard = opened()
        gateway.journal.refuses = large = ["too", "large"]

        async def answers() -> Reply:
            return Reply(large, REAL)

        with pytest.raises(ValueError, match="Only JSON"):
            await gateway.perform(answers)

        assert [event.type for event in heard] == ["call.started", "call.error"]

    play(story)
