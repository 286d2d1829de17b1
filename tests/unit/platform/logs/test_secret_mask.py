"""Secrets are masked in every form that a server may show."""

import base64
import html
import json
import re
import string
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.logs.secret_mask import SecretMask, secrets_in
from tests.support.echoes import FORMS, SECRET, shows

PASSWORD = "p\u00e4ssw\u00f6rd-\u20ac/\U0001f600 secret"
"""A secret with letters outside ASCII, of one to four bytes in UTF-8."""


def units_of(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def named(text: str) -> str:
    letters = {"\u00e4": "&auml", "\u00f6": "&ouml;", "\u20ac": "&euro;", "/": "&sol;"}
    return "".join(letters.get(each, each) for each in text)


FORMS_OF_PASSWORDS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "JSON in JSON in JSON": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "upper-case JSON": lambda text: "".join(f"\\u{unit:04X}" for unit in units_of(text)),
    "code points in braces": lambda text: "".join(f"\\u{{{ord(each):x}}}" for each in text),
    "long code points": lambda text: "".join(f"\\U{ord(each):08x}" for each in text),
    "bytes in Python": lambda text: repr(text.encode()),
    "percent": lambda text: quote(text, safe=""),
    "percent in Latin-1": lambda text: "".join(
        f"%{ord(each):02x}" if ord(each) < 256 else quote(each) for each in text
    ),
    "lower-case percent": lambda text: quote(text).lower(),
    "percent twice": lambda text: quote(quote(text)),
    "percent of code units": lambda text: "".join(f"%u{unit:04x}" for unit in units_of(text)),
    "percent in JSON": lambda text: json.dumps(quote(text)),
    "JSON in percent": lambda text: quote(json.dumps(text)),
    "decimal numbers": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "decimal numbers with zeros": lambda text: "".join(f"&#{ord(each):012};" for each in text),
    "numbers without semicolons": lambda text: "".join(f"&#{ord(each)}" for each in text),
    "hexadecimal numbers": lambda text: "".join(f"&#x{ord(each):x};" for each in text),
    "numbers in HTML in HTML": lambda text: html.escape(
        html.escape("".join(f"&#X{ord(each):X};" for each in text))
    ),
    "ASCII in HTML": lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
    "names": named,
    "names in JSON": lambda text: json.dumps(named(text)),
    "JSON in HTML in percent": lambda text: quote(html.escape(json.dumps(text))),
    "lines in JSON": lambda text: json.dumps(f"{text[:5]}\r\n{text[5:]}"),
}
FORMS_IN_BASE64: dict[str, Callable[[str], str]] = {
    "lines": lambda text: base64.encodebytes(f"{'x' * 50}{text}{'y' * 50}".encode()).decode(),
    "lines in JSON": lambda text: json.dumps(
        base64.encodebytes(f"{'x' * 49}{text}".encode()).decode()
    ),
    "lines of CR and LF in percent": lambda text: quote(
        base64.encodebytes(f"{'x' * 48}{text}".encode()).decode().replace("\n", "\r\n")
    ),
    "Base64 twice": lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    "Base64 twice of a longer text": lambda text: base64.b64encode(
        b"key: " + base64.b64encode(f"a: {text}.".encode())
    ).decode(),
    "Base64 twice in a URL": lambda text: base64.urlsafe_b64encode(
        base64.urlsafe_b64encode(f"ab{text}".encode())
    ).decode(),
    "percent form": lambda text: base64.b64encode(quote(text, safe="").encode()).decode(),
    "percent form in a query": lambda text: base64.b64encode(
        f"key={quote(text, safe='')}&a=b".encode()
    ).decode(),
}

printable = st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\\%&;")


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_masked_in_every_form(form: str) -> None:
    """The rest of the text stays."""
    shown = FORMS[form](SECRET)

    masked = SecretMask([f"Bearer {SECRET}"]).apply(f"before {shown} after")

    assert shows(shown, SECRET)
    assert "[secret]" in masked
    assert not shows(masked, SECRET)
    assert masked.startswith("before ")
    assert masked.endswith(" after")


@pytest.mark.parametrize("form", FORMS_OF_PASSWORDS)
@pytest.mark.parametrize("password", [PASSWORD, PASSWORD[::-1]])
def test_letters_outside_ascii_are_masked_in_every_form(form: str, password: str) -> None:
    """The credentials of Basic are decoded; a variable is masked as it is."""
    basic = base64.b64encode(f"some-user:{password}".encode()).decode()
    shown = FORMS_OF_PASSWORDS[form](password)

    for secret in (password, f"Basic {basic}"):
        masked = SecretMask([secret]).apply(f"before {shown} after")
        rest = r"(?:b'|['\"\\]|&(?:amp;)?quot;|%22|%5C|%26quot%3B)*"  # quotation marks, escaped
        assert re.fullmatch(rf"before {rest}\[secret\]{rest} after", masked)


@pytest.mark.parametrize(
    "secret", ["ab&word12", "ab&amp;ord12", "a&b&c&d&e&f", "&lt&gt&x1y2", "ab&#1&xyz"]
)
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_secrets_with_ampersands_before_words_are_masked_in_html(secret: str, layers: int) -> None:
    """The word is not the name of an entity."""
    shown = f"<{secret}>"
    for _ in range(layers):
        shown = html.escape(shown)

    for text in (shown, json.dumps(shown), quote(shown)):
        assert "[secret]" in SecretMask([secret]).apply(text)


@pytest.mark.parametrize("form", FORMS_IN_BASE64)
@pytest.mark.parametrize(
    "secret", [SECRET, PASSWORD, "abcdefgh", "0123456789" * 8, "a?b>c~d\u00ff"]
)
def test_encoded_secrets_are_masked(form: str, secret: str) -> None:
    """At most the first and last letters remain, which depend on the text around the secret."""
    shown = FORMS_IN_BASE64[form](secret)
    mask = SecretMask([f"Bearer {secret}"])

    assert "[secret]" in mask.apply(shown)
    assert "[secret]" in mask.apply(json.dumps({"a": [shown]}))


@given(st.text(printable, min_size=8, max_size=30), st.data())
def test_any_secret_is_masked_in_any_mixture_of_forms(secret: str, data: st.DataObject) -> None:
    """Each character is written in another form."""
    forms = [
        lambda each: f"\\u{ord(each):04x}",
        lambda each: f"\\\\\\u{ord(each):04X}",
        lambda each: f"%{ord(each):02x}",
        lambda each: f"%25{ord(each):02X}",
        lambda each: f"&#{ord(each)};",
        lambda each: f"&amp;#x{ord(each):x};",
    ]
    chosen = [data.draw(st.sampled_from(forms))(each) for each in secret]
    assert SecretMask([secret]).apply(f"<{''.join(chosen)}>") == "<[secret]>"
    assert secret not in SecretMask([secret]).apply(json.dumps({"a": secret, secret: 1}))
    assert SecretMask([secret]).apply(f"({secret})") == "([secret])"


@pytest.mark.parametrize("secret", ["%25%25%25%25", "\\" * 8, "a\\b\\c\\de", "&#43;&#43;"])
def test_a_secret_that_looks_like_escapes_is_masked(secret: str) -> None:
    """Without these escapes, it would be too short to be found."""
    assert SecretMask([secret]).apply(f"({secret})") == "([secret])"


@given(st.text(st.sampled_from("abc \\/%&#;+u0x2F46\"'{}[]")))
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    """Escapes of other characters are not changed."""
    assert SecretMask(["another-secret"]).apply(text) == text


def test_the_credentials_of_basic_are_masked_in_all_their_forms() -> None:
    """A server decodes them, and may show the password alone."""
    encoded = base64.b64encode(b"some-user:the pass/word").decode()
    mask = SecretMask([f"Basic {encoded}"])

    for shown in (encoded, "some-user:the pass/word", "the pass/word", "the+pass%2Fword"):
        assert mask.apply(f"<{shown}>") == "<[secret]>"
    assert mask.apply("some-user") == "some-user"


def test_keys_of_objects_are_masked() -> None:
    """A server may show a secret anywhere in a JSON value."""
    value = {"a": ["0123456789"], "the 0123456789": {"b": 1, "c": None, "d": True}}

    assert SecretMask(["0123456789"]).apply_to(value) == {
        "a": ["[secret]"],
        "the [secret]": {"b": 1, "c": None, "d": True},
    }


def test_variables_with_names_of_secrets_and_passwords_in_urls_are_masked() -> None:
    """Values of other variables, such as folders, are parts of usual results."""
    variables = {
        "GITHUB_TOKEN": "0123456789",
        "DATABASE_URL": "postgres://me:hunter-of@host/db",
        "FOLDER": "/srv/files",
        "BROKEN": "http://[x",
    }

    assert set(secrets_in(variables)) - {""} == {"0123456789", "hunter-of"}


def test_bytes_that_are_no_text_stay() -> None:
    """The body of an error may have any encoding."""
    content = b"\xff\xfe 0123456789 \x80"

    assert SecretMask(["0123456789"]).apply_to_bytes(content) == b"\xff\xfe [secret] \x80"


MEGABYTE = 1 << 20
REPEATED = {
    **{each: each for each in ("%41", "%2541", "%", "%25", "&amp;", "&", "&amp", "&#", "&#65;")},
    **{each: each for each in ("\\", "\\u", "\\u0041", "\\u4e2d", "\\ud83d\\ude00", "\\x41")},
    **{each: each for each in ("%C3%A4", "&euro;", "a", "+", "a\\n", '{"a": "b"}, ')},
    "lines": "a\n",
    "line ends": "\r\n",
    "zero bytes": "a\0",
}


def calls_of(function: Callable[[Any], object], argument: Any) -> int:
    """Return the number of functions that a function calls."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(argument)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("fragment", REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("more", ["", string.printable], ids=["few letters", "all letters"])
def test_a_megabyte_takes_few_calls(fragment: str, more: str) -> None:
    """Each call has a chunk of text, whether or not the text has the letters of the secret."""
    mask = SecretMask([f"Bearer {SECRET}"])
    short, long = (fragment * (size // len(fragment)) + more for size in (1 << 18, MEGABYTE))

    few, many = calls_of(mask.apply, short), calls_of(mask.apply, long)

    assert many <= 40_000
    assert many <= 4.5 * few + 500


@pytest.mark.parametrize(
    "part",
    [{"a": "%41"}, "%41", {"a": [1, None]}, [["&amp;"]], {"\\u0041": {}}, string.printable[:40]],
    ids=str,
)
@pytest.mark.parametrize("last", ["", SECRET])
def test_a_value_of_many_parts_takes_few_calls(part: Any, last: str) -> None:
    """It is masked as one text, whether or not it has a secret."""
    mask = SecretMask([f"Bearer {SECRET}"])

    assert calls_of(mask.apply_to, [*[part] * 60_000, last]) <= 20_000
    assert mask.apply_to([part, last]) == [part, last.replace(SECRET, "[secret]")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 1000])
def test_secrets_at_the_ends_of_chunks_are_masked(form: str, count: int) -> None:
    """A long text is split in chunks, but not inside an escape."""
    shown = FORMS[form](SECRET)
    mask = SecretMask([SECRET])
    one = mask.apply(f" {shown}")

    for before in (0, 16_300, 16_384):
        masked = mask.apply("x" * before + f" {shown}" * count)
        assert masked == "x" * before + one * count


@pytest.mark.parametrize(
    "value", [{"a": 1234567890}, [1234567890], 1234567890, {"b": [1234567890.5]}, -1234567890]
)
def test_a_number_that_is_also_a_secret_stays_a_number(value: Any) -> None:
    """The strings of the value are masked."""
    masked = SecretMask(["1234567890"]).apply_to({"a 1234567890": value, "c": ["1234567890"]})

    assert masked == {"a [secret]": value, "c": ["[secret]"]}


@pytest.mark.parametrize("chars", [1, 100, 500, 3000, 50_000])
@pytest.mark.parametrize("form", ["as it is", "JSON in JSON", "percent twice", "numbers", "Base64"])
def test_an_excerpt_is_the_start_of_the_masked_text(form: str, chars: int) -> None:
    """It may end in a mask, not in a secret."""
    mask = SecretMask([f"Bearer {SECRET}"])
    text = f"The key {FORMS[form](SECRET)} is unknown. " * 500

    assert mask.excerpt(text, chars) == mask.apply(text)[:chars]
