"""How much of an error may be shown."""

import pytest

from caseworker.platform.logs.errors import MAX_REASON_CHARS, message_of_error
from caseworker.platform.logs.redaction import redact_value


class OurError(Exception):
    """An error of the service."""

    __module__ = "caseworker.nodes.test"


@pytest.mark.parametrize(
    "message",
    [
        "No function 'shout' is registered here.",
        "The call 030 1234567 of step 'phone' is unknown.",
        "The step session=3 expects password: none.",
    ],
)
def test_our_own_messages_are_not_redacted_as_prose(message: str) -> None:
    """The messages consist of safe parts and say how to fix the problem."""
    assert message_of_error(OurError(message)) == message


def test_a_key_is_taken_out_of_our_own_messages_too() -> None:
    """A caller may have used a key as a name."""
    assert message_of_error(OurError("step sk-proj-abcdefghijklmnop123456")) == "step [secret]"


def test_errors_of_others_are_told_in_their_words_behind_their_class() -> None:
    """The class and the redacted first line are shown; for a group, those of its first error."""
    group = ExceptionGroup("two of them", [RuntimeError("kaput"), KeyError("x")])

    assert message_of_error(RuntimeError("kaput\nand more")) == "RuntimeError: kaput"
    assert message_of_error(RuntimeError("no alice@example.org")) == "RuntimeError: no [email]"
    assert message_of_error(RuntimeError()) == "RuntimeError"
    assert message_of_error(group).endswith("(2 sub-exceptions): RuntimeError: kaput")
    assert len(message_of_error(OurError("x" * 5_000))) == MAX_REASON_CHARS


@pytest.mark.parametrize(
    "name", ["pass", "db_pass", "pw", "sid", "session", "sessionId", "PHPSESSID", "session_id"]
)
def test_fields_that_hold_a_session_or_a_password_are_not_shown(name: str) -> None:
    """Fields with a session or a password are hidden, however short their names are."""
    assert redact_value({name: "abc"}) == {name: "[secret]"}
