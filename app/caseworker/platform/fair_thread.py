"""A thread for long computations, which tenants use in turns.

Several busy threads, or one without pauses, would compete with the event loop for the GIL: other
requests would become slower by a multiple.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from caseworker.platform.fair_slots import FairSlots

PAUSE: Final = 2
"""Pause after a computation, as a multiple of the time that it took."""

MOST_CHARS_ON_LOOP: Final = 2000
"""Maximum length, in characters, of a text that is redacted on the event loop."""

T = TypeVar("T")


class FairThread:
    """Runs long computations in a thread, one at a time, with pauses; tenants take turns."""

    def __init__(self) -> None:
        self._turn = FairSlots(1)
        self._pauses_until = 0.0

    async def call(
        self,
        compute: Callable[[], T],
        size: int,
        tenant: str,
        *,
        most_on_loop: int = MOST_CHARS_ON_LOOP,
    ) -> T:
        """Return the result of ``compute`` for an input of a tenant.

        It runs in a thread if ``size`` is more than ``most_on_loop``, both in bytes, characters or
        items.
        """
        if size <= most_on_loop:
            return compute()
        clock = asyncio.get_running_loop().time
        await self._turn.acquire(tenant)
        try:
            await asyncio.sleep(self._pauses_until - clock())
            began = clock()
            try:
                return await asyncio.to_thread(compute)
            finally:
                self._pauses_until = clock() + PAUSE * (clock() - began)
        finally:
            self._turn.release(tenant)
