"""Format exceptions for display: the message on one line, or everything with the traceback.

Messages of the service's own exceptions are safe by construction and shown unchanged: redacting
them as prose could invert their meaning. Only substrings in the format of an API key are redacted.
Messages of other exceptions may quote anything, such as a row that the database rejected. Only
their first line is shown, redacted.
"""

import re
import traceback
from collections.abc import Iterator

from caseworker.platform.logs.redaction import redact_text, without_keys

MAX_MESSAGE_CHARS = 300
"""Maximum length of the message of an exception that the service does not define, in characters."""
MAX_REASON_CHARS = 500
"""Maximum length of an error text in a trace, an event or a result, in characters."""

_MAX_CHAIN = 8
_MAX_IN_GROUP = 5
_MAX_GROUPS = 8
"""Maximum depth of groups inside of groups."""
_MAX_NAME_CHARS = 100
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def is_ours(error: BaseException) -> bool:
    """Return whether the service or one of its packages defines the class of the exception."""
    return str(type(error).__module__).startswith(("caseworker.", "caseworker_"))


def is_readable(error: BaseException) -> bool:
    """Return whether an exception has a text; that of foreign ones may raise anything."""
    try:
        return len(f"{error}{error!r}") >= 0
    except BaseException:
        return False


def class_name(error: BaseException) -> str:
    """Return the name of an exception's class, shortened and without control characters."""
    name = type(error).__name__[:_MAX_NAME_CHARS]
    return "".join(char if char.isprintable() else "\ufffd" for char in name)


def message_of(error: BaseException) -> str:
    """Return the part of an exception's message that may be displayed."""
    try:
        message = str.__str__(str(error))
    except BaseException:  # foreign __str__ may raise anything
        return "(its message cannot be read)"
    if is_ours(error):
        return without_keys(message)
    line = redact_text(message.partition("\n")[0], max_chars=MAX_MESSAGE_CHARS)
    return _UNSTORABLE.sub("\ufffd", line)


def message_of_error(error: BaseException) -> str:
    """Format an exception on one line, as its message.

    The class name precedes the message if the service does not define the class. For an exception
    group, the first inner exception is included.
    """
    parts = []
    for _ in range(_MAX_GROUPS):
        message = message_of(error)
        if is_ours(error):
            parts.append(message)
            break
        parts.append(": ".join(filter(None, (class_name(error), message))))
        if not isinstance(error, BaseExceptionGroup):
            break
        error = error.exceptions[0]
    message = ": ".join(parts)
    return message if len(message) <= MAX_REASON_CHARS else f"{message[: MAX_REASON_CHARS - 1]}…"


def chain_of(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Return the cause and the context of an exception; its class may have other properties."""
    cause, context = BaseException.__dict__["__cause__"], BaseException.__dict__["__context__"]
    return cause.__get__(error), context.__get__(error)


def format_error(error: BaseException, groups: int = _MAX_GROUPS) -> str:
    """Format an exception with its traceback, preceded by its causes.

    Groups are followed to a depth of ``groups``.
    """
    parts: list[str] = []
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if current is None:
            break
        cause, context = chain_of(current)
        parts.append("".join(_lines_of(current, groups)))
        if cause is not None:
            parts.append(_CAUSED)
        elif context is not None and not current.__suppress_context__:
            parts.append(_DURING)
        else:
            break
        current = cause or context
    return "".join(reversed(parts)).rstrip()


def _lines_of(error: BaseException, groups: int) -> Iterator[str]:
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__)
    message = message_of(error)
    name = type(error).__qualname__[:_MAX_NAME_CHARS]
    module = type(error).__module__
    full_name = name if module == "builtins" else f"{module}.{name}"
    yield f"{full_name}: {message}\n" if message else f"{full_name}\n"
    if isinstance(error, BaseExceptionGroup) and groups:
        for inner in error.exceptions[:_MAX_IN_GROUP]:
            lines = format_error(inner, groups - 1).splitlines()
            yield "".join(f"  | {line}\n" for line in lines)
