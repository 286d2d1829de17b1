"""The drawing process: ``python -m caseworker_cases.tools.plotting.worker``.

Standard input carries pickled pairs of a chart description and a size limit. The reply to each is a
line with the size of the chart in bytes and the problem, if any, followed by the chart. The process
has no keys in its environment, a memory limit and no state, so its parent can kill it at any time.
It exits when its input ends.
"""

import os
import pickle
import resource
import sys
from contextlib import suppress

from caseworker_cases.tools.plotting.composing import Picture
from caseworker_cases.tools.plotting.drawing import CapExceededError, drawn

MAX_MEMORY_BYTES = 1 << 30
"""Limit for the process's address space, in bytes. The libraries alone map about half of it."""
TOO_LARGE, NOT_DRAWN = "too_large", "not_drawn"


def draw_until_closed() -> None:
    """Draw requested charts until the input ends."""
    # Standard output is reserved for replies; what libraries print is discarded.
    with os.fdopen(os.dup(1), "wb") as replies, open(os.devnull, "wb") as silence:
        os.dup2(silence.fileno(), 1)
        # Not every system supports these limits; the size of pictures is capped anyway.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        with suppress(EOFError):
            while True:
                data, problem = _answer(*pickle.load(sys.stdin.buffer))  # noqa: S301
                replies.write(f"{len(data)} {problem}\n".encode() + data)
                replies.flush()


def _answer(picture: Picture, max_bytes: int) -> tuple[bytes, str]:
    try:
        return drawn(picture, max_bytes), ""
    except CapExceededError:
        return b"", TOO_LARGE
    except Exception:
        return b"", NOT_DRAWN


if __name__ == "__main__":
    draw_until_closed()
