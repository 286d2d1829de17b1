"""Secrets with a known format, and secrets recognised by the text next to them."""

import pytest

from caseworker.platform.logs.redaction import redact_text, without_keys
from tests.unit.platform.logs.examples import SECRETS

HARMLESS = (
    *("sk-learn-pipelines", "hf_hub_download", "task_key_of_step", "a bearer instrument"),
    *("Basic arithmetic", "basic questions about tokens", "bearer securities", "token counting"),
    *("max_tokens=100", "tokens_in=812 tokens_out=64", "the password is required"),
    *("the secret of compound interest", "spin 2024", "author: nobody", "keyboard"),
    *("numeric_analysis_of_closing_prices_v2", "caseworker.platform.postgres.embedded.server"),
    *("0123456789abcdef0123456789abcdef01234567", "sha256 " + "0a1b2c3d" * 8, "0a1b2c3d" * 8),
    *("0190a3c4-7b1e-7c3d-9f00-5a8b6c7d8e9f", "key 0190a3c4-7b1e-7c3d-9f00-5a8b6c7d8e9f"),
    *("/usr/lib/python3.11/site-packages/sqlalchemy/engine/default.py", "http://127.0.0.1:8080/x"),
    *(
        "https://example.org/a/very/long/path/Of/Words",
        "AKIA is a prefix",
        "step:case/small/1/plan",
        "tan(450) and tan 450",
        "/runs/eval-20261122-045037-8c46-0153-1/artifacts/plot-goog-line-bae820d1-1.png",
        "the token count is 8192",
        "password reset policy for 2024",
        "the secret of 4 kings",
        "primary key: id, key figures: 12.5",
        "https://example.org/@ada/posts",
        "http://user.example.org:8080/a@b",
        "https://example.org/?key=price&code=none",
        "3 tests pass: 2 fail, compass=north, bypass=1",
        "a session of 3 hours; the session was closed",
        "the recovery: sales rose and fell and rose again and then they fell and rose once more",
    ),
)


@pytest.mark.req("002/19.2", "002/19.3")
@pytest.mark.parametrize(("secret", "core"), SECRETS.values(), ids=SECRETS.keys())
@pytest.mark.parametrize(
    ("before", "after"), [("before ", " after"), ('{"said": "', '"}'), ("", "")]
)
def test_a_secret_is_taken_out_of_a_text(secret: str, core: str, before: str, after: str) -> None:
    """The secret is found at any position; the words around it stay."""
    shown = redact_text(f"{before}{secret}{after}")

    assert core not in shown
    assert "[secret]" in shown or "[private key]" in shown
    assert shown.startswith(before)


@pytest.mark.req("002/19.5")
@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_resembles_a_secret_stays(text: str) -> None:
    """Program names, IDs and digests of this service, paths and ordinary words stay."""
    assert redact_text(text) == text


@pytest.mark.parametrize("text", ["sk-proj-abcdEFGH12345678", "a:AKIAIOSFODNN7EXAMPLE"])
def test_an_identifier_that_is_a_key_is_known(text: str) -> None:
    """A caller may have put a key into an identifier field."""
    assert without_keys(text) != text


@pytest.mark.parametrize("text", ["case-2025-09-08.1", "0190a3c4-7b1e-7c3d-9f00-5a8b6c7d8e9f", ""])
def test_an_ordinary_identifier_is_no_key(text: str) -> None:
    """Random-looking identifiers are not keys."""
    assert without_keys(text) == text
