"""Secrets with a known format, and secrets recognised by the text next to them."""

import pytest

from caseworker.platform.logs.redaction import redact_text, without_keys

MIXED = "kV3nQ8sL2pXw9TzB4mRc7JhY"

SECRETS = {
    "a key of a model provider": ("sk-proj-abcdEFGH12345678", "abcdEFGH"),
    "a key with nothing but letters": ("sk-abcdefghijklmnopqrstuvwx", "abcdefgh"),
    "a key of another provider": ("sk-ant-api03-aB3dE5-gH_jK", "aB3dE5"),
    "a very long key": (f"sk-proj-{MIXED * 12}", MIXED[:8]),
    "a key of a code host": ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "16C7e42F"),
    "a fine-grained key of a code host": (f"github_pat_11ABC_{MIXED}", MIXED[:8]),
    "a key of a chat": (f"xoxb-123456789012-{MIXED}", "123456789012"),
    "a cloud access key": ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN"),
    "a secret cloud key": ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUt"),
    "a maps key": ("AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", "SyD-9tSr"),
    "a bot's key": ("123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsawQ", "HdqTcv"),
    "a mailer's key": (f"SG.{MIXED}.{MIXED}", MIXED[:8]),
    "a web token": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIi"),
    "a web token inside a word": ("jwt-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJzdWIi"),
    "a webhook of a chat": (
        f"https://discord.com/api/webhooks/1234567890/{MIXED}",
        MIXED[:8],
    ),
    "a webhook of another chat": (
        f"https://acme.webhook.office.com/webhookb2/11-22@33/IncomingWebhook/{MIXED}",
        MIXED[:8],
    ),
    "a cloud session token": ("IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJH", "X2VjEJr"),
    "a key of a step": (f"cwr_YWNtZQpy.{'0a1b2c3d' * 8}", "0a1b2c3d"),
    "a key of a step in a padded run": (f"cwr_YWNtZQpydW4tMQ==.{'0a1b2c3d' * 8}", "0a1b2c3d"),
    "a key of a step in a URL": (f"?k=cwr_YWNtZQpydW4tMQ%3D%3D.{'0a1b2c3d' * 8}&b", "0a1b2c3d"),
    "a token of a scheme of its own": ("FlyV1 fm2_lJPECAAAAAAAA", "lJPEC"),
    "a password behind an arrow": ("password -> hunter2x", "hunter2x"),
    "a password in a German sentence": ("Passwort lautet hunter2x", "hunter2x"),
    "a password in Chinese": ("\u5bc6\u7801: hunter2x", "hunter2x"),
    "a password in Japanese": ("\u30d1\u30b9\u30ef\u30fc\u30c9\uff1ahunter2x", "hunter2x"),
    "a password in Korean": ("\ube44\ubc00\ubc88\ud638: hunter2x", "hunter2x"),
    "a password in short French": ("mdp: hunter2x", "hunter2x"),
    "a password in three quotes": ('passwd = """hunter2x"""', "hunter2x"),
    "a short name with spaces": ("[db]\npass = hunter2x", "hunter2x"),
    "a password before its word": ("hunter2x is the password", "hunter2x"),
    "a pin in a sentence": ("my pin is 4821", "4821"),
    "a check value in a sentence": ("cvv is 123", "123"),
    "a bearer token": ("Bearer abc.def-ghi_jkl", "abc.def"),
    "basic credentials": ("Basic dXNlcjpodW50ZXIy", "dXNlcjpo"),
    "a header": ("Authorization: Custom a b c", "a b c"),
    "a header in JSON": ('{"authorization": "hunter2"}', "hunter2"),
    "a cookie": ("Cookie: theme=dark; sid=hunter2", "hunter2"),
    "a private key": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIB\n-----END RSA PRIVATE KEY-----",
        "IB\n",
    ),
    "a private key without an end": ("-----BEGIN PRIVATE KEY-----\nMIIEow", "MIIEow"),
    "a password in a URL": ("postgresql://app:hunter2@db.example.org/x", "hunter2"),
    "a password with an at sign in a URL": ("redis://:hun@ter2@db.example.org/x", "ter2"),
    "a password in a setting": ('password = "hunter2"', "hunter2"),
    "a password of several words": ('password: "correct horse battery"', "horse"),
    "a password in JSON in JSON": (r"{\"password\": \"hunter2\"}", "hunter2"),
    "a password in a sentence": ("my password is hunter2", "hunter2"),
    "a pin": ("PIN: 4931", "4931"),
    "a key in a query": ("https://example.org/?api_key=hunter2", "hunter2"),
    "a token in JSON": ('{"access_token": "hunter2"}', "hunter2"),
    "a random word near a word for keys": ("the secret was aB3dE5gH7jK9mN1p then", "aB3dE5"),
    "a temporary cloud key": ("ABIAIOSFODNN7EXAMPL2", "IOSFODNN"),
    "a cloud key behind another letter": ("xAKIAIOSFODNN7EXAMPLE", "IOSFODNN"),
    "a secret cloud key in a query": (
        "?k=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY&r=1",
        "wJalrXUt",
    ),
    "a signature in a query": ("https://a.example.net/c?sv=2022&sig=Zk2%2Bq9sL%3D", "Zk2%2B"),
    "a key in a query without a telling name": ("https://example.org/?key=abc123DEF4", "abc123"),
    "a key of a shop": (f"sq0csp-{MIXED}", MIXED[:8]),
    "a key glued to a word": ("xsk-proj-abcdEFGH12345678", "EFGH1234"),
    "a private key in small letters": ("-----begin private key-----\nMIIEow", "MIIEow"),
    "a private key of another make": ("Private-Lines: 1\nAAAAIGx5\nPrivate-MAC: 0", "AAAAIGx5"),
    "a password with a slash in a URL": ("postgres://u:hun/ter2@db.example.org/d", "ter2"),
    "a bearer token behind a colon": ("Bearer: abcdEFGH12345", "abcdEFGH"),
    "a bearer token in quotes": ('Bearer "abcdEFGH12345"', "abcdEFGH"),
    "a header as a pair": ("('authorization', 'hunter2')", "hunter2"),
    "a header as a pair of bytes": ("(b'x-api-key', b'hunter2')", "hunter2"),
    "a header of a gateway": ('[["x-goog-api-key", "hunter2"]]', "hunter2"),
    "a German password": ("Passwort: hunter2", "hunter2"),
    "a Russian password": ("\u043f\u0430\u0440\u043e\u043b\u044c: hunter2", "hunter2"),
    "a password without a colon": ("password hunter2", "hunter2"),
    "a password in brackets": ("password (hunter2)", "hunter2"),
    "a password in XML": ("<db:password>hunter2</db:password>", "hunter2"),
    "a password in YAML": ("password: |\n  hunter2", "hunter2"),
    "a password on a command line": ("mysql --password hunter", "hunter"),
    "a user and a password on a command line": ("curl -u ada:hunter2 -v", "hunter2"),
    "a password with a comma": ("password=hunt,er2", "er2"),
    "a password with a semicolon": ("password=hunt;er2", "er2"),
    "a password with a quote": (r"password: 'it\'s hunter2'", "hunter2"),
    "a password whose quote was cut off": ('password: "correct horse battery', "horse"),
    "a setting called pass": ("pass=hunter2", "hunter2"),
    "a variable called pass": ("DB_PASS=hunter2", "hunter2"),
    "a variable called pass in YAML": ("db_pass: hunter2", "hunter2"),
    "an option called pass": ("--pass=hunter2", "hunter2"),
    "a field called pass": ('{"pass": "hunter2"}', "hunter2"),
    "a session": ("sid=hunter2&x=1", "hunter2"),
    "a session in JSON": ('{"session": "hunter2"}', "hunter2"),
    "a user and a password without a scheme": ("app:hun!ter2@db", "hun!ter2"),
    "a user and a password at a number": ("app:hunter2@10.0.0.7:5432", "hunter2"),
    "a digest behind a word for keys": ("api key 0123456789abcdef0123456789abcdef", "012345678"),
    "a token in a sentence": ("my token is hunter2abc", "hunter2"),
    "a pin in JSON": ('{"pin": 4931}', "4931"),
    "a long random word with one digit": ("dGhpcyBpcyBhIHNlYRJldCBrZXkgYWJjZGVmXYZ1", "dGhpcyBp"),
    "a long random word": ("dGhpcyBpcyBhIHNlY3JldCBrZXkgMTIzNDU2Nzg5MA", "dGhpcyBp"),
}

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
