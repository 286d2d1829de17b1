"""Waits for a reservation of budget on the event loop.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from caseworker.core.budget.ledger import FreeAmounts, Reservation, Scope
from caseworker.core.budget.usage import Charge


async def reserved(
    scope: Scope,
    charge: Charge,
    preferred: Callable[[FreeAmounts], Charge] | None = None,
    *,
    tracked: bool = True,
    waits: Callable[[], object] = lambda: None,
    at: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> Reservation:
    """Reserve ``charge`` in a scope and all its ancestors, waiting until the capacity is free.

    Requests are served in order of arrival. Cancelling the task ends the wait. ``preferred`` and
    ``tracked`` are passed to ``Scope.ask``. ``waits`` is called once before waiting starts, so that
    the caller can release other resources for that time. ``at`` returns a context for the wait.

    Raises:
        BudgetExceededError: the charge does not fit even if only the caller's own reservations are
            held; names the scope and the dimension.
        ValueError: an amount is negative or not finite.
    """
    request = scope.ask(charge, preferred, tracked=tracked)
    if isinstance(request, Reservation):
        return request
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def wake() -> None:
        if not over.done():
            over.set_result(None)

    # Another thread may resolve the request.
    request.on_end(lambda: loop.call_soon_threadsafe(wake))
    waits()
    try:
        async with at():
            await over
    except BaseException:
        request.leave()  # also releases a reservation granted just before the cancel
        raise
    return request.reservation()
