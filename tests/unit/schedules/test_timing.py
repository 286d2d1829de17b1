"""When a schedule fires: over changes of the clock, after outages, under every policy."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.schedules.timing import CatchUp, InvalidCronError, Timing, due

MINUTE = timedelta(minutes=1)
PARIS = "Europe/Paris"
SPRING = datetime(2026, 3, 28, 22, tzinfo=UTC)
"""Before the night in which 02:00 becomes 03:00."""
AUTUMN = datetime(2026, 10, 24, 21, tzinfo=UTC)
"""Before the night in which 03:00 becomes 02:00."""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(timing: Timing, start: datetime, count: int) -> list[str]:
    found = []
    for _ in range(count):
        start = timing.next_after(start)
        found.append(start.strftime("%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "start", "expected"),
    [
        ("30 2 * * *", SPRING, ["29 01:00", "30 00:30", "31 00:30"]),
        ("0 3 * * *", SPRING, ["29 01:00", "30 01:00"]),
        ("0,30 2,3 * * *", SPRING, ["29 01:00", "29 01:30", "30 00:00"]),
        ("30 * * * *", SPRING, ["28 22:30", "28 23:30", "29 00:30", "29 01:30", "29 02:30"]),
        ("30 2 * * *", AUTUMN, ["25 00:30", "26 01:30"]),
        ("0 3 * * *", AUTUMN, ["25 02:00", "26 02:00"]),
        ("0 * * * *", AUTUMN, ["24 22:00", "24 23:00", "25 00:00", "25 01:00", "25 02:00"]),
        ("*/30 */2 * * *", AUTUMN, ["24 22:00", "24 22:30", "25 00:00", "25 00:30", "25 01:00"]),
    ],
)
def test_the_clock_may_jump(cron: str, start: datetime, expected: list[str]) -> None:
    """A time in a gap fires at its end, one that comes twice once; hours that pass are hours."""
    assert fires(Timing(cron, PARIS), start, len(expected)) == expected


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "@daily",
        "60 * * * *",
        "R * * * *",
        "H 3 * * *",
        "0 0 31 2 *",
        "0  3 * * *",
        "every day at 3",
        "0 3 * * MON-",
    ],
)
def test_what_is_no_expression_or_never_fires_is_refused(cron: str) -> None:
    """Nor one that the library would fill in by chance."""
    with pytest.raises(InvalidCronError):
        Timing(cron, "UTC").require_valid(SPRING)


@pytest.mark.parametrize("cron", ["30 6 * * 1-5", "0 0 29 2 *", "0 9 * * MON", "15 3 1,15 * *"])
def test_usual_expressions_are_taken(cron: str) -> None:
    """Names of days and months as well."""
    Timing(cron, PARIS).require_valid(SPRING)


ZONES = st.sampled_from([PARIS, "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kolkata"])
CRONS = st.builds(
    "{} {} * * {}".format,
    st.sampled_from(["0", "30", "*/20", "15,45", "7"]),
    st.sampled_from(["*", "*/3", "2", "1-4", "0,2,23"]),
    st.sampled_from(["*", "0", "1-5"]),
)
STARTS = st.sampled_from(
    [
        SPRING,
        AUTUMN,
        at("2026-03-08T00:00"),
        at("2026-11-01T00:00"),
        at("2026-04-04T00:00"),
        at("2026-10-03T00:00"),
    ]
)


def numbers(field: str) -> set[int]:
    """Return what a field of an expression admits, of the numbers that minutes have."""
    found: set[int] = set()
    for part in field.split(","):
        among, _, step = part.partition("/")
        first, _, last = among.replace("*", "0-59").partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def oracle(timing: Timing, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield what fires from ``start`` to ``end``, minute by minute."""
    zone, passing = ZoneInfo(timing.timezone), timing.cron.split(" ")[1].startswith("*")

    minutes, hours, _, _, days = (numbers(field) for field in timing.cron.split(" "))

    def matches(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours and wall.isoweekday() % 7 in days

    minute = start
    while minute <= end:
        local, before = minute.astimezone(zone), (minute - MINUTE).astimezone(zone)
        wall, jumped = local.replace(tzinfo=None), before.replace(tzinfo=None) + MINUTE
        gap = [jumped + MINUTE * n for n in range(max(0, (wall - jumped) // MINUTE))]
        in_gap = not passing and any(matches(each) for each in gap)
        if in_gap or (matches(wall) and (passing or local.fold == 0)):
            yield minute
        minute += MINUTE


@given(cron=CRONS, zone=ZONES, start=STARTS, data=st.data())
def test_every_instant_fires_as_the_policy_has_it(
    cron: str, zone: str, start: datetime, data: st.DataObject
) -> None:
    """Whenever it is woken: with `all` every instant once, with `one` the last of those due."""
    end = start + timedelta(hours=36)
    policy = data.draw(st.sampled_from(CatchUp))
    timing = Timing(cron, zone, policy, max_catch_up=100)
    expected = list(oracle(timing, start + MINUTE, end))
    wakes = data.draw(st.lists(st.integers(1, 36 * 3600), max_size=8))
    next_at = timing.next_after(start)
    fired: list[datetime] = []
    latest: list[datetime] = []
    before = start
    for wake in [start + timedelta(seconds=each) for each in sorted({*wakes, 36 * 3600})]:
        if wake < next_at:
            continue
        plan = due(timing, next_at=next_at, now=wake)
        fired += plan.instants
        latest += [each for each in expected if before < each <= wake][-1:]
        before, next_at = wake, plan.next_at
        assert next_at > wake
        assert all(each <= wake for each in plan.instants)
        if policy is CatchUp.SKIP:
            assert all(wake - each <= timedelta(seconds=60) for each in plan.instants)

    assert fired == sorted(set(fired))
    assert set(fired) <= set(expected)
    if policy is CatchUp.ALL:
        assert fired == expected
    if policy is CatchUp.ONE:
        assert fired == latest


@given(cron=CRONS, zone=ZONES, start=STARTS, policy=st.sampled_from(CatchUp))
def test_a_schedule_that_is_woken_in_time_fires_every_instant_once(
    cron: str, zone: str, start: datetime, policy: CatchUp
) -> None:
    """Under every policy, with whatever small delays."""
    timing, end = Timing(cron, zone, policy), start + timedelta(hours=30)
    expected = list(oracle(timing, start + MINUTE, end))
    next_at = timing.next_after(start)
    fired: list[datetime] = []
    while next_at <= end:
        plan = due(timing, next_at=next_at, now=next_at + timedelta(seconds=1.5))
        fired += plan.instants
        next_at = plan.next_at

    assert fired == expected


def test_an_outage_of_years_is_caught_up_in_no_time() -> None:
    """Only as many instants are looked at as may fire: the last ones."""
    timing = Timing("* * * * *", PARIS, CatchUp.ALL, max_catch_up=3)
    plan = due(timing, next_at=at("2000-01-01T00:00"), now=at("2026-01-01T00:00:30"))

    assert plan.instants == tuple(
        at(f"{each}") for each in ("2025-12-31T23:58", "2025-12-31T23:59", "2026-01-01T00:00")
    )
    assert plan.next_at == at("2026-01-01T00:01")


@pytest.mark.parametrize(
    ("policy", "expected"), [(CatchUp.SKIP, 0), (CatchUp.ONE, 1), (CatchUp.ALL, 4)]
)
def test_the_policies_differ_after_an_outage(policy: CatchUp, expected: int) -> None:
    """Of four instants that were missed."""
    timing = Timing("0 * * * *", "UTC", policy)
    plan = due(timing, next_at=at("2026-01-01T01:00"), now=at("2026-01-01T04:30"))

    assert len(plan.instants) == expected
