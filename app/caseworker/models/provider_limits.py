"""Model rate limits, shared by all processes through the database.

The SQL function ``caseworker_take_turn`` decides which process may send its request next. It locks
the model's row only for one statement, so a waiting request holds no connection.
"""

import uuid
from typing import Any

import structlog

from caseworker.models.ports import RateLimit
from caseworker.models.turns import Allowance
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import Pool, transaction

log = structlog.get_logger(__name__)

AWAY_SECONDS = 1.0
"""Delay in seconds before a call retries if the database is unavailable."""
LONGEST_WAIT_SECONDS = 5.0
"""Maximum delay in seconds before a waiting process asks again. It limits how long the queue
position of a lost process can block the remaining ones."""

_TAKE = """
SELECT caseworker_take_turn(%(model)s, %(tenant)s, %(process)s,
    %(requests)s, %(burst_requests)s, %(rate_requests)s,
    %(tokens)s, %(burst_tokens)s, %(rate_tokens)s, %(unused)s, %(longest)s, NULL)
"""

_LEAVE = "DELETE FROM provider_turns WHERE model = %s AND tenant_id = %s AND process = %s"

_PAUSE = """
INSERT INTO provider_limits AS l (model, requests, tokens, refilled_at)
VALUES (%(model)s, 0, 0, clock_timestamp() + make_interval(secs => %(seconds)s::float8))
ON CONFLICT (model) DO UPDATE SET refilled_at = greatest(l.refilled_at, excluded.refilled_at)
"""


class PostgresProviderLimits:
    """Implements shared model rate limits in PostgreSQL."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._process = uuid.uuid4().hex

    async def take(self, limit: RateLimit, tenant: str, tokens: int, *, unused: int = 0) -> float:
        """Request a rate slot; return 0 if granted, else the seconds until the next attempt.

        ``unused`` is the number of tokens that earlier requests reserved but did not use; they
        become available again. If the database is unavailable, the result is ``AWAY_SECONDS``.
        """
        parameters = {
            **amounts_of(limit, tokens),
            "tenant": tenant,
            "process": self._process,
            "unused": float(unused),
            "longest": LONGEST_WAIT_SECONDS,
        }
        try:
            async with transaction(self._pool) as connection:
                answer = await connection.exec_driver_sql(_TAKE, parameters)
                return float(answer.scalar_one())
        except StoreUnavailableError:
            log.warning("provider_limits.unavailable", model=limit.model)
            return AWAY_SECONDS

    async def leave(self, limit: RateLimit, tenant: str) -> None:
        """Leave a model's queue. If the database is unavailable, the queue entry expires later."""
        await self._tell(limit, _LEAVE, (limit.model, tenant, self._process))

    async def pause(self, limit: RateLimit, seconds: float) -> None:
        """Block the model for all processes for ``seconds``, as the provider requested."""
        await self._tell(limit, _PAUSE, {"model": limit.model, "seconds": seconds})

    async def _tell(self, limit: RateLimit, statement: str, values: Any) -> None:
        try:
            async with transaction(self._pool) as connection:
                await connection.exec_driver_sql(statement, values)
        except StoreUnavailableError:
            log.warning("provider_limits.unavailable", model=limit.model)


def amounts_of(limit: RateLimit, tokens: int) -> dict[str, Any]:
    """Return the request and token amounts with their refill rates, as SQL function parameters."""
    requests, all_tokens = limit.requests_per_minute, limit.tokens_per_minute
    of_requests = Allowance.of(requests or 1, burst_seconds=1)
    of_tokens = Allowance.of(all_tokens or 1, burst_seconds=3)
    return {
        "model": limit.model,
        "requests": 0.0 if requests is None else 1.0,
        "burst_requests": of_requests.burst,
        "rate_requests": of_requests.per_second,
        "tokens": 0.0 if all_tokens is None else float(tokens),
        "burst_tokens": of_tokens.burst,
        "rate_tokens": of_tokens.per_second,
    }
