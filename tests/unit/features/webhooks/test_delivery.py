"""Delivery attempts: outcomes, delays, signatures and messages."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from caseworker.features.webhooks.attempts import verdict_of, webhook_body
from caseworker.features.webhooks.delivery import DeliveryStatus, EndpointAnswer
from caseworker.features.webhooks.feature import delivery_limits
from caseworker.features.webhooks.signing_secrets import new_secret
from caseworker.platform.signing import signed_headers
from caseworker.settings.schema import Settings

POLICY = delivery_limits(Settings().webhooks).retry
BODY = '{"type":"run.completed","text":"naïve ✓"}'.encode()


def failed(**values: Any) -> EndpointAnswer:
    return EndpointAnswer(
        **{"status_code": 500, "error": "The endpoint returned status 500.", **values}
    )


def test_pauses_grow_as_the_table_says() -> None:
    """After twelve attempts over about 27 hours, a delivery is dead."""
    pauses = [verdict_of(failed(), n, POLICY, jitter=0.0) for n in range(1, 13)]

    assert [round(pause) for _, pause in pauses[:6]] == [5, 20, 80, 320, 1280, 5120]
    assert all(pause == 18_000 for _, pause in pauses[6:11])
    assert pauses[11] == (DeliveryStatus.DEAD, 0.0)


@given(
    attempts=st.integers(1, 11),
    jitter=st.floats(-1, 1),
    asked=st.floats(0, 1e9, allow_nan=False),
)
def test_a_pause_is_as_long_as_was_asked_within_the_maximum(
    attempts: int, jitter: float, asked: float
) -> None:
    """Retry-After can lengthen a delay up to the maximum, but never shortens it."""
    status, pause = verdict_of(failed(retry_after_seconds=asked), attempts, POLICY, jitter=jitter)
    _, usual = verdict_of(failed(), attempts, POLICY, jitter=jitter)

    assert status is DeliveryStatus.PENDING
    assert min(asked, POLICY.max_delay_seconds) <= pause <= POLICY.max_delay_seconds
    assert pause >= usual > 0


def test_what_is_taken_is_delivered_and_what_is_gone_is_dead() -> None:
    """Status 204 completes a delivery, 410 ends it, and 400 leads to a retry."""
    assert verdict_of(EndpointAnswer(status_code=204), 1, POLICY)[0] is DeliveryStatus.DELIVERED
    assert verdict_of(failed(status_code=410), 1, POLICY)[0] is DeliveryStatus.DEAD
    assert verdict_of(failed(status_code=400), 1, POLICY)[0] is DeliveryStatus.PENDING


@pytest.mark.parametrize("signing", [1, 2])
def test_every_secret_that_signs_verifies(signing: int) -> None:
    """During a secret rotation, the signature verifies with the old and the new secret."""
    secrets = [new_secret() for _ in range(signing)]
    headers = signed_headers(secrets, message_id="msg-1", at=datetime.now(UTC), body=BODY)

    assert len(headers["webhook-signature"].split(" ")) == signing
    for secret in secrets:
        assert Webhook(secret).verify(BODY, headers)["type"] == "run.completed"
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(BODY, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secrets[0]).verify(BODY + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secrets[0]).verify(BODY, {**headers, "webhook-id": "msg-2"})


def test_an_old_attempt_is_refused_by_its_receiver() -> None:
    """The signature contains the attempt's time, so old requests are rejected as replays."""
    secret = new_secret()
    at = datetime.now(UTC) - timedelta(minutes=6)

    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(secret).verify(BODY, signed_headers([secret], message_id="m", at=at, body=BODY))


def test_secrets_are_long_and_never_the_same() -> None:
    """A secret is unique and has 256 bits after its prefix."""
    one, other = new_secret(), new_secret()

    assert one != other
    assert one.startswith("whsec_")
    assert len(base64.b64decode(one.removeprefix("whsec_"))) == 32


def test_a_result_or_input_that_is_too_long_is_left_out() -> None:
    """A result or input beyond the size limit is omitted and listed in ``omitted``."""
    run = {"run_id": "r", "finished_at": "2026-01-01T00:00:00Z", "inputs": None}
    view = {**run, "input": "y" * 400, "result": {"answer": "x" * 500}}

    whole, shorter, short = (
        webhook_body("run.completed", view, max_bytes=most) for most in (2000, 700, 300)
    )

    assert json.loads(whole)["data"] == view
    assert "omitted" not in json.loads(whole)
    assert json.loads(shorter)["data"] == {**view, "result": None}
    assert json.loads(shorter)["omitted"] == ["result"]
    assert json.loads(short)["data"] == {**view, "result": None, "input": None}
    assert json.loads(short)["omitted"] == ["result", "input"]
