"""Tells payment card numbers from other digits."""


def is_card_number(text: str) -> bool:
    """Say whether the digits of ``text`` end in the right check digit (Luhn, ISO/IEC 7812-1)."""
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
