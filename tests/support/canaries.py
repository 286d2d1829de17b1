"""Unique secrets and personal data that belong to no real person.

A canary contains the place where it was planted, so a leak shows its origin. Canaries made only of
digits contain a random number of that place.
"""

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

_LETTERS = "abcdefghijkmnopqrstuvwxyz"
_MIXED = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"

_WIDE = "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1a"
"""The word password and a colon, in full-width letters."""


@dataclass(frozen=True, slots=True)
class Canary:
    """One secret."""

    place: str
    """The place where it was planted."""
    kind: str
    shown: str
    """The text that contains the canary, with its surrounding words."""
    needle: str
    """The part that must appear nowhere else."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """One secret of every kind, planted in one place."""

    place: str
    all: tuple[Canary, ...]

    @property
    def text(self) -> str:
        """All canaries as a caller could write them."""
        return ". ".join(canary.shown for canary in self.all)

    def of(self, kind: str) -> Canary:
        """Return the canary of a kind."""
        return next(canary for canary in self.all if canary.kind == kind)

    def leaked_into(self, text: str) -> list[str]:
        """Return the kinds that a text contains."""
        return [f"{self.place}: {one.kind}" for one in self.all if one.needle in text]


def planted(place: str) -> Canaries:
    """Return the canaries of a place; repeated calls return the same ones."""
    draw = random.Random(f"canaries of {place}")
    return Canaries(place, tuple(_kinds(place, draw)))


def _kinds(place: str, draw: random.Random) -> Iterator[Canary]:
    word = "".join(draw.choices(_LETTERS, k=10))
    mixed = "".join(draw.choices(_MIXED, k=28)) + "7Qx9"
    yield _plain(place, "model key", f"sk-proj-{mixed}")
    yield _plain(place, "code host key", f"ghp_{mixed}")
    yield _plain(place, "cloud key", "AKIA" + "".join(draw.choices("ABCDEFGH234567", k=16)))
    yield _plain(place, "chat key", f"xoxb-{draw.randrange(10**11, 10**12)}-{mixed}")
    yield _plain(place, "web token", _web_token(word, mixed))
    yield _plain(place, "email", f"{word}.{place}@mail.example.org".replace(" ", "."))
    yield _plain(place, "card", " ".join(_fours(card_number(draw))))
    yield _plain(place, "account", " ".join(_fours(account_number(draw))))
    yield _plain(place, "phone", f"+49 {draw.randrange(151, 179)} {draw.randrange(10**7, 10**8)}")
    yield _plain(place, "social security", _social_security(draw))
    yield Canary(place, "password", f"password={word}1", f"{word}1")
    yield Canary(place, "url", f"https://app:{word}2@db.example.org/x", f"{word}2")
    yield Canary(place, "database", f"postgres://app:{word}/3@db.example.org/x", f"{word}/3")
    yield Canary(place, "pair", f"('authorization', '{word}4')", f"{word}4")
    yield Canary(place, "escaped password", f"password%3D{word}5", f"{word}5")
    yield Canary(place, "wide password", f"{_WIDE} {word}6", f"{word}6")
    hidden = f"{word[:4]}\u200b{word[4:]}7@mail.example.org"
    yield Canary(place, "hidden email", hidden, f"{word[4:]}7@mail")
    yield Canary(place, "variable", f"DB_PASS={word}8", f"{word}8")
    yield Canary(place, "login", f"app:{word}!9@db", f"{word}!9")
    key = f"{mixed}\n{mixed[::-1]}"
    shown = f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----"
    yield Canary(place, "private key", shown, mixed[::-1])


def _plain(place: str, kind: str, value: str) -> Canary:
    return Canary(place, kind, value, value)


def card_number(draw: random.Random) -> str:
    """Return the 16 digits of a card with a valid checksum (Luhn)."""
    digits = [4, *(draw.randrange(10) for _ in range(14))]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[::2]]
    return "".join(map(str, digits)) + str(-(sum(doubled) + sum(digits[1::2])) % 10)


def account_number(draw: random.Random) -> str:
    """Return a German account number with a valid checksum (mod 97)."""
    account = "".join(str(draw.randrange(10)) for _ in range(18))
    check = 98 - int(f"{account}131400") % 97
    return f"DE{check:02}{account}"


def _fours(text: str) -> Iterator[str]:
    return (text[start : start + 4] for start in range(0, len(text), 4))


def _social_security(draw: random.Random) -> str:
    return f"{draw.randrange(100, 600)}-{draw.randrange(10, 99)}-{draw.randrange(1000, 9999)}"


def _web_token(word: str, signature: str) -> str:
    parts = ({"alg": "HS256"}, {"sub": word})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return ".".join([*(part.rstrip("=") for part in encoded), signature])
