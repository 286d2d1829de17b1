"""The events of a run's calls."""

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import AttemptError, CallFailedError, Reply
from caseworker.engine.events import Event
from tests.support.runs import loop
from tests.support.seeded_loop import play
from tests.unit.engine.gateway import REAL, Gateway


class Heard(list[Event]):
    """Implement the event sink as a list."""

    def emit(self, event: Event) -> None:
        self.append(event)


def opened(budget: Budget | None = None) -> tuple[Gateway, Heard]:
    gateway = Gateway(loop(), budget=budget or Budget())
    gateway.calls.events = heard = Heard()
    return gateway, heard


@pytest.mark.req("003/FR3.1")
def test_a_call_tells_its_begin_and_its_end() -> None:
    """A call emits its start and its end with kind, name and model, below the step that made it."""

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
    """A nested call's event names the step, because clients know steps and not parent calls."""

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
    """A call that fails after several attempts emits one error event."""

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
    """The error message is redacted in the event and in the trace."""

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
    """A refused call emits no event, because it was never made; the trace has a halted node."""

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
    """A call whose result cannot be stored emits only an error, never a completion first."""

    async def story() -> None:
        gateway, heard = opened()
        gateway.journal.refuses = large = ["too", "large"]

        async def answers() -> Reply:
            return Reply(large, REAL)

        with pytest.raises(ValueError, match="Only JSON"):
            await gateway.perform(answers)

        assert [event.type for event in heard] == ["call.started", "call.error"]

    play(story)
