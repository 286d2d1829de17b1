"""Fire times of schedules: clock changes, outages and catch-up policies."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.features.schedules.cron_times import CatchUp, InvalidCronError, Timing, due

MINUTE = timedelta(minutes=1)
PARIS = "Europe/Paris"
SPRING = datetime(2026, 3, 28, 22, tzinfo=UTC)
"""Before the night in which 02:00 becomes 03:00."""
AUTUMN = datetime(2026, 10, 24, 21, tzinfo=UTC)
"""Before the night in which 03:00 becomes 02:00."""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def following(timing: Timing, start: datetime) -> Iterator[datetime]:
    """Yield fire times one by one, each computed from the one before."""
    while True:
        start = timing.next_after(start)
        yield start


def fires(timing: Timing, start: datetime, count: int) -> list[str]:
    return [f"{each:%d %H:%M}" for each in islice(following(timing, start), count)]


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
    """A time in a gap fires at its end, a repeated time once; hourly schedules fire every hour."""
    assert fires(Timing(cron, PARIS), start, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/20 * * * *", ["14:20", "14:40", "15:10", "15:30", "15:50"]),
        ("*/20 1-4 * * *", ["14:20", "14:40", "15:30", "15:50", "16:10"]),
    ],
)
def test_the_clock_may_be_set_back_by_half_an_hour(cron: str, expected: list[str]) -> None:
    """On Lord Howe Island 02:00 becomes 01:30, so 01:40 occurs at 14:40 and at 15:10 UTC."""
    timing, start = Timing(cron, "Australia/Lord_Howe"), at("2026-04-04T14:10")
    latest = islice(timing.last_until(at(f"2026-04-04T{expected[-1]}")), len(expected))

    assert fires(timing, start, len(expected)) == [f"04 {each}" for each in expected]
    assert [f"{each:%H:%M}" for each in latest] == expected[::-1]


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
    """Invalid and randomized expressions, and those that never fire, are rejected."""
    with pytest.raises(InvalidCronError):
        Timing(cron, "UTC").require_valid(SPRING)


@pytest.mark.parametrize("cron", ["30 6 * * 1-5", "0 0 29 2 *", "0 9 * * MON", "15 3 1,15 * *"])
def test_usual_expressions_are_taken(cron: str) -> None:
    """Common expressions are accepted, including names of weekdays."""
    Timing(cron, PARIS).require_valid(SPRING)


CRONS = st.builds(
    "{} {} {} * {}".format,
    st.sampled_from(["0", "30", "*/20", "15,45", "7", "*/25", "59", "0-29/10"]),
    st.sampled_from(["*", "*/3", "2", "1-4", "0,2,23", "0", "3"]),
    st.sampled_from(["*", "4", "1-31/2", "25-31"]),
    st.sampled_from(["*", "0", "1-5"]),
)
NIGHTS = st.sampled_from(
    [
        (zone, at(change) - timedelta(hours=8))
        for zone, changes in {
            "Africa/Casablanca": ["2026-02-15T02:00", "2026-03-22T02:00"],
            "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
            "America/St_Johns": ["2026-11-01T04:30", "2010-03-14T03:31", "2010-11-07T02:31"],
            "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],
            "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
            "Pacific/Apia": ["2011-12-30T10:00", "2020-09-26T14:00", "2021-04-03T14:00"],
            "UTC": ["2026-03-29T01:00"],
        }.items()
        for change in changes
    ]
)
"""Zones with a start eight hours before a clock change of half an hour, an hour or a day."""


def numbers(field: str) -> set[int]:
    """Return the values that a field of an expression allows, up to 59."""
    found: set[int] = set()
    for part in field.split(","):
        among, _, step = part.partition("/")
        first, _, last = among.replace("*", "0-59").partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def oracle(timing: Timing, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the fire times from ``start`` to ``end``, checking every minute."""
    zone, passing = ZoneInfo(timing.timezone), timing.cron.split(" ")[1].startswith("*")

    fields = timing.cron.split(" ")
    minutes, hours, days, _, weekdays = (numbers(field) for field in fields)
    either = "*" not in (fields[2], fields[4])

    def matches(wall: datetime) -> bool:
        on = (wall.day in days, wall.isoweekday() % 7 in weekdays)
        day = any(on) if either else all(on)
        return day and wall.minute in minutes and wall.hour in hours

    minute = start
    while minute <= end:
        local, before = minute.astimezone(zone), (minute - MINUTE).astimezone(zone)
        wall, jumped = local.replace(tzinfo=None), before.replace(tzinfo=None) + MINUTE
        gap = [jumped + MINUTE * n for n in range(max(0, (wall - jumped) // MINUTE))]
        in_gap = not passing and any(matches(each) for each in gap)
        if in_gap or (matches(wall) and (passing or local.fold == 0)):
            yield minute
        minute += MINUTE


@given(cron=CRONS, night=NIGHTS)
def test_no_instant_is_lost_or_added_in_either_direction(
    cron: str, night: tuple[str, datetime]
) -> None:
    """Fire times in both directions equal those found by checking every minute."""
    zone, start = night
    timing, end = Timing(cron, zone), start + timedelta(hours=36)
    expected = list(oracle(timing, start + MINUTE, end))

    forwards = list(takewhile(lambda each: each <= end, following(timing, start)))
    backwards = list(takewhile(lambda each: each > start, timing.last_until(end)))
    assert forwards == expected
    assert backwards == expected[::-1]


@given(cron=CRONS, night=NIGHTS, policy=st.sampled_from(CatchUp), data=st.data())
def test_every_instant_fires_as_the_policy_has_it(
    cron: str, night: tuple[str, datetime], policy: CatchUp, data: st.DataObject
) -> None:
    """After a delay, ``all`` fires the last hundred missed times, and ``one`` the last."""
    zone, before = night
    timing = Timing(cron, zone, policy, max_catch_up=100)
    expected = list(oracle(timing, before + MINUTE, before + timedelta(hours=36)))
    seconds = data.draw(st.lists(st.integers(1, 36 * 3600), max_size=8))
    wakes = [before + timedelta(seconds=each) for each in sorted({*seconds, 36 * 3600})]
    next_at = timing.next_after(before)
    for wake in wakes:
        if wake < next_at:
            continue
        plan = due(timing, next_at=next_at, now=wake)
        missed = [each for each in expected if before < each <= wake]
        if policy is CatchUp.SKIP:
            missed = [each for each in missed if wake - each <= timedelta(seconds=60)]
        assert list(plan.instants) == missed[-100 if policy is CatchUp.ALL else -1 :]
        assert plan.next_at > wake
        before, next_at = wake, plan.next_at


@given(cron=CRONS, night=NIGHTS, policy=st.sampled_from(CatchUp))
def test_a_schedule_that_is_woken_in_time_fires_every_instant_once(
    cron: str, night: tuple[str, datetime], policy: CatchUp
) -> None:
    """Without an outage, each time fires exactly once under every policy."""
    zone, start = night
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
    """After an outage of years, only as many times are computed as may fire."""
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
    """Of four missed times, ``skip`` fires none, ``one`` fires one and ``all`` fires four."""
    timing = Timing("0 * * * *", "UTC", policy)
    plan = due(timing, next_at=at("2026-01-01T01:00"), now=at("2026-01-01T04:30"))

    assert len(plan.instants) == expected
