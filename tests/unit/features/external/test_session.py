"""The idle time of an external run, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from caseworker.core.budget.stops import HandOver, StopKind
from caseworker.features.external.end import client_error
from caseworker.features.external.session import ExternalData, GatewaySession
from caseworker.features.external.sessions import Sessions
from caseworker.runs.journal.journal import LostRunError
from caseworker.runs.kinds import EXTERNAL_STEP
from tests.unit.features.external.execution import IDLE, KEY, executed


async def _hold(session: GatewaySession) -> None:
    """Hand the run over once it is idle."""
    session._context.calls.activity.hold(HandOver("The process shuts down."))


def test_a_run_is_not_idle_while_a_child_of_it_is_not() -> None:
    """After the end of the child, the idle time of the parent begins."""

    async def client(session: GatewaySession) -> None:
        child = GatewaySession(ExternalData(), session._context, parent=session)
        for _ in range(5):
            await asyncio.sleep(0.9 * IDLE)
            child.touch()
        await child.close()

    outcome, seconds = executed(client)
    assert outcome.stop is not None
    assert outcome.stop.cause.kind is StopKind.ABANDONED
    assert seconds == pytest.approx(5.5 * IDLE)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_run_is_not_idle_while_a_call_of_a_child_is_in_flight(depth: int) -> None:
    """The call sends no sign of life before its end, however long it takes."""

    async def client(session: GatewaySession) -> None:
        children = [session]
        for _ in range(depth):
            children.append(GatewaySession(ExternalData(), session._context, parent=children[-1]))
        path = session._context.path.call("llm", "slow")
        call = children[-1]._start(asyncio.sleep(7.5 * IDLE), path)
        await call
        assert session.is_open
        for child in reversed(children[1:]):
            await child.close()

    outcome, seconds = executed(client)
    assert outcome.stop is not None
    assert outcome.stop.cause.kind is StopKind.ABANDONED
    assert seconds == pytest.approx(8.5 * IDLE)


@pytest.mark.parametrize("order", ["close first", "hold first"])
def test_a_run_is_handed_over_once_its_child_has_closed(order: str) -> None:
    """A child that is open is work of the parent; a closed one is not."""

    async def client(session: GatewaySession) -> None:
        child = GatewaySession(ExternalData(), session._context, parent=session)
        await asyncio.sleep(1)  # the run waits for its client
        actions: list[Callable[[], Awaitable[None]]] = [child.close, partial(_hold, session)]
        for action in actions if order == "close first" else reversed(actions):
            assert session.stop is None
            await action()
            await asyncio.sleep(1)
        assert isinstance(session.stop, HandOver)
        session.finish(None)

    executed(client)


@pytest.mark.req("cw/15.finish")
def test_a_run_without_a_sign_of_life_is_abandoned_after_its_idle_time() -> None:
    """The stop is a failure of the run, not a limit."""

    async def silent(session: GatewaySession) -> None:
        pass

    outcome, seconds = executed(silent)

    assert outcome.stop is not None
    assert outcome.stop.cause.kind is StopKind.ABANDONED
    assert not outcome.stop.is_limit
    assert IDLE <= seconds < IDLE + 1


@pytest.mark.req("cw/15.finish")
def test_each_sign_of_life_starts_the_idle_time_again() -> None:
    """Heartbeats within the idle time keep the run, however long it takes."""

    async def beating(session: GatewaySession) -> None:
        for _ in range(10):
            await asyncio.sleep(IDLE * 0.9)
            session.touch()

    outcome, seconds = executed(beating)

    assert outcome.stop is not None
    assert outcome.stop.cause.kind is StopKind.ABANDONED
    assert IDLE * 10 <= seconds < IDLE * 10 + 1


def test_the_first_finish_decides() -> None:
    """A later one changes nothing."""

    async def finishing(session: GatewaySession) -> None:
        session.finish({"answer": 42})
        session.finish(None, client_error("ValueError", "late"))

    outcome, seconds = executed(finishing)
    result: Any = outcome.steps[EXTERNAL_STEP].outputs

    assert outcome.stop is None
    assert result["result"]["output"] == {"answer": 42}
    assert seconds < 1


def test_a_process_that_has_lost_a_run_starts_no_calls_of_it() -> None:
    """The run is elsewhere even while calls that ignore their cancellation still end here."""

    async def losing(session: GatewaySession) -> None:
        sessions = session._context.service(Sessions)
        assert sessions.starts_calls(KEY)
        session._context.token.trip(LostRunError())
        assert sessions.get(KEY) is session
        assert sessions.is_owned_elsewhere(KEY)
        assert not sessions.starts_calls(KEY)
        session.finish(None)

    executed(losing)
