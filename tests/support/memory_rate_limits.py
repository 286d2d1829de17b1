"""Shared model limits without a database: one rate slot per interval, on the loop's clock."""

import asyncio

from caseworker.models.ports import RateLimit


class MemoryRateLimits:
    """Grants a free slot to the first caller and records the calls."""

    def __init__(self, *, every_seconds: float = 1.0) -> None:
        self.every_seconds = every_seconds
        self.free_at = 0.0
        self.asked: list[tuple[str, int, int]] = []
        """Tenant, tokens and unused tokens of every request."""
        self.left: list[str] = []
        """Tenants that left the queue."""
        self.paused: list[float] = []

    async def take(self, limit: RateLimit, tenant: str, tokens: int, *, unused: int = 0) -> float:
        """Grant the slot if it is free."""
        self.asked.append((tenant, tokens, unused))
        await asyncio.sleep(0.001)
        now = asyncio.get_running_loop().time()
        if (wait := self.free_at - now) > 1e-9:
            return wait
        self.free_at = now + self.every_seconds
        return 0.0

    async def leave(self, limit: RateLimit, tenant: str) -> None:
        """Record the departure."""
        self.left.append(tenant)

    async def pause(self, limit: RateLimit, seconds: float) -> None:
        """Grant no slot for ``seconds``."""
        self.paused.append(seconds)
        self.free_at = max(self.free_at, asyncio.get_running_loop().time() + seconds)
