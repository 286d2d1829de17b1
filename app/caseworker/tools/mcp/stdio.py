"""MCP over the pipes of a child process, with limits on its output.

The SDK's own transport buffers lines of any length, so this module replaces it. The child leads its
own process group. It is stopped as the protocol specifies: its stdin is closed, then the group gets
SIGTERM, then SIGKILL. If this process is killed, the kernel closes the child's stdin, which signals
the child to exit.
"""

import asyncio
import os
import re
import signal
import time
from asyncio.subprocess import PIPE, Process
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.client.stdio import get_default_environment
from mcp.shared._context_streams import ContextSendStream, create_context_streams
from mcp.shared.message import SessionMessage
from mcp.types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from caseworker.tools.mcp.config import ServerConfig
from caseworker.tools.mcp.delivery import DELIVERY, DeliveryState
from caseworker.tools.mcp.lone_surrogates import replaced

TOO_LARGE_CODE: Final = -32090
"""JSON-RPC error code for a response that exceeds the size limit."""

STOP_SECONDS: Final = 1.0
"""Time in seconds that a child has to exit after its stdin was closed, and again after SIGTERM."""
MAX_SKIPPED_BYTES: Final = 64 << 20
"""Maximum number of bytes to skip in a line that is too long. A child that writes more is
stopped."""
MAX_UNASKED: Final = 5000
"""Maximum number of unsolicited messages (all except responses) in ``WINDOW_SECONDS``. A child that
sends more is stopped."""
WINDOW_SECONDS: Final = 10.0
_CHUNK_BYTES: Final = 64 * 1024
_QUEUED: Final = 64
_ENDS_BYTES: Final = 512
_STDERR_BYTES: Final = 2000
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\b')
_ID_LAST = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], ContextSendStream[SessionMessage]
]


class FloodError(Exception):
    """A child process wrote more than the limits allow."""


class Lines:
    """Splits a stream into messages, and drops a byte order mark at the beginning of a line.

    Only the start and the end of an overlong line are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._line = bytearray()
        self._skipped = 0
        self._unasked, self._since = 0, time.monotonic()

    def feed(self, chunk: bytes) -> Iterator[SessionMessage]:
        """Yield the messages that a chunk completes; skip lines that are not messages.

        Raises:
            FloodError: the child exceeded a limit.
        """
        *ends, rest = chunk.split(b"\n")
        for part in ends:
            self._add(part)
            message = self._message()
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                yield SessionMessage(message)
                continue
            self._count()
            if message is not None:
                yield SessionMessage(message)
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._line += part
        excess = len(self._line) - 2 * _ENDS_BYTES
        if len(self._line) > self._max or (self._skipped and excess > 0):
            self._skipped += excess
            if self._skipped > MAX_SKIPPED_BYTES:
                raise FloodError("a line without an end")
            del self._line[_ENDS_BYTES : _ENDS_BYTES + excess]

    def _message(self) -> JSONRPCMessage | None:
        line, skipped = bytes(self._line).removeprefix(BOM_UTF8), self._skipped
        self._line.clear()
        self._skipped = 0
        error = ErrorData(code=TOO_LARGE_CODE, message="The answer is too large.")
        if not skipped:
            try:
                return jsonrpc_message_adapter.validate_json(replaced(line), by_name=False)
            except ValueError:
                error = ErrorData(code=PARSE_ERROR, message="The answer cannot be read.")
        match = _ID_FIRST.match(line) or _ID_LAST.search(line)
        return match and JSONRPCError(jsonrpc="2.0", id=int(match.group(1)), error=error)

    def _count(self) -> None:
        now = time.monotonic()
        if now - self._since > WINDOW_SECONDS:
            self._unasked, self._since = 0, now
        self._unasked += 1
        if self._unasked > MAX_UNASKED:
            raise FloodError("messages that answer nothing")


class _Child:
    """The pipes of an MCP server process, with a task for each of them."""

    def __init__(
        self, process: Process, config: ServerConfig, note_end: Callable[[str], None]
    ) -> None:
        self._stdin = cast("asyncio.StreamWriter", process.stdin)
        self._stdout = cast("asyncio.StreamReader", process.stdout)
        self._stderr = cast("asyncio.StreamReader", process.stderr)
        self._process = process
        self._lines = Lines(config.max_message_bytes)
        self._note_end = note_end
        self._tail = bytearray()
        """The end of the output of its stderr."""
        self._incoming, self._read_stream = anyio.create_memory_object_stream[
            SessionMessage | Exception
        ](0)
        self._write_stream, self._outgoing = create_context_streams[SessionMessage](_QUEUED)
        self.streams: Streams = self._read_stream, self._write_stream
        pumps = (self._keep_complaints, self._read, self._write)
        self._pumps = [asyncio.create_task(pump()) for pump in pumps]

    async def close(self) -> None:
        """Stop the process and its process group."""
        try:
            self._stdin.close()
            await _end(self._process)
        finally:
            _signal_group(self._process, signal.SIGKILL)
            for pump in self._pumps:
                pump.cancel()
            await asyncio.wait(self._pumps)
            # Grandchildren may hold the pipes open, and asyncio has no public way to close our
            # ends.
            self._process._transport.close()  # type: ignore[attr-defined]
            for stream in (self._incoming, *self.streams, self._outgoing):
                stream.close()

    async def _read(self) -> None:
        reason = ""
        try:
            while chunk := await self._stdout.read(_CHUNK_BYTES):
                for message in self._lines.feed(chunk):
                    await self._incoming.send(message)
                await asyncio.sleep(0)
        except FloodError as flood:
            reason = f"It flooded: {flood}. "
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass
        finally:
            self._incoming.close()
            output = bytes(self._tail).decode(errors="replace")
            if len(self._tail) == _STDERR_BYTES:  # its first word is cut: a mask may not find it
                output = output.lstrip().partition(" ")[2] or output.partition("\n")[2]
            self._note_end(reason + output.strip())

    async def _write(self) -> None:
        delivery = DeliveryState()
        try:
            async for message in self._outgoing:
                context = self._outgoing.last_context
                delivery = (context and context.get(DELIVERY)) or DeliveryState()
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                delivery.may_have_executed = True
                self._stdin.write(text.encode() + b"\n")
                await self._stdin.drain()
        except anyio.ClosedResourceError:
            pass
        except OSError:  # the child closed its stdin, so it has not read the end of this line
            delivery.may_have_executed = False
            self._note_end("It closed its input.")
            self._incoming.close()

    async def _keep_complaints(self) -> None:
        while chunk := await self._stderr.read(_CHUNK_BYTES):
            self._tail.extend(chunk)
            del self._tail[: max(0, len(self._tail) - _STDERR_BYTES)]


@asynccontextmanager
async def stdio_transport(
    config: ServerConfig, ended: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Launch an MCP server process and yield its message streams.

    ``ended`` is called with the reason once the process closes its output.

    Raises:
        OSError: the program cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *config.command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**get_default_environment(), **config.env},
        start_new_session=True,
    )
    child = _Child(process, config, ended)
    try:
        yield child.streams
    finally:
        await child.close()


async def _end(process: Process) -> None:
    if not await _exits(process):
        _signal_group(process, signal.SIGTERM)
        if not await _exits(process):
            _signal_group(process, signal.SIGKILL)
            await _exits(process)


async def _exits(process: Process) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    return process.returncode is not None


def _signal_group(process: Process, number: signal.Signals) -> None:
    """Signal the process group of a child, even if the child itself has exited."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
