"""Refusals of the gateway: their texts and their statuses."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from caseworker.core.budget.accounts import TENANT, AccountLimit
from caseworker.core.budget.budget import Budget, Dimension, field_name
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.stops import (
    CancelledError,
    DeadlineExceededError,
    HandOver,
    Stop,
    StopCause,
    StopKind,
)
from caseworker.features.external.attempts import PendingReply
from caseworker.features.external.end import RunEndedError, client_error
from caseworker.features.external.session import GatewaySession
from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.dialects.mcp import MCP
from caseworker.gateway.dialects.messages import MESSAGES
from caseworker.gateway.dialects.responses import RESPONSES
from caseworker.gateway.refusals import FINISHED, SUPERSEDED, of_problem, refusal_of
from caseworker.gateway.serve import relayed, shaped
from caseworker.models.gateway import NAMED_ONLY
from caseworker.models.relay import Head
from caseworker.nodes.agent.limits import TurnCapacity
from caseworker.platform.http.problems import ProblemError, ProblemType
from caseworker.runs.execute.outcome import outcome_of
from caseworker.runs.journal.journal import RunTooLargeError
from caseworker.runs.run import Run, RunKey, RunKind, RunRequest, RunStatus
from tests.support.overflow_patterns import mistaken
from tests.unit.features.external.execution import executed

pytestmark = pytest.mark.req("cw/15.refusals")

AT = datetime(2026, 12, 1, tzinfo=UTC)
EXTERNAL_RUN = Run(
    key=RunKey("", "run-1"),
    kind=RunKind.EXTERNAL,
    status=RunStatus.RUNNING,
    created_at=AT,
    request_hash="h",
    request=RunRequest(kind=RunKind.EXTERNAL),
)
LIMITED = [each for each in Dimension if hasattr(Budget(), field_name(f"max_{each}"))]


def limit_of(dimension: Dimension, amount: int) -> Budget:
    fields: dict[str, Any] = {field_name(f"max_{dimension}"): amount}
    return Budget(**fields)


def stops_of(dimension: Dimension) -> Iterator[Stop]:
    """Yield the stops for an exhausted limit, and for one that the next call would exceed."""
    run = Scope("run", limit_of(dimension, 10))
    step = run.child("answer", limit_of(dimension, 5))
    if dimension is not Dimension.SECONDS:
        step.add({dimension: Decimal(3) if dimension is Dimension.COST_USD else 3})
        step.reserve({dimension: 1})
    for scope in (run, step):
        yield scope.stop(dimension)
        yield scope.stop(dimension, 20)
        yield scope.stop(dimension, 1, kept_for_answer=1)
    for period in ("day", "month"):
        if dimension in (Dimension.TOKENS, Dimension.COST_USD):
            yield quota(dimension, period).exceeded_by({dimension: 9})


def quota(dimension: Dimension, period: str) -> AccountLimit:
    return AccountLimit(
        account=TENANT,
        period=period,
        until=date(2026, 12, 1),
        dimension=dimension,
        used=Decimal(3),
        reserved=Decimal(2),
        limit=Decimal(10),
    )


OTHERS = [
    CancelledError("enough", requested_by="operator"),
    CancelledError(),
    DeadlineExceededError(datetime(2026, 12, 1, tzinfo=UTC)),
    RunTooLargeError(5_000_000, 4_000_000),
    Stop(StopCause(kind=StopKind.BUDGET, reason=f"The limit is reached. {NAMED_ONLY}")),
    HandOver("This process does not own the run."),
]


def turn_limit() -> Stop:
    room = TurnCapacity(scope=Scope("run", None), calls=(), max_turns=1, wrap_up_reserve=0)
    stop = room.stop_before(2)
    assert stop is not None
    return stop


def test_no_stop_is_taken_for_a_full_context_window() -> None:
    """An agent that takes it for one compresses its conversation and asks again."""
    found = [*OTHERS, turn_limit(), *(stop for each in LIMITED for stop in stops_of(each))]
    messages = [refusal_of(stop).message for stop in found]
    messages += [FINISHED.message, SUPERSEDED.message]

    assert {message: agents for message in messages if (agents := mistaken(message))} == {}
    assert len(LIMITED) == 10
    assert mistaken("The run was halted: Token limit exceeded: 1 used, limit 1")


@pytest.mark.parametrize("dimension", LIMITED)
def test_a_refusal_says_that_the_run_was_halted_and_by_which_limit(dimension: Dimension) -> None:
    """The status makes no client repeat the request, and the stop's kind is the code."""
    for stop in stops_of(dimension):
        refusal = refusal_of(stop)

        assert refusal.message == f"The run was halted: {stop.cause.reason}"
        assert (refusal.status, refusal.code) == (400, "budget")
        assert refusal.headers == {"x-should-retry": "false"}


def test_a_spent_token_budget_has_words_of_its_own() -> None:
    """The message names whose tokens are spent."""
    of_run, *_, of_tenant = stops_of(Dimension.TOKENS)

    assert str(of_run).startswith("The run's token budget is spent: 3 used, limit 10")
    assert str(of_tenant).startswith("The tenant's token budget is spent: 3 used, 2 reserved, ")


@pytest.mark.parametrize("dialect", [CHAT_COMPLETIONS, RESPONSES, MESSAGES, MCP])
def test_a_refusal_by_a_quota_says_when_its_period_ends(dialect: Any) -> None:
    """Message and document have the time; the status is final, because it is hours away."""
    refusal = refusal_of(quota(Dimension.COST_USD, "day").exceeded_by({Dimension.COST_USD: 9}))
    error = dialect.error(refusal)["error"]

    assert refusal.status == 400
    assert "the period ends at 2026-12-01T00:00:00Z" in error["message"]
    assert error.get("data", error)["resets_at"] == "2026-12-01T00:00:00Z"


@pytest.mark.parametrize(
    ("status", "seconds", "asked", "shown"),
    [
        (429, 5, None, (429, {"retry-after": "5"})),
        (429, None, "60", (429, {"retry-after": "60"})),
        (429, 5, "61", (400, {"x-should-retry": "false"})),
        (429, None, None, (400, {"x-should-retry": "false"})),
        (422, None, None, (400, {"x-should-retry": "false"})),
        (413, None, None, (413, {"x-should-retry": "false"})),
        (503, 2, None, (503, {"retry-after": "2"})),
    ],
)
def test_only_what_a_repetition_can_pass_soon_may_be_repeated(
    status: int, seconds: int | None, asked: str | None, shown: tuple[int, dict[str, str]]
) -> None:
    """A 429 whose Retry-After is absent or longer than a minute becomes 400."""
    kind = ProblemType(
        slug="full",
        status=status,
        title="Full",
        detail="Full.",
        explanation="Full.",
        retry_after_seconds=seconds,
    )
    problem = ProblemError(kind)
    problem.headers = None if asked is None else {"Retry-After": asked}

    refusal = of_problem(problem)

    assert (refusal.status, refusal.headers) == shown


ENDS = {
    "cancelled": CancelledError("enough", requested_by="operator"),
    "deadline": DeadlineExceededError(datetime(2026, 12, 1, tzinfo=UTC)),
    "failed": None,
    **{f"limit of {each}": next(stops_of(each)) for each in LIMITED},
}


async def end_with(stop: Stop | None, session: GatewaySession, limit: asyncio.Event) -> None:
    """End a run as the stop does; None reports an error of the client."""
    if stop is None:
        session.finish(None, client_error("ValueError", "the tests fail"))
    elif stop.is_limit:
        limit.set()
    else:  # a supervisor ends the step
        session._context.token.trip(stop)
        await session.close()


def refusals_at(stop: Stop | None) -> dict[str, Mapping[str, Any]]:
    """Return the error document of each answer to a client of a run that ends with a stop."""
    documents: dict[str, Mapping[str, Any]] = {}
    head = Head(200, {"content-type": "text/event-stream"})

    async def client(session: GatewaySession) -> None:
        asked, limit = asyncio.Event(), asyncio.Event()

        async def perform(call_request: Any, entry: Any, reply: PendingReply) -> Any:
            if reply.digest == "stream":
                reply.relay.begin(head)
                reply.relay.write(b"data: first\n\n")
            await limit.wait()
            assert stop is not None
            raise stop

        async def answered(digest: str) -> bytes:
            asks: Any = SimpleNamespace(digest=lambda _: digest, body=None)
            reply = session.answer(asks, call_key=None, is_retry=False)
            work = relayed(None, CHAT_COMPLETIONS, session, reply, linger_seconds=0)
            response: Any = await shaped(work, CHAT_COMPLETIONS)
            asked.set()
            parts = response.body_iterator if digest == "stream" else None
            return response.body if parts is None else b"".join([each async for each in parts])

        session._perform = perform  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as group:
            stream = group.create_task(answered("stream"))
            await asked.wait()
            reply = group.create_task(answered("reply"))
            await asyncio.sleep(1)
            await end_with(stop, session, limit)
        documents["stream"] = json.loads(stream.result().splitlines()[-2].removeprefix(b"data: "))
        documents["reply"] = json.loads(reply.result())
        with pytest.raises(RunEndedError) as ended:
            await session.begin_call(None)
        documents["next call"] = CHAT_COMPLETIONS.error(refusal_of(ended.value.stop))
        session.finish(None)

    outcome, _ = executed(client)
    ended = replace(outcome, stop=outcome.stop or stop)
    cause = outcome_of(EXTERNAL_RUN, ended, at=AT).stop
    assert cause is not None
    refusal = refusal_of(StopCause.from_dict(json.loads(json.dumps(cause.to_dict()))))
    documents["ended run"] = CHAT_COMPLETIONS.error(refusal)
    return documents


@pytest.mark.parametrize("end", ENDS)
def test_reply_stream_and_ended_run_refuse_with_the_same_words(end: str) -> None:
    """The text does not depend on whether the end of the run was stored before the request."""
    documents = refusals_at(stop := ENDS[end])

    assert set(documents) == {"stream", "reply", "next call", "ended run"}
    assert documents == dict.fromkeys(documents, documents["ended run"])
    message = documents["stream"]["error"]["message"]
    assert (str(stop) if stop is not None else "the tests fail") in message
    assert message.startswith("The run ")
