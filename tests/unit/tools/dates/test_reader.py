"""Written dates have exactly one reading or are rejected."""

from datetime import date
from functools import cache
from threading import get_ident
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.dates import reader as module
from caseworker_cases.tools.dates.calculation import MONTHS, in_words
from caseworker_cases.tools.dates.reader import DateReader

UTC = ZoneInfo("UTC")


@pytest.fixture
def reader() -> DateReader:
    """Return a reader."""
    return DateReader()


async def test_the_library_is_loaded_once_and_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading it in the event loop would hold up other runs for a tenth of a second."""
    threads: list[int] = []
    monkeypatch.setattr(module, "_parsers", cache(lambda: threads.append(get_ident())))

    await DateReader().load()
    await DateReader().load()

    assert len(threads) == 1
    assert threads != [get_ident()]


READ = [
    ("2025-09-08", date(2025, 9, 8)),
    ("20250908", date(2025, 9, 8)),
    ("2024-W10-2", date(2024, 3, 5)),
    ("2024/3/5", date(2024, 3, 5)),
    ("2025.03.04", date(2025, 3, 4)),
    ("March 5, 2024", date(2024, 3, 5)),
    ("5 March 2024", date(2024, 3, 5)),
    ("5th of March, 2024", date(2024, 3, 5)),
    ("the 4th of July, 1976", date(1976, 7, 4)),
    ("Sept. 8, 2025", date(2025, 9, 8)),
    ("5-Mar-2024", date(2024, 3, 5)),
    ("MARCH 5, 2024", date(2024, 3, 5)),
    ("Monday, September 8, 2025", date(2025, 9, 8)),
    ("Thurs, 5 March 2026", date(2026, 3, 5)),
    ("  March   5,  2024 ", date(2024, 3, 5)),
    ("13/04/2025", date(2025, 4, 13)),
    ("04/13/2025", date(2025, 4, 13)),
    ("10/10/2025", date(2025, 10, 10)),
    ("29 February 2024", date(2024, 2, 29)),
    ("2025-01-15 10:30:00", date(2025, 1, 15)),
]


@pytest.mark.req("002/5.2", "002/25.3")
@pytest.mark.parametrize(("text", "day"), READ)
def test_a_whole_date_is_read(reader: DateReader, text: str, day: date) -> None:
    """ISO form, English words and unambiguous digits are accepted."""
    assert reader.read(text, UTC) == day


@pytest.mark.req("002/25.4")
@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("03/04/2025", ("April 3, 2025", "March 4, 2025", "2025-04-03", "2025-03-04")),
        ("1.2.2025", ("February 1, 2025", "January 2, 2025")),
        ("5-6-2025", ("June 5, 2025", "May 6, 2025")),
        ("03-04-25", ("April 3, 2025", "March 4, 2025", "April 25, 2003")),
    ],
)
def test_a_date_with_two_readings_is_refused_and_both_are_named(
    reader: DateReader, text: str, readings: tuple[str, ...]
) -> None:
    """The message shows how to write each reading."""
    with pytest.raises(ToolRefusedError) as refused:
        reader.read(text, UTC)

    assert refused.value.code == "ambiguous_date"
    assert all(reading in str(refused.value) for reading in readings)


@pytest.mark.req("002/25.4")
@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "tomorrow", "Friday", "next week", "now", "in 3 days", "x" * 100),
        *("2024", "March 2024", "5/2024", "September 8", "12.5", "March May 2024"),
        *("Feb 30, 2024", "2024-02-30", "30/02/2024", "2024-13-05", "13/13/2025", "00/04/2025"),
        *("8 Sep 25", "3rd March, 24", "Sept 8 '25", "March 5 2024 2025", "1 2 3 4"),
        *("March 5, 2024 please", "on March 5, 2024", "2024-01-01 junk", "3 days after 5 May 2024"),
        *("March 5, 2024 at 5pm", "March 5, 2024 10:00 EST", "5 mars 2024", "5 M\u00e4rz 2024"),
        *("\uff12\uff10\uff12\uff14-01-01", "2024-01-01\x00", "9999-12-31T23:59:59-10:00"),
        *("Tuesday, September 8, 2025", "None", "2024-02-30T10:00:00Z"),
    ],
)
def test_what_is_not_one_whole_date_is_refused(reader: DateReader, text: str) -> None:
    """Partial dates, extra words and wrong weekdays are rejected."""
    with pytest.raises(ToolRefusedError):
        reader.read(text, UTC)


@pytest.mark.req("002/25.5")
def test_an_instant_is_the_day_that_it_has_in_the_zone(reader: DateReader) -> None:
    """An offset in the text is applied and never dropped."""
    instant = "2024-03-05T23:30:00+00:00"

    assert reader.read(instant, ZoneInfo("Asia/Tokyo")) == date(2024, 3, 6)
    assert reader.read(instant, ZoneInfo("America/New_York")) == date(2024, 3, 5)
    assert reader.read("2024-03-05T23:30:00", ZoneInfo("Asia/Tokyo")) == date(2024, 3, 5)


@given(day=st.dates(min_value=date(1000, 1, 1)))
def test_every_date_is_read_back_from_the_words_it_is_told_in(day: date) -> None:
    """The reader accepts every format that the tool writes."""
    assert READER.read(in_words(day), UTC) == day
    assert READER.read(day.isoformat(), UTC) == day
    assert READER.read(f"{day.day} {MONTHS[day.month - 1][:3]} {day.year}", UTC) == day


@given(day=st.dates(min_value=date(1000, 1, 1)))
def test_digits_are_read_only_if_the_order_does_not_matter(day: date) -> None:
    """Day first and month first must give the same date."""
    text = f"{day.day:02}/{day.month:02}/{day.year}"
    if day.day > 12 or day.day == day.month:
        assert READER.read(text, UTC) == day
    else:
        with pytest.raises(ToolRefusedError, match="can be read as"):
            READER.read(text, UTC)


READER = DateReader()
