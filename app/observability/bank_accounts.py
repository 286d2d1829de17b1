"""Tells international bank account numbers (IBAN, ISO 13616) from other words."""

import re
from types import MappingProxyType

_COUNTRIES = MappingProxyType(
    {
        15: "NO",
        16: "BE",
        18: "DK FK FO FI GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }
)
"""The countries that have such numbers, by how long theirs are."""

_LENGTHS = MappingProxyType(
    {country: length for length, named in _COUNTRIES.items() for country in named.split()}
)


def _pattern() -> str:
    """Return what matches a number of the right length, however it is grouped."""
    ways = (
        rf"(?:{named.replace(' ', '|')})\d\d(?:[ .\-+]{{0,2}}[A-Za-z0-9]){{{length - 4}}}"
        for length, named in _COUNTRIES.items()
    )
    begins = r"(?:(?<![A-Za-z0-9])|(?<=IBAN)|(?<=iban))(?=[A-Za-z]{2}\d\d)"
    return rf"{begins}(?i:{'|'.join(ways)})(?![A-Za-z0-9])"


ACCOUNT_NUMBER = re.compile(_pattern())
"""What may be an account number."""


def is_account_number(text: str) -> bool:
    """Say whether the letters and digits of ``text`` are an account number.

    They are as many as its country gives its numbers, and check (ISO 7064, mod 97-10).
    """
    number = "".join(character for character in text if character.isalnum()).upper()
    if not number.isascii() or len(number) != _LENGTHS.get(number[:2]):
        return False
    return int("".join(str(int(digit, 36)) for digit in number[4:] + number[:4])) % 97 == 1
