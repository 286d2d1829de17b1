"""Secrets are masked in every form that a server may show."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.logs.secret_mask import SecretMask, secrets_in
from tests.support.echoes import FORMS, SECRET, shows

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
