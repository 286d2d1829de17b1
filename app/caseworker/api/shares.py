"""Request and event stream slots of a process, shared fairly between tenants."""

from functools import partial
from typing import Final

from starlette.types import Scope

from caseworker.api.problem_types import ProblemType
from caseworker.api.problems import ProblemError
from caseworker.platform.fair_slots import FairSlots

RELEASES: Final = "caseworker.releases"
"""ASGI scope key of a list of callbacks. They are called when the request ends, to release its
slots."""
WAIT_SECONDS = 2.0
"""Seconds that a request waits for a slot before it is rejected."""


class Shares:
    """A pool of slots of one kind. A single tenant may hold at most nine tenths of them."""

    def __init__(self, size: int, refusal: ProblemType) -> None:
        """Create ``size`` slots; requests without a slot are rejected with ``refusal``."""
        self._slots = FairSlots(size)
        self._refusal = refusal

    async def enter(self, tenant: str, scope: Scope) -> None:
        """Acquire a slot until the request ends, waiting up to ``WAIT_SECONDS`` for one.

        Raises:
            ProblemError: no slot became free, or the tenant holds its full share.
        """
        if not await self._slots.acquire_within(WAIT_SECONDS, tenant):
            raise ProblemError(self._refusal)
        scope[RELEASES].append(partial(self._slots.release, tenant))
