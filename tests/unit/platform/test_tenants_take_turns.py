"""One tenant cannot fill what all tenants of a process share: another one is next.

Each case is a pool, a queue or a lock in the table of docs/limits.md that a caller waits for. A
tenant makes many more uses than it has capacity, and each use lasts until the test lets it end.
Another tenant then makes one use.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker import tool
from caseworker.engine.concurrency import NodeLock
from caseworker.features.spend.postgres import spend
from caseworker.features.webhooks import sender
from caseworker.models.ports import ModelRequest
from caseworker.models.wires.openai import openai_provider
from caseworker.nodes.function import BlockingPool
from caseworker.platform.fair_slots import TENANT, FairSlots
from caseworker.platform.fair_threads import CallThreads, FairThreads, usual_threads
from caseworker.platform.webhook_addresses import UrlRules, WebhookUrl
from caseworker.tools.ports import ToolContext
from caseworker_cases.stocks.tiingo import TiingoPrices
from caseworker_cases.tools.plotting.renderer import Renderer

Use = Callable[[], Awaitable[object]]
MANY = 100


class Uses:
    """Uses of something shared, each of which lasts until :meth:`end_one`."""

    def __init__(self) -> None:
        self.begun = list[str | None]()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._threads_end, self._ends = threading.Semaphore(0), asyncio.Semaphore(0)

    async def use(self, *_: object, **__: object) -> Any:
        """Note the tenant, and wait."""
        self._begin()
        await self._ends.acquire()

    @asynccontextmanager
    async def using(self, *_: object, **__: object) -> AsyncIterator[Any]:
        """Note the tenant, and wait before the block."""
        await self.use()
        raise InterruptedError
        yield

    def use_thread(self, tenant: str | None = None) -> Any:
        """Note the tenant, which is that of the context by default, and wait in a thread."""
        self._loop.call_soon_threadsafe(self._begin, tenant or TENANT.get())
        self._threads_end.acquire()
        raise InterruptedError

    def end(self, count: int = 1) -> None:
        """Let the earliest uses end."""
        for _ in range(count):
            self._threads_end.release()
            self._ends.release()

    async def until(self, count: int) -> None:
        """Wait until this many uses have begun."""
        while len(self.begun) < count:
            self._changed.clear()
            await self._changed.wait()

    def _begin(self, tenant: str | None = None) -> None:
        self.begun.append(tenant or TENANT.get())
        self._changed.set()


def the_sum_of_charges(uses: Uses, patch: pytest.MonkeyPatch) -> Use:
    patch.setattr(spend, "transaction", uses.using)
    found = spend.PostgresSpend(None, FairSlots(1))  # type: ignore[arg-type]
    about = {"all_tenants": False, "period": None, "after": None, "before": None}
    return lambda: found.find("x", "model", **about)  # type: ignore[arg-type]


def a_persistent_node(uses: Uses, _: pytest.MonkeyPatch) -> Use:
    lock = NodeLock("n")

    async def use() -> None:
        async with lock.held():
            await uses.use()

    return use


def a_model_endpoint(uses: Uses, _: pytest.MonkeyPatch) -> Use:
    class Line:
        post = uses.use

    provider = openai_provider(base_url="http://x/v1", max_in_flight=10, wire=Line())  # type: ignore[arg-type]
    return lambda: provider.complete("m", ModelRequest(messages=()))


def a_source_of_prices(uses: Uses, patch: pytest.MonkeyPatch) -> Use:
    prices, symbols = TiingoPrices("key", timeout_seconds=3600), iter(range(2 * MANY))
    patch.setattr(prices, "_request", uses.use)
    return lambda: prices.daily(f"S{next(symbols)}", None, None)


def the_prices_of_one_share(uses: Uses, patch: pytest.MonkeyPatch) -> Use:
    prices = TiingoPrices("key", timeout_seconds=3600)
    patch.setattr(prices, "_request", uses.use)
    return lambda: prices.daily("S", None, None)


def the_drawing_process(uses: Uses, patch: pytest.MonkeyPatch) -> Use:
    renderer = Renderer(timeout_seconds=3600)
    patch.setattr(renderer, "_exchange", uses.use)
    return lambda: renderer.render(None, 1)  # type: ignore[arg-type]


def threads_of_functions(uses: Uses, _: pytest.MonkeyPatch) -> Use:
    pool = BlockingPool(8)
    return lambda: pool.run(uses.use_thread)


def threads_of_tools(uses: Uses, _: pytest.MonkeyPatch) -> Use:
    @tool
    def wait() -> int:
        """Wait."""
        return int(uses.use_thread())

    threads = CallThreads(4, "test")
    now = datetime.now(UTC)
    context = ToolContext(run_id="r", timezone="UTC", now=now, threads=threads)
    return lambda: wait.run({}, context)


def threads_of_the_event_loop(uses: Uses, patch: pytest.MonkeyPatch) -> Use:
    patch.setattr("os.cpu_count", lambda: 6)
    asyncio.get_running_loop().set_default_executor(usual_threads())
    return lambda: asyncio.to_thread(uses.use_thread)


def names_of_webhook_hosts(uses: Uses, patch: pytest.MonkeyPatch) -> Use:
    patch.setattr(socket, "getaddrinfo", lambda host, *_, **__: uses.use_thread(host))
    sent = sender.WebhookSender(UrlRules(), timeout_seconds=3600)

    def use() -> Awaitable[object]:
        return sent._address(WebhookUrl("https", str(TENANT.get()), 443, "/"), 1)

    return use


POTS = [
    (the_sum_of_charges, 1, 1),
    (a_persistent_node, 1, 1),
    (a_model_endpoint, 9, 10),
    (a_source_of_prices, 3, 4),
    (the_prices_of_one_share, 1, 1),
    (the_drawing_process, 1, 1),
    (threads_of_functions, 7, 8),
    (threads_of_tools, 3, 4),
    (threads_of_the_event_loop, 9, 10),
    (names_of_webhook_hosts, 7, 8),
]
"""Each with the number of uses that one tenant makes at a time, and that all make."""


@pytest.mark.parametrize(("pot", "share", "size"), POTS, ids=[pot.__name__ for pot, _, _ in POTS])
async def test_another_tenant_is_next(
    pot: Callable[[Uses, pytest.MonkeyPatch], Use],
    share: int,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant that waits a hundred times does not let another one wait for more than one use."""
    uses = Uses()
    use = pot(uses, monkeypatch)

    def make(tenant: str) -> asyncio.Task[object]:
        async def of_tenant() -> object:
            TENANT.set(tenant)
            return await use()

        return asyncio.create_task(of_tenant())

    tasks = [make("a") for _ in range(MANY)]
    await uses.until(share)
    tasks.append(make("b"))
    await asyncio.sleep(0)
    if share == size:
        uses.end()
    await uses.until(share + 1)

    assert uses.begun == ["a"] * share + ["b"]
    uses.end(2 * MANY)
    await asyncio.wait(tasks)


async def test_a_function_that_was_cancelled_holds_its_thread_until_it_ends() -> None:
    """Otherwise a tenant could occupy all threads with calls that it abandons."""
    uses, threads = Uses(), FairThreads(2, "test")
    loop = asyncio.get_running_loop()
    context = loop.run_in_executor
    TENANT.set("a")
    first = context(threads, uses.use_thread)
    await uses.until(1)
    first.cancel()
    second = context(threads, uses.use_thread)
    TENANT.set("b")
    other = context(threads, uses.use_thread)
    await uses.until(2)

    assert not second.done()
    assert not other.done()
    uses.end(3)
    await asyncio.wait((second, other))


async def test_closed_threads_drop_what_is_queued() -> None:
    """Their callers are cancelled, and those of running functions get the results."""
    uses, threads = Uses(), FairThreads(1, "test")
    running = asyncio.get_running_loop().run_in_executor(threads, uses.use_thread)
    await uses.until(1)
    queued = asyncio.get_running_loop().run_in_executor(threads, uses.use_thread)

    threads.shutdown(wait=False)

    await asyncio.wait((queued,))
    assert queued.cancelled()
    uses.end()
    with pytest.raises(InterruptedError):
        await running
    with pytest.raises(RuntimeError):
        threads.submit(uses.use_thread)
