"""The drawing process: ``python -m caseworker_cases.tools.plotting.worker IDLE_SECONDS``.

It reads chart descriptions from standard input, one JSON line each. The reply to each is a JSON
line with the size of the chart in bytes, followed by the chart. On failure the line names the
problem instead. The process has no keys in its environment, a memory limit and no state, so its
parent can kill it at any time. It exits when its input ends. It also exits after the idle timeout,
so that an idle service does not pay for it.
"""

import json
import os
import resource
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from caseworker_cases.tools.plotting.drawing import CapExceededError, drawn
from caseworker_cases.tools.plotting.picture import Picture

MAX_MEMORY_BYTES = 1 << 30
"""Limit for the process's address space, in bytes. The libraries alone map about half of it."""


def main(idle_seconds: float) -> None:
    """Draw requested charts until the input ends or the idle timeout expires."""
    replies = _replies()
    _limit_memory()
    with open(0, "rb", buffering=0) as asked:  # unbuffered, so that select sees every line
        while _ready(asked, idle_seconds) and (line := _line(asked)):
            header, data = _answer(json.loads(line))
            replies.write(json.dumps(header).encode() + b"\n" + data)
            replies.flush()


def _answer(request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the reply's header and the chart; on failure the header names the problem."""
    try:
        data = drawn(Picture.read(request["picture"]), request["max_bytes"])
    except CapExceededError:
        return {"problem": "too_large"}, b""
    except MemoryError:
        return {"problem": "out_of_memory"}, b""
    except Exception as error:
        return {"problem": "not_drawn", "error_class": type(error).__name__}, b""
    return {"size_bytes": len(data)}, data


def _replies() -> BinaryIO:
    """Reserve standard output for replies; redirect what libraries print to the null device."""
    replies = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.close(silence)
    return replies


def _limit_memory() -> None:
    # Not every system supports these limits; the size of pictures is capped anyway.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def _ready(asked: BinaryIO, seconds: float) -> bool:
    return bool(select.select([asked], [], [], seconds)[0])


def _line(asked: BinaryIO) -> bytes:
    """Read one line; the parent sends the next one only after the reply."""
    read = bytearray()
    while not read.endswith(b"\n"):
        part = asked.read(1 << 16)
        if not part:
            return b""
        read += part
    return bytes(read)


if __name__ == "__main__":
    main(float(sys.argv[1]))
