"""Random times in two places, asked for in English; the laws on summer time are the oracle."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.adapters.providers.offline.desk import Desk
from tests.unit.adapters.providers.offline.english import said
from tests.unit.tools.dates.clocks import berlin, new_york

DESK = Desk()
moments = st.datetimes(datetime(2008, 1, 2), datetime(2036, 12, 30)).map(  # noqa: DTZ001
    lambda moment: moment.replace(second=0, microsecond=0, tzinfo=UTC)
)


def clock(shown: datetime) -> st.SearchStrategy[str]:
    """Return the ways to write a time of day that leave no doubt."""
    hour, half = shown.hour % 12 or 12, "pm" if shown.hour >= 12 else "am"
    ways = [f"{shown:%H:%M}", f"{hour}:{shown:%M} {half}", f"{hour}:{shown:%M}{half.upper()}"]
    return st.sampled_from([*ways, f"{hour} {half}"] if shown.minute == 0 else ways)


@settings(deadline=None)
@given(moment=moments, data=st.data())
async def test_a_time_elsewhere_is_what_the_law_says(moment: datetime, data: st.DataObject) -> None:
    """An hour that clocks show twice is refused by the tool."""
    here = berlin(moment)
    day, time = data.draw(said(here.date())), data.draw(clock(here))
    question = data.draw(
        st.sampled_from(
            [
                f"What time is it in New York when it is {time} in Berlin on {day}?",
                f"When it is {time} on {day} in Berlin, what time is it in New York?",
                f"Convert {time} on {day} from Berlin to New York time.",
                f"What time was it in New York at {time} Berlin time on {day}?",
            ]
        )
    )

    (result,) = await DESK.results(question)

    hour = timedelta(hours=1)
    if here in {berlin(moment - hour), berlin(moment + hour)}:
        assert result["code"] == "ambiguous_date"
    else:
        assert result["value"][:19] == new_york(moment).isoformat()


@settings(deadline=None)
@given(moment=moments, minutes=st.integers(1, 100_000), data=st.data())
async def test_minutes_between_two_times_are_counted_on_the_line_of_time(
    moment: datetime, minutes: int, data: st.DataObject
) -> None:
    """In UTC, where clocks are never changed."""
    later = moment + timedelta(minutes=minutes)
    one, other = (
        data.draw(
            st.sampled_from(
                [
                    f"{at:%Y-%m-%d %H:%M}",
                    f"{data.draw(clock(at))} on {data.draw(said(at.date()))}",
                    f"{data.draw(said(at.date()))} at {data.draw(clock(at))}",
                ]
            )
        )
        for at in (moment, later)
    )
    question = data.draw(
        st.sampled_from(
            [
                f"How many minutes are there between {one} and {other}?",
                f"How many minutes is it from {one} to {other} in UTC?",
            ]
        )
    )

    assert await DESK.answer(question) == str(minutes)
