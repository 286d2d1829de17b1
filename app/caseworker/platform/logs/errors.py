"""Format exceptions for display: the message on one line, or everything with the traceback.

Messages of the service's own exceptions are safe by construction and shown unchanged: redacting
them as prose could invert their meaning. Only substrings in the format of an API key are redacted.
Messages of other exceptions may quote anything, such as a row that the database rejected. Only
their first line is shown, redacted.
"""

import traceback
from collections.abc import Iterator

from caseworker.platform.logs.redaction import redact_text, without_keys

MAX_MESSAGE_CHARS = 300
"""Maximum length of the message of an exception that the service does not define, in characters."""
MAX_REASON_CHARS = 500
"""Maximum length of an error text in a trace, an event or a result, in characters."""

_MAX_CHAIN = 8
_MAX_IN_GROUP = 5

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def is_ours(error: BaseException) -> bool:
    """Return whether the service or ``caseworker_cases`` defines the class of the exception."""
    return type(error).__module__.startswith(("caseworker.", "caseworker_cases."))


def message_of(error: BaseException) -> str:
    """Return the part of an exception's message that may be displayed."""
    try:
        message = str(error)
    except Exception:  # foreign __str__ may raise
        return "(its message cannot be read)"
    if is_ours(error):
        return without_keys(message)
    return redact_text(message.partition("\n")[0], max_chars=MAX_MESSAGE_CHARS)


def message_of_error(error: BaseException) -> str:
    """Format an exception on one line, as its message.

    The class name precedes the message if the service does not define the class. For an exception
    group, the first inner exception is included.
    """
    message = message_of(error)
    if not is_ours(error):
        name = type(error).__name__
        message = f"{name}: {message}" if message else name
        if isinstance(error, BaseExceptionGroup):
            message = f"{message}: {message_of_error(error.exceptions[0])}"
    return message if len(message) <= MAX_REASON_CHARS else f"{message[: MAX_REASON_CHARS - 1]}…"


def format_error(error: BaseException) -> str:
    """Format an exception with its traceback, preceded by its causes."""
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
