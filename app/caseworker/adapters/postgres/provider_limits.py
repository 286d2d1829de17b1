"""How often models were asked by all processes, and whose turn is next.

``caseworker_take_turn`` decides, under a lock of the model's row that ends with the statement: no
connection is held while anybody waits.
"""

import uuid
from typing import Any

import structlog

from caseworker.adapters.postgres.engines import Pool, transaction
from caseworker.llm.ports import RateLimit
from caseworker.llm.turns import Allowance
from caseworker.observability.store_errors import StoreUnavailableError

log = structlog.get_logger(__name__)

AWAY_SECONDS = 1.0
"""How long a call waits before it asks again a database that was away."""
LONGEST_WAIT_SECONDS = 5.0
"""A line asks again after so long at the latest: by then it knows of lines that are gone."""

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
    """Implements the shared limits of models."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._process = uuid.uuid4().hex

    async def take(self, limit: RateLimit, tenant: str, tokens: int, *, unused: int = 0) -> float:
        """Take a turn, or return the seconds until it is worth asking again."""
        asked = {
            **amounts_of(limit, tokens),
            "tenant": tenant,
            "process": self._process,
            "unused": float(unused),
            "longest": LONGEST_WAIT_SECONDS,
        }
        try:
            async with transaction(self._pool) as connection:
                answer = await connection.exec_driver_sql(_TAKE, asked)
                return float(answer.scalar_one())
        except StoreUnavailableError:
            log.warning("provider_limits.unavailable", model=limit.model)
            return AWAY_SECONDS

    async def leave(self, limit: RateLimit, tenant: str) -> None:
        """Give up the place of this process; one that cannot be given up is late, and passed by."""
        await self._tell(limit, _LEAVE, (limit.model, tenant, self._process))

    async def pause(self, limit: RateLimit, seconds: float) -> None:
        """Give nobody a turn for so long."""
        await self._tell(limit, _PAUSE, {"model": limit.model, "seconds": seconds})

    async def _tell(self, limit: RateLimit, statement: str, values: Any) -> None:
        try:
            async with transaction(self._pool) as connection:
                await connection.exec_driver_sql(statement, values)
        except StoreUnavailableError:
            log.warning("provider_limits.unavailable", model=limit.model)


def amounts_of(limit: RateLimit, tokens: int) -> dict[str, Any]:
    """Return what a request takes of which allowances, as the function expects it."""
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
