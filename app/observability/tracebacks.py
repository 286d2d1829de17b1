"""Tracebacks as log lines show them.

The messages of our own errors are made to be shown. Those of others could hold anything: a
database quotes the row it refuses, a validator the input. Their first line says what went wrong;
what follows it is left out.
"""

import traceback
from collections.abc import Iterator

from app.observability.redaction import redact_text

MAX_MESSAGE_CHARS = 300
_LONGEST_CHAIN = 8
_MOST_IN_GROUP = 5

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def told(error: BaseException) -> str:
    """Return an error with its frames and what led to it, oldest first."""
    parts: list[str] = []
    current: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if current is None:
            break
        cause, context = current.__cause__, current.__context__
        parts.append("".join(_alone(current)))
        if cause is not None:
            parts.append(_CAUSED)
        elif context is not None and not current.__suppress_context__:
            parts.append(_DURING)
        else:
            break
        current = cause or context
    return "".join(reversed(parts)).rstrip()


def message_of(error: BaseException) -> str:
    """Return what may be shown of an error's message."""
    try:
        message = str(error)
    except Exception:  # it is somebody else's code
        return "(its message cannot be read)"
    if type(error).__module__.startswith("app."):
        return message
    return redact_text(message.partition("\n")[0], max_chars=MAX_MESSAGE_CHARS)


def _alone(error: BaseException) -> Iterator[str]:
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__)
    message = message_of(error)
    name = type(error).__qualname__
    module = type(error).__module__
    shown = name if module == "builtins" else f"{module}.{name}"
    yield f"{shown}: {message}\n" if message else f"{shown}\n"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions[:_MOST_IN_GROUP]:
            yield "".join(f"  | {line}\n" for line in told(inner).splitlines())
