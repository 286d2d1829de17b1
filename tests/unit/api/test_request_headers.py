"""What the headers of a POST ask for."""

import hashlib

import pytest
from starlette.datastructures import Headers

from caseworker.api.problems import ProblemError
from caseworker.api.run_body import idempotency_key, wait_seconds


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
    """RFC 7240: names in any case, several headers are one, the first of several counts."""
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
    """A preference is never a reason to refuse."""
    assert wait_seconds(prefer(*values), longest=60) is None


@pytest.mark.parametrize(
    "key", ["a", "8e03978e-40d5-43dd-bc93-6894a57f9324", '"quoted"', "a b", "~" * 255]
)
def test_a_printable_key_is_kept_as_its_digest(key: str) -> None:
    """Keys mean nothing to the service; they are compared byte by byte, and never repeated."""
    digest = idempotency_key(Headers({"Idempotency-Key": key}))

    assert digest == hashlib.sha256(key.encode()).hexdigest()
    assert idempotency_key(Headers({"Idempotency-Key": key[:-1] + "!"})) != digest


@pytest.mark.parametrize("key", ["", " ", " a", "a\x00", "a\tb", "é", "~" * 256])
def test_another_key_is_refused(key: str) -> None:
    """A key that is cut or changed on its way would make two runs."""
    with pytest.raises(ProblemError) as refused:
        idempotency_key(Headers(raw=[(b"idempotency-key", key.encode("latin-1"))]))

    assert [violation.field for violation in refused.value.violations] == ["Idempotency-Key"]


def test_no_key_is_no_key() -> None:
    """Only what is sent counts."""
    assert idempotency_key(Headers({})) is None
