"""Pictures for coroutines: bounded in time, and ended when nobody waits for them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.tools.plotting.picture import Format, Kind, Picture, Series
from app.tools.plotting.process import DrawingProcess, ProcessEndedError, Ticket

TIMEOUT_SECONDS = 15.0
IDLE_SECONDS = 120.0
"""How long the process waits for another picture: it keeps about 95 MB."""
_WARM_UP_BYTES = 1_000_000


class NotRenderedError(Exception):
    """There is no picture; ``code`` says why."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
        """``too_large``, ``timeout`` or ``not_drawn``."""


class Renderer:
    """Draws one picture at a time, in a process that is started for the first one.

    Close it, or the process ends when it has been idle for a while.
    """

    def __init__(
        self, *, timeout_seconds: float = TIMEOUT_SECONDS, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Prepare; a picture may take ``timeout_seconds``, waiting for others included."""
        self._timeout = timeout_seconds
        self._process = DrawingProcess(idle_seconds=idle_seconds)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plots")

    @property
    def pid(self) -> int | None:
        """The process id of the process that draws, if there is one."""
        return self._process.pid

    async def render(self, picture: Picture, max_bytes: int) -> bytes:
        """Return the picture as a file of at most ``max_bytes``.

        A picture that takes too long, or whose caller is cancelled, takes its process along; the
        next one gets a new one.

        Raises:
            NotRenderedError: it is too large, took too long or could not be drawn.
        """
        ticket = Ticket()
        request = {"picture": picture.to_json().decode(), "max_bytes": max_bytes}
        try:
            job = self._thread.submit(self._process.ask, request, ticket)
            async with asyncio.timeout(self._timeout):
                header, data = await asyncio.wrap_future(job)
        except TimeoutError as error:
            raise NotRenderedError(
                "Drawing took too long: ask for less.", code="timeout"
            ) from error
        except (ProcessEndedError, OSError, RuntimeError) as error:
            raise NotRenderedError("The picture could not be drawn.", code="not_drawn") from error
        finally:
            self._process.give_up(ticket)  # does nothing to an ask that was answered
        _check(header, max_bytes)
        return data

    async def warm_up(self) -> None:
        """Start the process and draw something now, so that the first picture comes fast."""
        days = tuple(range(730_000, 730_010))
        picture = Picture(
            kind=Kind.LINE,
            format=Format.PNG,
            title="",
            subtitle="",
            unit="",
            caption="",
            days=days,
            series=(Series("", tuple(float(day) for day in days)),),
        )
        await self.render(picture, _WARM_UP_BYTES)

    def close(self) -> None:
        """End the process; whoever still waits gets a NotRenderedError."""
        self._process.close()
        self._thread.shutdown(wait=False)


def _check(header: dict[str, Any], max_bytes: int) -> None:
    match header.get("problem"):
        case None:
            return
        case "too_large":
            message = f"The picture would be larger than the {max_bytes:,} bytes allowed."
            raise NotRenderedError(message, code="too_large")
        case _:
            raise NotRenderedError("The picture could not be drawn.", code="not_drawn")
