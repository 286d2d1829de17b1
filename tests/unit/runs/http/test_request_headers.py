"""The Prefer and Idempotency-Key headers of a POST request."""

import hashlib

import pytest
from starlette.datastructures import Headers

from caseworker.platform.http.problems import ProblemError
from caseworker.runs.http.body import idempotency_key, wait_seconds


def prefer(*values: str) -> Headers:
    return Headers(raw=[(b"prefer", value.encode()) for value in values])


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["wait=10"], 10),
        (["wait=0"], 0),
        (['wait="7"'], 7),
        (["Wait = 7"], 7),
        (["respond-async, wait=10"], 10),
        (["wait=10;foo=bar, handling=lenient"], 10),
        (["respond-async", "wait=10"], 10),
        (["wait=10, wait=20"], 10),
        (["wait=999999999"], 60),
    ],
)
def test_a_wish_to_wait_is_read_as_the_rfc_writes_it(values: list[str], seconds: int) -> None:
    """``wait`` is parsed as in RFC 7240: any case, several headers, and the first value counts."""
    assert wait_seconds(prefer(*values), longest=60) == seconds


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["wait"],
        ["wait="],
        ["wait=-1"],
        ["wait=1.5"],
        ["wait=ten"],
        ["wait=1e9"],
        ["wait=" + "9" * 5000],
        ["await=10"],
        ["wait=\N{FULLWIDTH DIGIT ONE}"],
    ],
)
def test_a_preference_that_cannot_be_read_is_ignored(values: list[str]) -> None:
    """An invalid preference is ignored, not rejected."""
    assert wait_seconds(prefer(*values), longest=60) is None


@pytest.mark.parametrize(
    "key", ["a", "8e03978e-40d5-43dd-bc93-6894a57f9324", '"quoted"', "a b", "~" * 255]
)
def test_a_printable_key_is_kept_as_its_digest(key: str) -> None:
    """An idempotency key is stored as a digest of its exact bytes."""
    digest = idempotency_key(Headers({"Idempotency-Key": key}))

    assert digest == hashlib.sha256(key.encode()).hexdigest()
    assert idempotency_key(Headers({"Idempotency-Key": key[:-1] + "!"})) != digest


@pytest.mark.parametrize("key", ["", " ", " a", "a\x00", "a\tb", "é", "~" * 256])
def test_another_key_is_refused(key: str) -> None:
    """An invalid key is rejected, because a changed key would create a second run."""
    with pytest.raises(ProblemError) as refused:
        idempotency_key(Headers(raw=[(b"idempotency-key", key.encode("latin-1"))]))

    assert [violation.field for violation in refused.value.violations] == ["Idempotency-Key"]


def test_no_key_is_no_key() -> None:
    """A request without the header has no idempotency key."""
    assert idempotency_key(Headers({})) is None
