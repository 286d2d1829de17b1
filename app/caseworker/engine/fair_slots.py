"""Slots that several tenants share, such as connections of the database and of the API.

A tenant holds at most nine tenths of the slots, rounded down and at least one. A freed slot goes to
the waiting tenant that holds the fewest; among equals to the one that was served longest ago, so
tenants alternate where there is a single slot. Requests of one tenant are served in order.
"""

import asyncio
from dataclasses import dataclass, field


def share_of(size: int) -> int:
    """Return the number of slots that one tenant may hold of ``size``."""
    return max(1, size * 9 // 10)


def queue_of(size: int) -> int:
    """Return how many requests may wait for ``size`` slots where the queue is bounded."""
    return max(1, size // 10)


@dataclass(slots=True)
class _Tenant:
    held: int = 0
    served: int = 0
    """Number of the last grant; 0 before the first."""
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)


class FairSlots:
    """A semaphore that knows which tenant holds how many slots."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._share = share_of(size)
        self._queue = queue_of(size)
        self._waiting = 0
        self._grants = 0
        self._tenants: dict[str | None, _Tenant] = {}

    async def acquire(self, tenant: str | None) -> None:
        """Take a slot, waiting if there is none; None is the service itself, without a share."""
        own = self._tenants.setdefault(tenant, _Tenant())
        slot = asyncio.get_running_loop().create_future()
        own.waiting.append(slot)
        self._waiting += 1
        self._grant()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.release(tenant)
            else:
                if slot in own.waiting:
                    own.waiting.remove(slot)
                    self._waiting -= 1
                self._forget(tenant)
            raise

    async def acquire_within(self, seconds: float, tenant: str) -> bool:
        """Take a slot, waiting for a time at most; False if there is none by then.

        It is False at once if the tenant holds its share, or if the queue or the tenant's share of
        the queue is full.
        """
        own = self._tenants.get(tenant) or _Tenant()
        if own.held >= self._share:
            return False
        if self._free and not self._waiting:
            self._give(self._tenants.setdefault(tenant, own))
            return True
        if self._waiting >= self._queue or len(own.waiting) >= share_of(self._queue):
            return False
        try:
            async with asyncio.timeout(seconds):
                await self.acquire(tenant)
        except TimeoutError:
            return False
        return True

    def release(self, tenant: str | None) -> None:
        """Give a slot back."""
        self._tenants[tenant].held -= 1
        self._free += 1
        self._forget(tenant)
        self._grant()

    def _grant(self) -> None:
        """Give free slots to tenants that wait and may hold one more."""
        while self._free and self._waiting:
            for each in self._tenants.values():
                while each.waiting and each.waiting[0].cancelled():  # its request runs later
                    del each.waiting[0]
                    self._waiting -= 1
            able = [
                each
                for name, each in self._tenants.items()
                if each.waiting and (name is None or each.held < self._share)
            ]
            if not able:
                return
            chosen = min(able, key=lambda each: (each.held, each.served))
            self._waiting -= 1
            self._give(chosen)
            chosen.waiting.pop(0).set_result(None)

    def _give(self, tenant: _Tenant) -> None:
        self._free -= 1
        self._grants += 1
        tenant.held += 1
        tenant.served = self._grants

    def _forget(self, tenant: str | None) -> None:
        own = self._tenants.get(tenant)
        if own is not None and not (own.held or own.waiting):
            del self._tenants[tenant]
