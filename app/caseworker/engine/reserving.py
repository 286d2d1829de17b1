"""Reserves amounts in a budget scope, waiting asynchronously until the capacity is free."""

import asyncio
from collections.abc import Callable

from caseworker.core.budget.ledger import Reservation, Room, Scope
from caseworker.core.budget.usage import Charge


async def reserved(
    scope: Scope,
    charge: Charge,
    wanted: Callable[[Room], Charge] | None = None,
    *,
    tracked: bool = True,
    waits: Callable[[], object] = lambda: None,
) -> Reservation:
    """Reserve ``charge`` in a scope and all its ancestors, waiting until the capacity is free.

    Requests are served in order of arrival. Cancelling the task ends the wait. ``wanted`` and
    ``tracked`` are passed to ``Scope.ask``. ``waits`` is called once before waiting starts, so that
    the caller can release other resources for that time.

    Raises:
        BudgetExceededError: the charge does not fit even if only the caller's own reservations are
            held; names the scope and the dimension.
        ValueError: an amount is negative or not finite.
    """
    asked = scope.ask(charge, wanted, tracked=tracked)
    if isinstance(asked, Reservation):
        return asked
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def wake() -> None:
        if not over.done():
            over.set_result(None)

    # Another thread may resolve the request.
    asked.on_end(lambda: loop.call_soon_threadsafe(wake))
    waits()
    try:
        await over
    except BaseException:
        asked.leave()  # also releases a reservation granted just before the cancel
        raise
    return asked.reservation()
