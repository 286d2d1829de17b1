"""Tells payment card numbers from other digits."""

_ISSUERS: tuple[tuple[range, int, frozenset[int]], ...] = (
    (range(4, 5), 1, frozenset({16, 19})),  # Visa
    (range(51, 56), 2, frozenset({16})),  # Mastercard
    (range(2221, 2721), 4, frozenset({16})),  # Mastercard
    (range(34, 35), 2, frozenset({15})),  # American Express
    (range(37, 38), 2, frozenset({15})),  # American Express
    (range(300, 306), 3, frozenset({14, 16})),  # Diners Club
    (range(36, 37), 2, frozenset({14, 16})),  # Diners Club
    (range(38, 40), 2, frozenset({14, 16})),  # Diners Club
    (range(3528, 3590), 4, frozenset({16, 17, 18, 19})),  # JCB
    (range(6011, 6012), 4, frozenset({16, 17, 18, 19})),  # Discover
    (range(644, 660), 3, frozenset({16, 17, 18, 19})),  # Discover
    (range(62, 63), 2, frozenset({16, 17, 18, 19})),  # UnionPay
    (range(81, 82), 2, frozenset({16, 17, 18, 19})),  # UnionPay
    (range(50, 51), 2, frozenset({16, 18, 19})),  # Maestro
    (range(56, 59), 2, frozenset({16, 18, 19})),  # Maestro
    (range(60, 70), 2, frozenset({16, 18, 19})),  # Maestro
)
"""(how a number begins, how many digits that are, how long it is) of those who issue cards."""


def is_card_number(text: str) -> bool:
    """Say whether the digits of ``text`` are the number of a card that could have been issued.

    They begin as an issuer's numbers do, are as long, and end in the right check digit (Luhn,
    ISO/IEC 7812-1).
    """
    digits = [int(character) for character in text if character.isdecimal()]
    return _is_issued(digits) and _ends_right(digits)


def _is_issued(digits: list[int]) -> bool:
    begins = "".join(str(digit) for digit in digits[:4])
    return len(begins) == 4 and any(
        len(digits) in lengths and int(begins[:places]) in issued
        for issued, places, lengths in _ISSUERS
    )


def _ends_right(digits: list[int]) -> bool:
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
