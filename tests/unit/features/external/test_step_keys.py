"""Keys of steps: only the process that makes them can, and other processes recognize them."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.features.external.step_keys import is_made_with, key_of_step, run_of
from caseworker.runs.run import RunKey

RUN = RunKey("acme", "run-1")
SECRET = "of this process"


def named(raw: bytes, proof: str = "x") -> str:
    return f"cwr_{base64.urlsafe_b64encode(raw).decode()}.{proof}"


@given(secret=st.text(min_size=1), other=st.text(min_size=1))
def test_a_key_is_made_with_one_secret(secret: str, other: str) -> None:
    """Each key is new, and names its run."""
    key = key_of_step(RUN, secret)

    assert run_of(key) == RUN
    assert is_made_with(key, secret)
    assert is_made_with(key, other) is (secret == other)
    assert key_of_step(RUN, secret) != key


@given(at=st.integers(0, 200), character=st.sampled_from("0aAz_-=.\n%é"))
def test_no_changed_key_is_accepted(at: int, character: str) -> None:
    """Whatever character is replaced."""
    key = key_of_step(RUN, SECRET)
    at = 4 + at % (len(key) - 4)
    changed = key[:at] + character + key[at + 1 :]

    assert changed == key or run_of(changed) != RUN or not is_made_with(changed, SECRET)


def test_a_key_of_one_run_is_not_that_of_another() -> None:
    """The proof belongs to the run."""
    proof = key_of_step(RUN, SECRET).rpartition(".")[2]

    assert not is_made_with(named(b"acme\nrun-2", proof), SECRET)


@pytest.mark.parametrize(
    "key",
    [
        named(b"a\x00\nb"),
        named(b"acme\nx\x00"),
        named(b"\xff\nx"),
        named(b"acme"),
        named(b"a\nb\nc"),
        named(b"acme\nrun-1", ""),
        "cwr_acme",
        "cwr_!!!.x",
        "cwr_é.x",
        "cwr_.",
        "",
    ],
)
def test_other_texts_name_no_run(key: str) -> None:
    """The database is not asked for runs whose names it could not store."""
    assert run_of(key) is None
    assert not is_made_with(key, SECRET)
