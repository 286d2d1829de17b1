"""Long texts are redacted in a thread, one at a time."""

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import pairwise

from caseworker.platform.fair_slots import TENANT
from caseworker.platform.fair_threads import MAX_CHARS_ON_LOOP, PAUSE, PacedThread


async def test_short_texts_are_redacted_at_once_and_long_ones_in_a_thread() -> None:
    """A short text is redacted on the event loop while a long one occupies the thread."""
    thread, begun, may_end = PacedThread(), threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        may_end.wait(150)
        return threading.get_ident()

    long = asyncio.create_task(thread.call(slow, MAX_CHARS_ON_LOOP + 1))
    await asyncio.to_thread(begun.wait, 150)
    short = await thread.call(threading.get_ident, MAX_CHARS_ON_LOOP)
    may_end.set()

    assert short == threading.get_ident()
    assert await long != short


async def test_long_texts_take_turns_with_pauses() -> None:
    """The thread pauses between long texts, so that one tenant does not hold the GIL."""
    thread = PacedThread()
    spans: list[tuple[float, float]] = []

    def taking(seconds: float) -> Callable[[], None]:
        def redact() -> None:
            began = time.monotonic()
            time.sleep(seconds)
            spans.append((began, time.monotonic()))

        return redact

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(thread.call(taking(0.02), MAX_CHARS_ON_LOOP + 1))

    pauses = [began - ended for (_, ended), (began, _) in pairwise(spans)]
    assert [pause > 0.9 * PAUSE * 0.02 for pause in pauses] == [True, True]


async def test_the_long_texts_of_tenants_take_turns() -> None:
    """A tenant with many texts delays that of another tenant by one text only."""
    thread, order = PacedThread(), list[str]()

    async def redact(tenant: str) -> None:
        TENANT.set(tenant)
        await thread.call(lambda: order.append(tenant), MAX_CHARS_ON_LOOP + 1)

    async with asyncio.TaskGroup() as tasks:
        for tenant in (*("mallory",) * 5, "acme"):
            tasks.create_task(redact(tenant))

    assert order.index("acme") <= 1
