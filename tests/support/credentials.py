"""Credentials that no route accepts, in all places of a request."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from caseworker.features.external.step_keys import key_of_step
from caseworker.runs.run import RunKey

AUTHORIZATION: Final = b"authorization"
_LENGTHS: Final = (1, 2, 7, 63, 64, 65, 255, 256, 4_095, 8_192, 8_193, 16_384, 32_700)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Keys of a service: valid ones, and those that were valid once."""

    tenant: str
    run_id: str
    """A run of the tenant that has not ended."""
    key: str
    """API key of the tenant."""
    other_key: str
    """API key of another tenant."""
    operator: str
    run_key: str
    """Key of the run."""
    dead: Mapping[str, str]
    """Revoked, rotated and expired API keys, and keys of erased runs and renewed attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    """The headers and the query of a request."""

    headers: list[tuple[bytes, bytes]]
    query: bytes = b""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of refused credentials."""

    fixed: Callable[[Secrets], Iterator[Presented]]
    """Function that yields variants."""
    drawn: Callable[[Secrets, Random], Presented]
    """Function that returns a random one."""


def authorized(*values: str | bytes) -> Presented:
    """Present headers ``Authorization``."""
    shown = [each if isinstance(each, bytes) else each.encode() for each in values]
    return Presented(headers=[(AUTHORIZATION, each) for each in shown])


def bearer(value: str) -> Presented:
    """Present a bearer token."""
    return authorized(f"Bearer {value}")


def header(name: str, value: str) -> Presented:
    """Present a value in a header."""
    return Presented(headers=[(name.encode(), value.encode())])


def api_key(value: str) -> Presented:
    """Present a value in ``x-api-key``."""
    return header("x-api-key", value)


def _changed(text: str, random: Random, letters: str = "0123456789abcdef") -> str:
    """Return a text with one other letter in its second half."""
    at = random.randrange(len(text) // 2, len(text))
    return (
        text[:at] + random.choice([each for each in letters if each != text[at]]) + text[at + 1 :]
    )


def _hex(random: Random, digits: int) -> str:
    return f"{random.getrandbits(4 * digits):0{digits}x}"


def _encoded(value: Any) -> str:
    """Return a part of a token: base64 without padding, of bytes or of a JSON document."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _malformed(secrets: Secrets) -> Iterator[Presented]:
    """Yield headers without a valid bearer token."""
    key = secrets.key.encode()
    for value in (
        *(b"", b" ", b"Bearer", b"Bearer ", b"x", key, b"Bearer:" + key, b"Bearer\t" + key),
        *(b"Basic dXNlcjpwYXNz", b"Digest username=x", b"Token " + key),
        *(b"Bearer " + key + end for end in (b" x", b"\0", b"\n", b"\xc2\xa0", b"," + key)),
        *(b"Bearer \0" + key, b"Bearer " + b"\xed\xa0\x80", b"Bearer \xff\xfe"),
        *(b"Basic " + base64.b64encode(each) for each in (b"x:" + key, key + b":", b":" + key)),
    ):
        yield authorized(value)


def _draw_malformed(secrets: Secrets, random: Random) -> Presented:
    size = random.choice(_LENGTHS)
    prefix = random.choice((b"Bearer ", b"bearer ", b"Bearer   ", b"", b"cwk_", b"Bearer cwr_"))
    odd = random.choice(
        (
            random.randbytes(size),
            "\u0661\u00e9\U0001f511".encode() * size,
            b"\xed\xa0\x80" * size,  # lone surrogates
            b"\0" * size,
            b"A" * size,
        )
    )
    return authorized(prefix + odd[:size])


def _api_keys(secrets: Secrets) -> Iterator[Presented]:
    """Yield API keys that are unknown, changed, mixed up, revoked or expired."""
    _, key_id, secret = secrets.key.split("_")
    _, other_id, other_secret = secrets.other_key.split("_")
    yield from map(
        bearer,
        (
            *secrets.dead.values(),
            f"cwk_{other_id}_{secret}",
            f"cwk_{key_id}_{other_secret}",
            f"cwk_{key_id}_{'0' * 64}",
            f"cwk_{'0' * 16}_{secret}",
            *(secrets.key.upper(), secrets.key[:-1], f"{secrets.key}0", secrets.key * 2),
            *(f"cwr_{key_id}_{secret}", key_id, secret),
            base64.b64encode(secrets.key.encode()).decode(),
            *(secrets.operator[:-1], secrets.operator.upper()),
        ),
    )


def _draw_api_key(secrets: Secrets, random: Random) -> Presented:
    _, key_id, secret = secrets.key.split("_")
    return bearer(
        random.choice(
            (
                f"cwk_{_hex(random, 16)}_{_hex(random, 64)}",
                f"cwk_{key_id}_{_hex(random, 64)}",
                f"cwk_{_hex(random, 16)}_{secret}",
                f"cwk_{key_id}_{_changed(secret, random)}",
                f"cwk_{key_id}_{secret[: random.randrange(64)]}",
                f"cwk_{key_id}{_hex(random, 2)}_{secret}",
                _changed(secrets.operator, random),
                *secrets.dead.values(),
            )
        )
    )


def _run_keys(secrets: Secrets) -> Iterator[Presented]:
    """Yield keys of runs that are unknown, changed, renewed, or of erased runs."""
    for each in (
        *(each for each in secrets.dead.values() if each.startswith("cwr_")),
        *("cwr_", "cwr_0", f"cwr_{'0' * 64}", secrets.run_key[:-1], f"{secrets.run_key}0"),
        *(secrets.run_key.upper(), secrets.run_key.replace("cwr_", "cwk_")),
        *(secrets.run_key.removeprefix("cwr_"), f"cwr_{secrets.run_key}"),
    ):
        yield bearer(each)
        yield api_key(each)


def _draw_run_key(secrets: Secrets, random: Random) -> Presented:
    key = random.choice(
        (
            f"cwr_{_hex(random, 64)}",
            _changed(secrets.run_key, random),
            secrets.run_key[: random.randrange(5, 67)],
            f"cwr_{'a' * random.choice(_LENGTHS)}",
        )
    )
    return random.choice((bearer, api_key))(key)


def _names_in_step_keys(secrets: Secrets) -> tuple[bytes, ...]:
    return (
        f"{secrets.tenant}\n{secrets.run_id}".encode(),
        *(f"{secrets.tenant}\nno-such-run".encode(), b"\n", b"", b"a\nb\nc"),
        *(b"a\x00\nb", f"{secrets.tenant}\nx\x00".encode(), b"\xed\xa0\x80\nx", b"\xff\xfe"),
        *(b"x" * 5_000 + b"\n" + b"y" * 1_000, "\u00e9\n\U0001f511".encode()),
    )


def _step_keys(secrets: Secrets) -> Iterator[Presented]:
    """Yield keys of steps that another process has made, and made-up ones in many encodings."""
    yield bearer(key_of_step(RunKey(secrets.tenant, secrets.run_id), "of another process"))
    for name in _names_in_step_keys(secrets):
        standard, safe = base64.b64encode(name).decode(), base64.urlsafe_b64encode(name).decode()
        for named in dict.fromkeys((standard, safe, safe.rstrip("="), f"{safe}=", f"{safe}==")):
            for proof in ("", "x", "0" * 95, "0" * 96):
                yield bearer(f"cwr_{named}.{proof}")


def _draw_step_key(secrets: Secrets, random: Random) -> Presented:
    made = key_of_step(RunKey(secrets.tenant, secrets.run_id), _hex(random, 64))
    name = random.choice(_names_in_step_keys(secrets)) + random.randbytes(random.randrange(9))
    safe = base64.urlsafe_b64encode(name).decode()
    key = random.choice(
        (
            made,
            _changed(made, random),
            f"cwr_{safe}.{_hex(random, 96)}",
            f"cwr_{safe}{'=' * random.randrange(4)}.{_hex(random, random.randrange(1, 120))}",
            f"cwr_{'A' * random.choice(_LENGTHS)}.{'0' * 96}",
        )
    )
    return random.choice((bearer, api_key))(key)


_ALGORITHMS: Final[tuple[Any, ...]] = ("none", "None", "HS256", "RS256", "", None, 5, [], {})
_KEY_IDS: Final[tuple[Any, ...]] = ("known", "", "x" * 999, None, 5, [], {}, "../x")
_TOKEN_HEADS: Final[tuple[Any, ...]] = (
    *[{"alg": each} for each in _ALGORITHMS],
    *[{"alg": "RS256", "kid": each} for each in _KEY_IDS],
    *({"alg": "RS256", "crit": ["b64"], "b64": False}, {"alg": "RS256", "jwk": {}}),
    *([], 5, "x", b"\xff", b"{" * 5_000, b"9" * 5_000, b'{"alg": ' + b"9" * 5_000 + b"}"),
)


def _claims(secrets: Secrets) -> dict[str, Any]:
    return {
        "iss": "x",
        "aud": "x",
        "exp": 9_999_999_999,
        "tenant": secrets.tenant,
        "scope": "admin",
    }


def _tokens(secrets: Secrets) -> Iterator[Presented]:
    """Yield tokens without a valid signature."""
    for head in _TOKEN_HEADS:
        yield bearer(f"{_encoded(head)}.{_encoded(_claims(secrets))}.")
        yield bearer(f"{_encoded(head)}.{_encoded(_claims(secrets))}.{_encoded(b'x' * 256)}")


def _draw_token(secrets: Secrets, random: Random) -> Presented:
    ends = random.choice((0, -1, 1e308, "x", None, 10**400, 9_999_999_999))
    claims = {**_claims(secrets), "exp": ends}
    signature = _encoded(random.randbytes(random.choice((0, 1, 64, 256, 512))))
    parts = (_encoded(random.choice(_TOKEN_HEADS)), _encoded(claims), signature)
    return bearer(".".join(parts) + "." * random.randrange(2))


def _misplaced(secrets: Secrets) -> Iterator[Presented]:
    """Yield genuine keys in places that are not read, and ambiguous ones."""
    yield from map(api_key, (secrets.key, secrets.operator, f"Bearer {secrets.run_key}"))
    wrong = f"Bearer cwk_{'0' * 16}_{'0' * 64}"
    for key in (secrets.key, secrets.operator, secrets.run_key, secrets.other_key):
        shown, beside = f"Bearer {key}", (b"x-api-key", key.encode())
        yield authorized(shown, shown)
        yield authorized(shown, wrong)
        yield authorized(wrong, shown)
        yield authorized(f"{shown}, {shown}")
        yield Presented(headers=[(AUTHORIZATION, wrong.encode()), beside])
        yield Presented(headers=[(AUTHORIZATION, b"Basic eDp5"), beside])
    yield Presented(headers=[(b"x-api-key", secrets.run_key.encode())] * 2)


def _draw_misplaced(secrets: Secrets, random: Random) -> Presented:
    key = random.choice((secrets.key, secrets.operator, secrets.run_key, secrets.other_key))
    names = ("x-goog-api-key", "api-key", "x-auth-token", "proxy-authorization", "x-access-token")
    field = random.choice(("key", "api_key", "access_token", "token", "authorization"))
    name = random.choice((*names, f"x-{_hex(random, 4)}"))
    return random.choice(
        (
            header(name, key),
            header(name, f"Bearer {key}"),
            header("cookie", f"{field}={key}"),
            Presented(headers=[], query=f"{field}={key}".encode()),
            Presented(headers=[], query=f"{field}=Bearer%20{key}".encode()),
        )
    )


FORWARDED: Final = b"x-caseworker-forwarded"


def _forwarded(secrets: Secrets) -> Iterator[Presented]:
    """Yield forged signatures of requests that another process would have forwarded."""
    genuine = (AUTHORIZATION, f"Bearer {secrets.run_key}".encode())
    for value in (
        *(b"", b" ", b"x", b"9" * 5_000, b"9" * 400, b"-1 - x y", b"1 2 3 4 5"),
        *(b"\xff\xfe \0 a b", b"\xb2 - " + b"0" * 64 + b" " + b"0" * 64),
    ):
        yield Presented(headers=[genuine, (FORWARDED, value)])
    yield Presented(headers=[genuine, (FORWARDED, b"1"), (FORWARDED, b"1")])


def _draw_forwarded(secrets: Secrets, random: Random) -> Presented:
    at = random.choice((b"0", b"9" * random.randrange(1, 500), b"1764450000"))
    digest = _hex(random, 64).encode()
    value = b" ".join((at, random.choice((b"-", b"127.0.0.1")), digest, digest))
    genuine = (AUTHORIZATION, f"Bearer {secrets.run_key}".encode())
    return Presented(headers=[genuine, (FORWARDED, value)])


KINDS: Final[Mapping[str, Kind]] = {
    "malformed": Kind(_malformed, _draw_malformed),
    "API keys": Kind(_api_keys, _draw_api_key),
    "keys of runs": Kind(_run_keys, _draw_run_key),
    "keys of steps": Kind(_step_keys, _draw_step_key),
    "tokens": Kind(_tokens, _draw_token),
    "misplaced": Kind(_misplaced, _draw_misplaced),
    "forwarded": Kind(_forwarded, _draw_forwarded),
}
