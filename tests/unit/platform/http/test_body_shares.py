"""The memory for request bodies is shared: no tenant, and no unknown caller, takes all of it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.fair_slots import share_of
from caseworker.platform.http.bodies import memory_of
from caseworker.platform.http.problems import ProblemError
from caseworker.platform.http.request import UNIDENTIFIED_SHARE, BodyMemory

LIMIT = 1_000_000
REST = LIMIT - share_of(LIMIT)
Steps = Sequence[tuple[bool, int]]
STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, LIMIT)), max_size=60)


def occupied(bodies: BodyMemory, tenant: str | None, steps: Steps) -> None:
    """Receive bodies of a tenant, some of which end; a refused one releases its bytes."""
    held = list[int]()
    for begins, size in steps:
        if begins or not held:
            held.append(size)
            try:
                bodies.hold(size, tenant)
            except ProblemError:
                bodies.release(held.pop(), tenant)
        else:
            bodies.release(held.pop(), tenant)


@given(mallory=STEPS, nobody=STEPS, size=st.integers(1, REST))
def test_no_tenant_and_no_stranger_takes_the_share_of_others(
    mallory: Steps, nobody: Steps, size: int
) -> None:
    """Whatever one tenant and unknown callers send, another tenant has a tenth."""
    bodies = BodyMemory(LIMIT)
    occupied(bodies, "mallory", mallory)
    occupied(bodies, None, nobody)

    bodies.hold(size, "acme")


@given(tenants=STEPS)
def test_tenants_do_not_take_the_share_of_unknown_callers(tenants: Steps) -> None:
    """It is small, and the only one that these callers have."""
    bodies = BodyMemory(LIMIT)
    occupied(bodies, "mallory", tenants)
    occupied(bodies, "acme", tenants)

    bodies.hold(LIMIT // UNIDENTIFIED_SHARE, None)
    with pytest.raises(ProblemError):
        bodies.hold(1, None)


def test_all_tenants_together_have_a_limit() -> None:
    """Released bytes can be held again."""
    bodies = BodyMemory(LIMIT)
    bodies.hold(share_of(LIMIT), "acme")
    bodies.hold(REST, "initech")
    with pytest.raises(ProblemError):
        bodies.hold(1, "hooli")
    bodies.release(1, "hooli")
    bodies.release(REST, "initech")

    bodies.hold(REST, "hooli")


@pytest.mark.parametrize(
    ("body", "least", "most"),
    [
        (b"[" + b"{}," * 99_000 + b"{}]", 6_000_000, 7_000_000),
        (b'["' + b"word, " * 50_000 + b'"]', 300_000, 310_000),
        (b'{"a": 1}', 8, 100),
    ],
    ids=["values", "commas of a text", "small"],
)
def test_the_memory_of_a_body_grows_with_its_values(body: bytes, least: int, most: int) -> None:
    """Many small values take more memory than their text."""
    assert least <= memory_of(body) <= most
