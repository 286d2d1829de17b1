"""Contract of every real model provider, tested over real sockets.

The fake provider runs as a separate process; its arrival log shows the requests that were sent.
"""

import asyncio
import json
import logging
import random
import string
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from caseworker.models.ports import (
    Message,
    ModelError,
    ModelProvider,
    ModelRequest,
    Role,
    TokenUsage,
)
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider import DEFAULT_PLAN, FakeProvider, Step
from tests.support.model_line import FLAVOURS, KEY, Flavour, Line


async def test_a_prompt_is_sent_once_and_answered(
    line: Line, fake: FakeProvider, flavour: Flavour, provider: ModelProvider
) -> None:
    """The reply has the provider's text, and the provider received the prompt unchanged."""
    reply = await line.ask()

    assert json.loads(reply.text) == DEFAULT_PLAN
    assert reply.model == flavour.model
    assert reply.finish_reason == flavour.stop
    (arrival,) = await fake.arrivals(line.marker)
    assert arrival.question == line.marker
    assert arrival.headers["accept-encoding"] == "identity"
    assert (provider.name, provider.external) == (flavour.name, True)


async def test_a_conversation_keeps_its_order(
    line: Line, fake: FakeProvider, provider: ModelProvider, flavour: Flavour
) -> None:
    """System, user, assistant and user messages arrive unchanged and in order."""
    said = ("be brief", "first " + line.marker, "an answer", "second")
    roles: tuple[Role, ...] = ("system", "user", "assistant", "user")
    messages = tuple(
        Message(role=role, content=text) for role, text in zip(roles, said, strict=True)
    )

    await provider.complete(flavour.model, ModelRequest(messages=messages))

    (arrival,) = await fake.arrivals(line.marker)
    assert arrival.prompt.split("\n") == list(said)


@pytest.mark.req("002/20.4", "002/20.2")
async def test_usage_is_what_the_provider_counted(line: Line) -> None:
    """Cached tokens count as input, and reasoning counts as output."""
    step = Step(tokens_in=1000, tokens_out=70, tokens_cached=600, tokens_reasoning=50)

    reply = await line.ask(step)

    assert reply.usage == TokenUsage(
        tokens_in=1000, tokens_out=70, tokens_cached=600, tokens_reasoning=50
    )


@pytest.mark.req("002/20.4")
async def test_missing_usage_is_not_taken_for_zero(line: Line) -> None:
    """The reply is accepted, and its usage is ``None`` instead of zero."""
    reply = await line.ask(Step(omit_usage=True, text="fine"))

    assert reply.text == "fine"
    assert reply.usage is None


@pytest.mark.req("002/22.1")
async def test_seed_and_limits_reach_the_provider(fake: FakeProvider) -> None:
    """Seed and limits are sent where the protocol has a field for them."""
    provider = openai_provider(base_url=fake.openai_url)
    request = ModelRequest(
        messages=(Message(role="user", content="seeded"),),
        seed=7,
        temperature=0.25,
        max_output_tokens=99,
    )
    await provider.complete("a-local-model", request)
    await provider.complete("gpt-5-nano", request)
    await provider.aclose()

    local, public = (arrival.body for arrival in await fake.arrivals("seeded", bodies=True))
    assert local is not None
    assert public is not None
    assert (local["seed"], local["temperature"], local["max_tokens"]) == (7, 0.25, 99)
    # a model that reasons has another name for the limit and refuses a temperature
    assert (public["seed"], public["max_completion_tokens"]) == (7, 99)
    assert not public.keys() & {"temperature", "max_tokens"}


@pytest.mark.req("002/4.3", "002/21.1")
async def test_a_rate_limit_says_how_long_to_wait(line: Line) -> None:
    """A 429 is retryable after the seconds that the provider names."""
    error = await line.fail(Step(status=429, headers={"retry-after": "7"}))

    assert (error.retryable, error.status, error.retry_after_seconds) == (True, 429, 7)


@pytest.mark.req("002/4.3")
async def test_retry_after_may_be_a_date(line: Line) -> None:
    """The delay is the time left until that date."""
    at = datetime.now(UTC) + timedelta(seconds=60)
    date = format_datetime(at, usegmt=True)

    dated = await line.fail(Step(status=503, headers={"retry-after": date}))

    assert dated.retry_after_seconds is not None
    assert 0 < dated.retry_after_seconds <= 60


async def test_retry_after_in_milliseconds_is_understood(line: Line) -> None:
    """The more precise header has priority."""
    error = await line.fail(Step(status=429, headers={"retry-after-ms": "250", "retry-after": "1"}))

    assert error.retry_after_seconds == 0.25


@pytest.mark.req("002/13.2")
@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        (400, False),
        (401, False),
        (403, False),
        (404, False),
        (408, True),
        (409, True),
        (413, False),
        (422, False),
        (500, True),
        (502, True),
        (503, True),
        (529, True),
    ],
)
async def test_the_status_decides_whether_a_retry_makes_sense(
    line: Line, status: int, retryable: bool
) -> None:
    """The SDK does not retry on its own: one attempt is one request."""
    error = await line.fail(Step(status=status))

    assert (error.retryable, error.status) == (retryable, status)


@pytest.mark.req("002/13.4", "002/4.2")
@pytest.mark.parametrize("step", [Step(hang=True), Step(dribble_seconds=0.05)])
async def test_an_attempt_ends_at_its_time_limit(
    line: Line, fake: FakeProvider, step: Step
) -> None:
    """The attempt ends if data is missing or too slow, and the connection is closed."""
    error = await line.fail(step, timeout_seconds=1)

    assert error.retryable
    (arrival,) = await fake.wait_for_arrivals(1, line.marker, ended=True)
    assert arrival.outcome == "client_gone"


@pytest.mark.req("002/13.4")
@pytest.mark.parametrize("step", [Step(cut="before"), Step(cut="middle")])
async def test_a_cut_connection_may_be_tried_again(line: Line, step: Step) -> None:
    """The connection may be cut before or during the answer."""
    error = await line.fail(step)

    assert error.retryable
    assert error.status is None


async def test_a_provider_that_is_not_there_may_be_tried_again() -> None:
    """A refused connection is a retryable network error."""
    reserved = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = reserved.sockets[0].getsockname()[1]
    reserved.close()
    provider = openai_provider(base_url=f"http://127.0.0.1:{port}/v1")

    with pytest.raises(ModelError) as caught:
        await provider.complete(
            "gpt-5-nano", ModelRequest(messages=(Message(role="user", content="hello?"),))
        )
    await provider.aclose()

    assert caught.value.retryable


@pytest.mark.parametrize(
    "body", ['{"choices": [', "[]", "{}", "null", '{"content": 5, "choices": [{}]}', "<html>"]
)
async def test_a_reply_that_cannot_be_read_is_a_failure_of_the_provider(
    line: Line, body: str
) -> None:
    """An unreadable reply with status 200 is retryable like a 502."""
    assert (await line.fail(Step(raw_body=body))).retryable


async def test_a_redirect_is_not_followed(line: Line) -> None:
    """The key and the prompt go only to the configured address."""
    error = await line.fail(Step(status=307, headers={"location": "/elsewhere"}))

    assert (error.retryable, error.status) == (False, 307)


async def test_a_large_compressed_reply_is_refused(line: Line) -> None:
    """The reply is decompressed up to the limit, and not retried because it would come again."""
    noise = "".join(random.Random(1).choices(string.ascii_letters, k=2_000_000))

    assert not (await line.fail(Step(text=noise, gzip=True))).retryable


@pytest.mark.parametrize("status", [200, 400, 401, 500])
async def test_an_error_repeats_nothing_of_the_prompt_or_the_reply(line: Line, status: int) -> None:
    """Neither the message nor the traceback contains it."""
    step = (
        Step(raw_body=f'{{"{KEY}')
        if status == 200
        else Step(status=status, text=f"the key {KEY} is wrong")
    )

    error = await line.fail(step)

    shown = "".join(traceback.format_exception(error))
    assert KEY not in shown
    assert line.marker not in shown
    assert error.__context__ is None


async def test_no_log_line_repeats_the_prompt_the_reply_or_the_key(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds even at the log level debug."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("of.anybody").debug("heard")

    await line.ask(Step(text="the-reply"))

    assert "heard" in caplog.text
    assert not [said for said in (line.marker, "the-reply", KEY) if said in caplog.text]


async def test_a_cancel_closes_the_connection(line: Line, fake: FakeProvider) -> None:
    """The provider sees the client disconnect long before any time limit."""
    asking = asyncio.create_task(line.ask(Step(hang=True), timeout_seconds=3600))
    await fake.wait_for_arrivals(1, line.marker)

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    (arrival,) = await fake.wait_for_arrivals(1, line.marker, ended=True)
    assert arrival.outcome == "client_gone"


async def test_a_storm_of_cancels_does_not_poison_the_connections(
    line: Line, fake: FakeProvider, provider: ModelProvider, flavour: Flavour
) -> None:
    """After a hundred cancelled calls the next ones are answered normally."""
    await fake.script(line.marker, [Step(hang=True)] * 100)
    asking = [
        asyncio.create_task(provider.complete(flavour.model, line.request())) for _ in range(100)
    ]
    await fake.wait_for_arrivals(100, line.marker)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)

    assert all(task.cancelled() for task in asking)
    async with asyncio.TaskGroup() as group:
        again = [group.create_task(line.ask()) for _ in range(50)]
    assert all(json.loads(reply.result().text) == DEFAULT_PLAN for reply in again)


async def test_calls_beyond_the_limit_wait_for_their_turn(fake: FakeProvider) -> None:
    """The next call starts after the first has ended; one cancelled in the queue is never sent."""
    provider = openai_provider(base_url=fake.openai_url, max_in_flight=1)
    line = Line(fake, provider, FLAVOURS[0])
    await fake.script(line.marker, [Step(hang=True)])
    first = asyncio.create_task(line.ask())
    await fake.wait_for_arrivals(1, line.marker)
    waiting, following = (asyncio.create_task(line.ask()) for _ in range(2))
    await asyncio.sleep(0)  # both have begun

    waiting.cancel()
    await asyncio.wait({waiting})
    await fake.release()
    await first
    await following
    await provider.aclose()

    one, other = await fake.arrivals(line.marker)
    assert one.ended_monotonic is not None
    assert one.ended_monotonic <= other.arrived_monotonic
