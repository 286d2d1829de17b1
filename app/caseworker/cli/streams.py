"""Standard output and standard error of the command line.

Neither an encoding nor a full disk or a closed pipe may end a command in a traceback. Characters
that the output cannot encode are replaced. If standard output cannot be written, the command exits
with ``UNWRITABLE`` and one line that gives the reason, or silently with ``CLOSED_PIPE`` if its
reader has closed it.
"""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Final

from caseworker.platform.printable import printable

UNWRITABLE: Final = 2
"""Exit code if standard output cannot be written."""
CLOSED_PIPE: Final = 141
"""Exit code if the reader of standard output has closed it: 128 plus the number of SIGPIPE."""


class OutputError(OSError):
    """Standard output cannot be written; ``__cause__`` is the error of the system."""


class CheckedOutput(io.TextIOWrapper):
    """Standard output, whose failed writes raise :class:`OutputError`."""

    def write(self, text: str) -> int:
        """Write a text; return its number of characters.

        Raises:
            OutputError: the stream cannot be written.
        """
        try:
            return super().write(text)
        except OSError as error:
            raise OutputError(str(error)) from error

    def flush(self) -> None:
        """Write the buffered text.

        Raises:
            OutputError: the stream cannot be written.
        """
        try:
            super().flush()
        except OSError as error:
            raise OutputError(str(error)) from error


def check_output() -> None:
    """Replace standard output by a :class:`CheckedOutput`, and open streams that are closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    before = sys.stdout
    # Writes to a closed standard output fail, as they do to a file that is only readable.
    buffer = os.fdopen(os.open(os.devnull, os.O_RDONLY), "wb") if before is None else before.buffer
    encoding = "utf-8" if before is None else before.encoding
    sys.stdout = CheckedOutput(
        buffer,
        encoding=encoding,
        errors="replace",
        line_buffering=before is not None and bool(before.line_buffering),
    )


def note(text: str) -> None:
    """Print a text to standard error, without control characters; ignore that it is unwritable."""
    with suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()


def output_failed(error: OutputError) -> int:
    """Explain that standard output cannot be written, and return the exit code."""
    with suppress(OSError, ValueError):  # else the interpreter would try again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number == errno.EPIPE:
        return CLOSED_PIPE
    note(f"Standard output cannot be written: {os.strerror(number) if number else error}.")
    return UNWRITABLE
