"""What may be shown of an error: its message in one line, or all of it with its traceback.

The messages of our own errors are made of safe parts, to be shown as they are: redacting them as
prose could turn what they say into its opposite. Only what has the form of a key is taken out of
them. Those of others may quote anything, such as the row that a database refused: of them the first
line is shown, redacted.
"""

import traceback
from collections.abc import Iterator

from caseworker.observability.redaction import redact_text, without_keys

MAX_MESSAGE_CHARS = 300
"""Of the message of an error that is not ours."""
MAX_REASON_CHARS = 500
"""Of an error in a trace, an event or a result."""

_MAX_CHAIN = 8
_MAX_IN_GROUP = 5

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def is_ours(error: BaseException) -> bool:
    """Return whether an error is one of the service's own."""
    return type(error).__module__.startswith("caseworker.")


def message_of(error: BaseException) -> str:
    """Return what may be shown of the message of an error."""
    try:
        message = str(error)
    except Exception:  # it is code of others
        return "(its message cannot be read)"
    if is_ours(error):
        return without_keys(message)
    return redact_text(message.partition("\n")[0], max_chars=MAX_MESSAGE_CHARS)


def message_of_error(error: BaseException) -> str:
    """Return a failure in one line: its message, behind the name of a class that is not ours.

    Of a group of errors the first one is named too.
    """
    message = message_of(error)
    if not is_ours(error):
        name = type(error).__name__
        message = f"{name}: {message}" if message else name
        if isinstance(error, BaseExceptionGroup):
            message = f"{message}: {message_of_error(error.exceptions[0])}"
    return message if len(message) <= MAX_REASON_CHARS else f"{message[: MAX_REASON_CHARS - 1]}…"


def format_error(error: BaseException) -> str:
    """Return an error with its traceback, after the errors that led to it."""
    parts: list[str] = []
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if current is None:
            break
        cause, context = current.__cause__, current.__context__
        parts.append("".join(_lines_of(current)))
        if cause is not None:
            parts.append(_CAUSED)
        elif context is not None and not current.__suppress_context__:
            parts.append(_DURING)
        else:
            break
        current = cause or context
    return "".join(reversed(parts)).rstrip()


def _lines_of(error: BaseException) -> Iterator[str]:
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__)
    message = message_of(error)
    name = type(error).__qualname__
    module = type(error).__module__
    shown = name if module == "builtins" else f"{module}.{name}"
    yield f"{shown}: {message}\n" if message else f"{shown}\n"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions[:_MAX_IN_GROUP]:
            yield "".join(f"  | {line}\n" for line in format_error(inner).splitlines())
