"""Tests of the check of answers to hostile requests."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.raw_client import Answer

PROBLEM = "application/problem+json"
KIND = "urn:caseworker:problem:malformed-body"


def answer(
    status: int = 400, kind: str = PROBLEM, named: str = "r", body: bytes | None = None, **told: Any
) -> Answer:
    headers: Mapping[str, str] = {"content-type": kind, "x-request-id": named}
    document = {"type": KIND, "status": status, "request_id": named, **told}
    return Answer(status, headers, json.dumps(document).encode() if body is None else body)


@pytest.mark.req("card/s2s")
@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (answer(500), "the service failed"),
        (answer(503), "the service failed"),
        (answer(named=""), "no X-Request-ID"),
        (answer(kind="text/html"), "a refusal as 'text/html'"),
        (answer(kind="application/json"), "a refusal as 'application/json'"),
        (answer(body=b"{"), "no JSON"),
        (answer(200, "application/json", body=b'{"a": NaN}'), "no JSON"),
        (answer(200, "application/json", body=b'"\xff"'), "no JSON"),
        (answer(type="about:blank"), "without a type"),
        (answer(request_id="another"), "says something else"),
    ],
)
def test_what_no_answer_may_be_is_a_fault(bad: Answer, fault: str) -> None:
    """The fault names the problem of the answer."""
    assert fault in str(bad.fault())


@pytest.mark.req("card/s2s")
@pytest.mark.parametrize(
    "good",
    [
        answer(),
        answer(200, "application/json", body=b"[]"),
        answer(200, "text/html", body=b"<p>"),
        answer(204, "application/json", body=b""),
    ],
)
def test_what_an_answer_may_be_is_none(good: Answer) -> None:
    """Problem documents, JSON and successful answers of other types are accepted."""
    assert good.fault() is None
