"""Tracebacks without what others have written into their messages."""

import pytest

from app.engine.report import StepTimeoutError
from app.observability.tracebacks import MAX_MESSAGE_CHARS, message_of, told


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_traceback_says_where_and_what() -> None:
    """Frames, class and message, as Python writes them."""
    shown = told(raised(ValueError("no number")))

    assert shown.startswith("Traceback (most recent call last):\n  File ")
    assert shown.endswith("\nValueError: no number")


@pytest.mark.req("002/19.2")
def test_only_our_own_messages_are_shown_whole() -> None:
    """Of others the first line, cut: the rest may quote what they were given."""
    assert message_of(StepTimeoutError("one\ntwo")) == "one\ntwo"
    assert message_of(ValueError("one\ntwo")) == "one"
    assert message_of(ValueError("x " * 500)).startswith("x " * 100)
    assert len(message_of(ValueError("x " * 500))) <= MAX_MESSAGE_CHARS


@pytest.mark.req("002/19.2")
def test_a_message_is_not_cut_in_the_middle_of_a_secret() -> None:
    """Half an address is an address to whoever reads it."""
    for length in range(250, 300, 3):
        error = ValueError(
            f"{'x' * length} ada.king.countess.of.lovelace@mail.example.org is taken"
        )
        assert "king" not in message_of(error)


def test_every_error_of_a_group_is_told() -> None:
    """A task group fails with all that failed in it."""
    group = ExceptionGroup("two", [raised(ValueError("one")), raised(KeyError("other"))])

    shown = told(raised(group))

    assert "  | ValueError: one" in shown
    assert "  | KeyError: 'other'" in shown


def test_what_was_being_handled_is_told_unless_it_was_put_aside() -> None:
    """``raise … from None`` means that it says nothing more."""

    def fail(*, aside: bool) -> None:
        try:
            raise KeyError("first")
        except KeyError:
            if aside:
                raise ValueError("second") from None
            raise ValueError("second")  # noqa: B904

    with pytest.raises(ValueError, match="second") as both:
        fail(aside=False)
    with pytest.raises(ValueError, match="second") as one:
        fail(aside=True)

    assert "another exception occurred" in told(both.value)
    assert "first" in told(both.value)
    assert "first" not in told(one.value)


def test_errors_that_caused_one_another_end() -> None:
    """A circle of causes is cut, and a message that cannot be made is no reason to fail."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    error = BrokenError()
    error.__cause__ = error

    assert told(error).count("its message cannot be read") == 8
