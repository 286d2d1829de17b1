"""How a failed attempt is handled, and exactly when the next attempt starts.

The provider's real client talks to the fake provider's protocol; only the clock is virtual.
"""

import json

import pytest

from caseworker.engine.call import CallFailedError
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, asking_after, busy, priced

MODEL = priced("small", timeout_seconds=2.0)
UNREADABLE = "The model produced output that does not match the expected peg-native format"
TOO_MANY = Step(status=429)


async def answered(asking: Asking) -> None:
    """Check that the model answers in the end."""
    assert (await asking.ask()).text == "ok"


@pytest.mark.req("002/21.1", "002/21.2", "002/21.4", "002/13.2", "002/13.4", "002/4.2", "002/4.3")
@pytest.mark.parametrize("flavour", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("failures", "draws", "times"),
    [
        ([], [], [0]),
        ([busy()], [], [0, 0.5]),
        ([busy(), busy()], [], [0, 0.5, 1.5]),
        ([busy(), busy()], [1.0, 1.0], [0, 0.6, 1.8]),
        ([busy(), busy()], [-1.0, -1.0], [0, 0.4, 1.2]),
        ([Step(status=500), Step(status=502)], [], [0, 0.5, 1.5]),
        ([Step(status=408), Step(status=409)], [], [0, 0.5, 1.5]),
        ([TOO_MANY, TOO_MANY], [], [0, 0.5, 1.5]),
        ([Step(status=429, headers={"retry-after": "7"})], [], [0, 7]),
        ([Step(status=429, headers={"retry-after": "7"})], [-1.0], [0, 8.4]),
        ([Step(status=503, headers={"retry-after": "0"})], [], [0, 0.5]),
        ([Step(cut="before"), Step(cut="middle")], [], [0, 0.5, 1.5]),
        ([Step(raw_body="<html>")], [], [0, 0.5]),
        ([Step(hang=True), Step(hang=True)], [], [0, 2.5, 5.5]),
        ([busy(delay_seconds=1.0)], [], [0, 1.5]),
    ],
)
def test_what_may_pass_is_tried_again_after_exactly_its_wait(
    flavour: str, failures: list[Step], draws: list[float], times: list[float]
) -> None:
    """A retry waits 0.5 s, then 1 s, with 20 % jitter, or as long as the provider asks for."""

    async def story(asking: Asking) -> None:
        asking.provider.script("small", *failures)
        await answered(asking)

    asking = asking_after(story, MODEL, flavour=flavour, draws=draws)

    assert asking.provider.times() == pytest.approx(times)
    assert asking.run.spent()["llm_calls_small"] == 1
    assert asking.run.spent()["api_calls"] == len(times)
    (call,) = asking.calls()
    assert (call["status"], call["retries_used"]) == ("success", len(failures))


@pytest.mark.req("002/13.5", "002/21.2", "002/21.5", "003/NFR2.1")
@pytest.mark.parametrize(
    "failure", [busy(), Step(cut="before"), Step(hang=True), Step(raw_body="")]
)
def test_after_two_retries_the_call_has_failed_and_says_so(failure: Step) -> None:
    """After three attempts the call is failed in the trace; the error names the failure class."""

    async def story(asking: Asking) -> None:
        asking.provider.script("small", failure, repeat_last=True)
        with pytest.raises(CallFailedError) as failed:
            await asking.ask()
        assert failed.value.attempts == 3
        assert failed.value.error_class in ("ModelUnavailable", "TimeoutError")

    asking = asking_after(story, MODEL)

    assert len(asking.provider.arrivals) == asking.run.spent()["api_calls"] == 3
    (call,) = asking.calls()
    assert (call["status"], call["retries_used"]) == ("fail", 2)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_an_endpoint_cannot_read_of_its_model_is_asked_once(streamed: bool) -> None:
    """The llama.cpp error, as a status or in a stream, is not retried; its tokens are charged."""
    said = {"code": 500, "message": UNREADABLE, "type": "server_error"}
    body = json.dumps({"error": said})
    step = (
        Step(raw_body=f"data: {body}\n\n", headers={"content-type": "text/event-stream"})
        if streamed
        else Step(raw_body=body, status=500)
    )

    async def story(asking: Asking) -> None:
        asking.provider.script("small", step, repeat_last=True)
        with pytest.raises(CallFailedError) as failed:
            await asking.ask(**({"on_delta": lambda *_: None} if streamed else {}))
        assert failed.value.error_class == "ModelReplyUnreadable"
        assert UNREADABLE in str(failed.value)

    asking = asking_after(story, MODEL)

    assert asking.provider.times() == [0]
    assert asking.run.spent()["tokens"] > 0


@pytest.mark.req("002/13.2", "002/21.2")
@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (400, "ModelRequestRefused"),
        (401, "ModelMisconfigured"),
        (403, "ModelMisconfigured"),
        (404, "ModelMisconfigured"),
        (413, "ModelRequestRefused"),
        (422, "ModelRequestRefused"),
    ],
)
def test_what_a_retry_cannot_help_is_asked_once(status: int, error_class: str) -> None:
    """A request that the provider rejects is not retried and costs nothing."""

    async def story(asking: Asking) -> None:
        asking.provider.script("small", Step(status=status), repeat_last=True)
        with pytest.raises(CallFailedError) as failed:
            await asking.ask()
        assert (failed.value.attempts, failed.value.error_class) == (1, error_class)

    asking = asking_after(story, MODEL)

    assert asking.provider.times() == [0]
    assert "cost_usd" not in asking.run.spent()


@pytest.mark.req("002/4.3")
def test_a_provider_that_asks_for_more_patience_than_there_is_is_not_asked_again() -> None:
    """A call fails at once if the provider asks for a wait of one minute."""

    async def story(asking: Asking) -> None:
        asking.provider.script("small", Step(status=429, headers={"retry-after": "60"}))
        with pytest.raises(CallFailedError) as failed:
            await asking.ask()
        assert failed.value.retry_after_seconds == 60

    assert asking_after(story, MODEL).provider.times() == [0]
