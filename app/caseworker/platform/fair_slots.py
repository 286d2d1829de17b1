"""Semaphores and queues that tenants share fairly, such as for database connections.

The tenant of a task is a context variable, so that no function has to pass it on: a request sets it
once its caller is known, a run when it starts, and a background job when it is taken.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

TENANT: Final[ContextVar[str | None]] = ContextVar("tenant", default=None)
"""The tenant for which the current task works; None is the service itself."""


def share_of(size: int) -> int:
    """Return how many of ``size`` slots a single tenant may hold."""
    return max(1, size * 9 // 10)


def queue_of(size: int) -> int:
    """Return how many requests may wait for ``size`` slots in :meth:`FairSlots.acquire_within`."""
    return max(1, size // 10)


@dataclass(slots=True)
class _Tenant:
    slots_in_use: int = 0
    served: int = 0
    """Number of the last grant; 0 before the first."""
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)


class FairSlots:
    """A semaphore that shares its slots fairly between tenants. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._share = share_of(size)
        self._queue = queue_of(size)
        self._waiting = 0
        self._grants = 0
        self._tenants: dict[str | None, _Tenant] = {}

    async def acquire(self, tenant: str | None) -> None:
        """Acquire a slot for a tenant, waiting without a time limit.

        The tenant ``None`` is the service itself, which has no share limit.
        """
        queue = self._tenants.get(tenant)
        if queue is None:
            queue = self._tenants[tenant] = _Tenant()
        if (
            self._free
            and not self._waiting
            and (tenant is None or queue.slots_in_use < self._share)
        ):
            self._give(queue)
            return
        slot = asyncio.get_running_loop().create_future()
        queue.waiting.append(slot)
        self._waiting += 1
        self._grant()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.release(tenant)  # granted just before the cancel arrived
            else:
                if slot in queue.waiting:
                    queue.waiting.remove(slot)
                    self._waiting -= 1
                self._forget(tenant)
            raise

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold a slot for the current tenant (:data:`TENANT`) during the block.

        Wait for it as :meth:`acquire` does, without a time limit.
        """
        tenant = TENANT.get()
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    async def acquire_within(self, seconds: float, tenant: str) -> bool:
        """Acquire a slot for a tenant within ``seconds``; return whether it was acquired.

        Returns False immediately if the tenant holds its full share of the slots, if the queue is
        full, or if the tenant's requests fill its share of the queue.
        """
        queue = self._tenants.get(tenant) or _Tenant()
        if queue.slots_in_use >= self._share:
            return False
        if self._free and not self._waiting:
            self._give(self._tenants.setdefault(tenant, queue))
            return True
        if self._waiting >= self._queue or len(queue.waiting) >= share_of(self._queue):
            return False
        try:
            async with asyncio.timeout(seconds):
                await self.acquire(tenant)
        except TimeoutError:
            return False
        return True

    def release(self, tenant: str | None) -> None:
        """Release a slot that ``tenant`` holds."""
        self._tenants[tenant].slots_in_use -= 1
        self._free += 1
        self._forget(tenant)
        self._grant()

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return not self._free

    def _grant(self) -> None:
        """Grant free slots to waiting tenants that are below their share."""
        while self._free and self._waiting:
            for each in self._tenants.values():
                # Skip cancelled requests here: their tasks have not run their cleanup yet.
                while each.waiting and each.waiting[0].cancelled():
                    del each.waiting[0]
                    self._waiting -= 1
            able = [
                each
                for name, each in self._tenants.items()
                if each.waiting and (name is None or each.slots_in_use < self._share)
            ]
            if not able:
                return
            next_tenant = min(able, key=lambda each: (each.slots_in_use, each.served))
            self._waiting -= 1
            self._give(next_tenant)
            next_tenant.waiting.pop(0).set_result(None)

    def _give(self, tenant: _Tenant) -> None:
        self._free -= 1
        self._grants += 1
        tenant.slots_in_use += 1
        tenant.served = self._grants

    def _forget(self, tenant: str | None) -> None:
        queue = self._tenants.get(tenant)
        if queue is not None and not (queue.slots_in_use or queue.waiting):
            del self._tenants[tenant]


class FairQueue(Generic[Item]):
    """A queue in which tenants take turns; the items of a tenant keep their order."""

    def __init__(self) -> None:
        self.tenants: dict[str | None, dict[Item, None]] = {}
        """The items of each tenant that has any, the tenant whose turn is next first."""

    def append(self, item: Item, tenant: str | None) -> None:
        """Add an item at the end of a tenant's queue."""
        self.tenants.setdefault(tenant, {})[item] = None

    def remove(self, item: Item, tenant: str | None) -> None:
        """Remove an item of a tenant; the other tenants take their turns before its next one."""
        items = self.tenants.pop(tenant)
        del items[item]
        if items:
            self.tenants[tenant] = items

    def pop(self, tenant: str | None) -> Item:
        """Remove and return the first item of a tenant that has one; see :meth:`remove`."""
        item = next(iter(self.tenants[tenant]))
        self.remove(item, tenant)
        return item

    def __iter__(self) -> Iterator[tuple[str | None, Item]]:
        """Iterate over the first item of each tenant, then over the second ones, and so on."""
        for turn in zip_longest(*self.tenants.values()):
            for tenant, item in zip(self.tenants, turn, strict=True):
                if item is not None:
                    yield tenant, item
