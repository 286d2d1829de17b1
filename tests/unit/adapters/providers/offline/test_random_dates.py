"""Random questions about dates against the standard library."""

from datetime import date, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.adapters.providers.offline.desk import NOW, Desk
from tests.unit.adapters.providers.offline.english import said, spelled

DESK = Desk()
TODAY = NOW.date()
days = st.dates(min_value=date(1600, 1, 1), max_value=date(2400, 1, 1))
counts = st.integers(1, 20_000)


@pytest.mark.req("002/5.2")
@settings(deadline=None)
@given(day=days, count=counts, weeks=st.booleans(), later=st.booleans(), data=st.data())
async def test_a_day_so_many_days_away_is_found(
    day: date, count: int, weeks: bool, later: bool, data: st.DataObject
) -> None:
    """In any of the ways to ask for it."""
    unit = "week" if weeks else "day"
    number = data.draw(st.sampled_from([str(count), f"{count:,}", spelled(count, joined=" and ")]))
    plural = unit if count == 1 else f"{unit}s"
    direction = data.draw(st.sampled_from(["after", "from", "following"] if later else ["before"]))
    frame = data.draw(
        st.sampled_from(
            [
                "What date is {n} {u} {d} {day}?",
                "{n} {u} {d} {day}",
                "what is the date {n} {u} {d} {day}",
                "Can you tell me what day is {n} {u} {d} {day}?",
                "when is {n} {u} {d} {day}?",
                "add {n} {u} to {day}" if later else "subtract {n} {u} from {day}",
            ]
        )
    )
    question = frame.format(n=number, u=plural, d=direction, day=data.draw(said(day)))
    distance = timedelta(weeks=count) if weeks else timedelta(days=count)
    try:
        wanted = (day + distance if later else day - distance).isoformat()
    except OverflowError:
        wanted = "out_of_range"

    assert await DESK.answer(question) == wanted


@pytest.mark.req("002/5.2")
@settings(deadline=None)
@given(day=days, data=st.data())
async def test_the_weekday_of_a_day_is_found(day: date, data: st.DataObject) -> None:
    """The locale's own names play no part."""
    names = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    frame = data.draw(
        st.sampled_from(
            [
                "What day of the week was {}?",
                "what weekday is {}",
                "On what day of the week does {} fall?",
                "what day was {}?",
            ]
        )
    )

    assert await DESK.answer(frame.format(data.draw(said(day)))) == names[day.weekday()]


@pytest.mark.req("002/5.2")
@settings(deadline=None)
@given(start=days, end=days, data=st.data())
async def test_the_days_between_two_days_are_counted(
    start: date, end: date, data: st.DataObject
) -> None:
    """Whichever comes first."""
    frame = data.draw(
        st.sampled_from(
            [
                "How many days are there between {} and {}?",
                "how many days from {} to {}",
                "days between {} and {}",
                "what is the number of days from {} until {}?",
            ]
        )
    )
    question = frame.format(data.draw(said(start)), data.draw(said(end)))

    assert await DESK.answer(question) == str(abs((end - start).days))


@pytest.mark.req("002/5.2")
@settings(deadline=None)
@given(day=days, data=st.data())
async def test_the_days_from_today_are_counted(day: date, data: st.DataObject) -> None:
    """Today is the day of the run, not of the clock on the wall."""
    assume(day != TODAY)
    text = data.draw(said(day))

    assert await DESK.answer(f"How many days until {text}?") == str((day - TODAY).days)
    assert await DESK.answer(f"How many days since {text}?") == str((TODAY - day).days)


@given(day=days)
async def test_a_date_in_ambiguous_digits_always_reaches_the_tool_as_written(day: date) -> None:
    """Whether it can be read is for the tool to say."""
    text = f"{day.day:02}/{day.month:02}/{day.year}"
    plan = await DESK.plan(f"What day of the week was {text}?")

    assert plan["actions"][0]["args"] == {"operation": "weekday", "date": text}
