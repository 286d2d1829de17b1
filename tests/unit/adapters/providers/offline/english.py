"""Says numbers and dates in English; written apart from the reader that is tested with it."""

from datetime import date

from hypothesis import strategies as st

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def spelled(number: int, *, joined: str = " ", hyphen: str = "-") -> str:
    """Say a number below a billion; ``joined`` stands before the part below a hundred."""
    for size, name in ((10**6, "million"), (10**3, "thousand")):
        if number >= size:
            head = f"{spelled(number // size, joined=' ', hyphen=hyphen)} {name}"
            rest = number % size
            between = joined if rest < 100 else " "
            return head + (between + spelled(rest, joined=joined, hyphen=hyphen) if rest else "")
    if number >= 100:
        head, rest = f"{_ONES[number // 100]} hundred", number % 100
        return head + (joined + spelled(rest, hyphen=hyphen) if rest else "")
    if number < 20:
        return _ONES[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens] + (hyphen + _ONES[ones] if ones else "")


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``3rd``, ``4th`` and so on."""
    last = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{last or 'th'}"


def said(day: date) -> st.SearchStrategy[str]:
    """Return the ways to write a date that leave no doubt."""
    month, weekday = _MONTHS[day.month - 1], _WEEKDAYS[day.weekday()]
    return st.sampled_from(
        [
            day.isoformat(),
            f"{day.year}/{day.month}/{day.day}",
            f"{month} {day.day}, {day.year}",
            f"{month} {ordinal(day.day)} {day.year}",
            f"{month[:3]} {day.day} {day.year}",
            f"{day.day} {month} {day.year}",
            f"{day.day} {month[:3]} {day.year}",
            f"the {ordinal(day.day)} of {month} {day.year}",
            f"the {ordinal(day.day)} of {month}, {day.year}",
            f"{weekday}, {month} {day.day}, {day.year}",
            f"{weekday} {day.day} {month} {day.year}",
        ]
    )
