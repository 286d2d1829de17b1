"""Which tenant gets a place of a queue, and when one that holds its share gets its turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.queue.shares import GREED, LONGEST_WAIT_SECONDS, Shares


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(shares: Shares, tenant: str, *job_ids: int) -> list[int]:
    """Ask for places; return the jobs that got one."""
    return [job_id for job_id in job_ids if shares.take(job_id, tenant) == 0]


@pytest.mark.parametrize(("places", "at_most"), [(1, 1), (2, 2), (4, 3), (32, 24), (100, 75)])
def test_a_tenant_alone_gets_three_quarters(places: int, at_most: int) -> None:
    """And all of the few places of a small queue."""
    shares = Shares(places)

    assert taken(shares, "a", *range(200)) == list(range(at_most))
    assert shares.free == places - at_most


def test_whoever_comes_next_finds_a_place() -> None:
    """Beside one that takes what it gets, and beside two; those hold less, the later they come."""
    shares = Shares(32)

    held = [
        len(taken(shares, tenant, *range(100 * number, 100 * number + 100)))
        for number, tenant in enumerate("abc")
    ]

    assert held == [24, 6, 2]


def test_a_place_that_is_given_back_can_be_taken_again() -> None:
    """By the tenant that held its share, too."""
    shares = Shares(4)
    assert taken(shares, "a", 1, 2, 3, 4) == [1, 2, 3]

    shares.give_back(2)

    assert taken(shares, "a", 4, 5) == [4]


def test_turns_follow_each_other_as_fast_as_jobs_end() -> None:
    """Three at a time, of which each has lasted ten seconds; no turn is further than is allowed."""
    clock = Clock()
    shares = Shares(4, clock)
    taken(shares, "a", 1, 2, 3)
    clock.now += 10
    shares.give_back(1)
    taken(shares, "a", 4)

    waits = [shares.take(job_id, "a") for job_id in range(5, 200)]

    assert waits[:3] == pytest.approx([10 / 3, 20 / 3, 10])
    assert waits[-1] == LONGEST_WAIT_SECONDS
    clock.now += 60
    assert shares.take(200, "a") == pytest.approx(LONGEST_WAIT_SECONDS - 60 + 10 / 3)
    clock.now += 600
    assert shares.take(201, "a") == pytest.approx(10 / 3)


Moves = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 400)))


@given(st.integers(1, 40), Moves)
def test_places_are_neither_lost_nor_doubled(
    places: int, moves: list[tuple[str, bool, float]]
) -> None:
    """A tenant below its share always gets one; who waits has a turn within the time allowed."""
    clock = Clock()
    shares = Shares(places, clock)
    working: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for job_id, (tenant, takes, seconds) in enumerate(moves):
        clock.now += seconds
        held = working[tenant]
        if not takes:
            if held:
                shares.give_back(held.pop())
        elif shares.free:
            below = len(held) < GREED * shares.free
            wait = shares.take(job_id, tenant)
            assert (wait == 0) is below
            assert wait <= LONGEST_WAIT_SECONDS
            if below:
                held.append(job_id)
        assert shares.free == places - sum(map(len, working.values())) >= 0
