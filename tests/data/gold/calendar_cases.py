"""The right answers of the calendar cases of ``cases.json``, and of those that mix in sums."""

from calendar import FRIDAY, MONDAY, SUNDAY, TUESDAY, WEDNESDAY
from datetime import date

from tests.data.gold import days
from tests.data.gold.wording import exact, in_full, number, weekday


def _days(start: date, end: date) -> int:
    return abs((end - start).days)


ANSWERS = {
    "cal-weekday": weekday(date(2025, 9, 8)),
    "cal-weekday-past": weekday(date(1789, 7, 14)),
    "cal-weekday-iso": weekday(date(2026, 1, 1)),
    "cal-weekday-ordinal": weekday(date(1989, 11, 9)),
    "cal-add-days": in_full(days.later(date(2024, 3, 15), 45)),
    "cal-add-days-plain": in_full(days.later(date(2025, 1, 1), 100)),
    "cal-add-weeks": in_full(days.later(date(2025, 6, 3), 42)),
    "cal-add-month-short": in_full(days.months_later(date(2025, 1, 31), 1)),
    "cal-add-years": in_full(days.months_later(date(2020, 2, 29), 60)),
    "cal-subtract-days": in_full(days.later(date(2024, 3, 15), -30)),
    "cal-before-days": in_full(days.later(date(2023, 1, 5), -10)),
    "cal-before-months": in_full(days.months_later(date(2024, 5, 31), -3)),
    "cal-day-after": in_full(days.later(date(2024, 2, 28), 1)),
    "cal-day-before": in_full(days.later(date(2023, 3, 1), -1)),
    "cal-days-between": number(_days(date(2024, 1, 1), date(2024, 12, 25))),
    "cal-days-from-to": number(_days(date(2023, 11, 20), date(2024, 2, 5))),
    "cal-days-reverse": number(_days(date(2024, 10, 1), date(2024, 7, 1))),
    "cal-weeks-between": number(_days(date(2025, 1, 6), date(2025, 3, 31)) // 7),
    "cal-months-between": number(days.whole_months(date(2023, 3, 15), date(2024, 11, 15))),
    "cal-years-between": number(days.whole_years(date(1776, 7, 4), date(2026, 7, 4))),
    "cal-leap-yes": days.leap(2024),
    "cal-leap-no": days.leap(2023),
    "cal-leap-century": days.leap(2000),
    "cal-days-in-month": number(days.days_in(2024, 2)),
    "cal-days-in-april": number(days.days_in(2025, 4)),
    "cal-days-in-year": number(days.days_of(2024)),
    "cal-end-of-month": in_full(date(2025, 2, days.days_in(2025, 2))),
    "cal-end-of-month-iso": in_full(date(2024, 11, days.days_in(2024, 11))),
    "cal-nth-tuesday": in_full(days.nth(2025, 10, TUESDAY, 2)),
    "cal-last-friday": in_full(days.nth(2024, 5, FRIDAY, -1)),
    "cal-first-monday": in_full(days.nth(2026, 9, MONDAY, 1)),
    "cal-weekday-after": in_full(days.next_weekday(date(2025, 4, 10), WEDNESDAY)),
    "cal-next-sunday": in_full(days.next_weekday(date(2025, 12, 24), SUNDAY)),
    "cal-weekday-before": in_full(days.next_weekday(date(2024, 6, 1), MONDAY, -1)),
    "cal-business-days": in_full(days.working_days_later(date(2025, 2, 14), 10)),
    "cal-business-before": in_full(days.working_days_later(date(2025, 4, 8), -3)),
    "cal-normalise": in_full(date(2025, 9, 8)),
    "cal-normalise-german": in_full(date(2025, 12, 24)),
    "cal-unambiguous-slash": weekday(date(2025, 12, 25)),
    "cal-abbreviated": weekday(date(1941, 12, 7)),
    "cal-weekday-after-count": weekday(days.later(date(2024, 3, 3), 100)),
    "cal-weekday-before-count": weekday(days.later(date(2025, 10, 1), -21)),
    "cal-weekday-days-before": weekday(days.later(date(2025, 10, 1), -11)),
    "cal-age": number(days.whole_years(date(1990, 6, 16), date(2024, 6, 15))),
    "cal-deadline": in_full(days.later(date(2024, 3, 15), 45)),
    "cal-warranty": in_full(days.months_later(date(2023, 8, 20), 24)),
    "cal-zone": weekday(date(2025, 3, 1)),
    "mixed-year-hours": number(days.days_of(2024) * 24),
    "mixed-rent": number(exact("18.50") * days.days_in(2024, 2)),
    "mixed-days-percent": number(exact("0.25") * _days(date(2024, 1, 1), date(2024, 4, 10))),
    "mixed-days-times-price": number(_days(date(2025, 6, 3), date(2025, 6, 10)) * 49),
    "mixed-weeks-hours": number(3 * 7 * 24),
    "mixed-offset": in_full(days.later(date(2025, 3, 1), 3 * 7)),
}
