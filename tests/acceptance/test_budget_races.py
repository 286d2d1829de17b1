"""Parallel streamed calls of several client processes race for the budget of one external run."""

from contextlib import AsyncExitStack

import pytest

from bench.budget_race import ALLOWED, CALLS, LIMITS, race_of_run, settings_of, started
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess


@pytest.mark.guarantee(7)
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    ("clients", "servers", "repeats"),
    [(1, 1, 1), pytest.param(4, 4, 100, marks=pytest.mark.proof)],
)
async def test_ten_of_64_parallel_streamed_calls_are_made_under_a_limit_of_ten(
    database_url: str,
    provider: FakeProvider,
    limit: str,
    clients: int,
    servers: int,
    repeats: int,
) -> None:
    """Each call costs exactly a tenth of the money; no client repeats a refused call."""
    options = ("--workers", str(servers)) if servers > 1 else ()
    async with AsyncExitStack() as stack:
        racers = await started(stack, clients)
        opened = ServiceProcess(database_url, *options, settings=settings_of(provider))
        service = await stack.enter_async_context(opened)
        for _ in range(repeats):
            raced, run = await race_of_run(racers, provider, service.url, LIMITS[limit])

            assert raced.made == ALLOWED
            assert raced.answers == {"200": ALLOWED, "400": CALLS - ALLOWED}
            assert run["status"] == "halted"
            assert run["stop"]["kind"] == "budget"
            assert run["usage"]["llm_calls"] == ALLOWED
            assert float(run["usage"]["cost_usd"]) == pytest.approx(0.1)
            assert run["usage"]["tokens_estimated"] == 0
