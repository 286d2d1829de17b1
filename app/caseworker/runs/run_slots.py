"""A process's slots for executing runs, and each tenant's share of these slots."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

from caseworker.engine.supervision import set_within
from caseworker.platform.fair_slots import share_of
from caseworker.runs.run import RunKey


class RunSlots:
    """Counts the slots held by runs that this process executes or is about to claim."""

    def __init__(self, size: int, active: Collection[RunKey]) -> None:
        """Manage ``size`` slots; ``active`` is a live view of the runs that are being executed."""
        self._size = size
        self._share = share_of(size)
        self._active = active
        self._reserved: list[str | None] = []
        self._freed = asyncio.Event()
        self._served: str | None = None

    @property
    def free(self) -> int:
        """Number of runs that can still be started now."""
        return self._size - len(self._active) - len(self._reserved)

    @property
    def reserved(self) -> int:
        """Number of slots that are reserved for runs about to be claimed."""
        return len(self._reserved)

    @property
    def full_tenants(self) -> Sequence[str]:
        """Tenants that already hold their full share of the slots."""
        if len(self._active) + len(self._reserved) < self._share:
            return ()
        held = Counter(key.tenant for key in self._active)
        held.update(tenant for tenant in self._reserved if tenant is not None)
        return [tenant for tenant, count in held.items() if count >= self._share]

    @property
    def served_last(self) -> Sequence[str]:
        """If there is only one slot, the tenant that had it last; otherwise empty."""
        return () if self._size > 1 or self._served is None else (self._served,)

    def served(self, tenant: str) -> None:
        """Record that a run of this tenant was started."""
        self._served = tenant

    def reserve(self, tenant: str | None) -> bool:
        """Reserve a slot; return False if none is free or the tenant holds its full share.

        ``tenant`` is None if the run to be claimed may belong to any tenant.
        """
        if self.free <= 0 or tenant in self.full_tenants:
            return False
        self._reserved.append(tenant)
        return True

    def unreserve(self, tenant: str | None) -> None:
        """Release a slot that :meth:`reserve` reserved."""
        self._reserved.remove(tenant)
        self._freed.set()

    def freed(self) -> None:
        """Wake all tasks that wait for a slot to be released."""
        self._freed.set()

    async def change(self) -> None:
        """Wait until a slot is released."""
        self._freed.clear()
        await self._freed.wait()

    async def change_within(self, seconds: float) -> None:
        """Wait until a slot is released, for at most ``seconds``."""
        self._freed.clear()
        await set_within(self._freed, seconds)
