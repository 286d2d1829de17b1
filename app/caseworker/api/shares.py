"""Connections and event streams of a process, which its tenants share."""

from functools import partial
from typing import Final

from starlette.types import Scope

from caseworker.api.problem_types import ProblemType
from caseworker.api.problems import ProblemError
from caseworker.engine.fair_slots import FairSlots

RELEASES: Final = "caseworker.releases"
"""In the scope of a request: what is called when it is answered."""
WAIT_SECONDS = 2.0
"""How long a request waits for a slot; then it is refused."""


class Shares:
    """Slots of one kind; one tenant may hold nine tenths of them."""

    def __init__(self, size: int, refusal: ProblemType) -> None:
        """Answer with ``refusal`` where there is no slot."""
        self._slots = FairSlots(size)
        self._refusal = refusal

    async def enter(self, tenant: str, scope: Scope) -> None:
        """Take a slot until a request is answered; if all are held, wait for one for a moment.

        Raises:
            ProblemError: there is none, or the tenant holds its share.
        """
        if not await self._slots.acquire_within(WAIT_SECONDS, tenant):
            raise ProblemError(self._refusal)
        scope[RELEASES].append(partial(self._slots.release, tenant))
