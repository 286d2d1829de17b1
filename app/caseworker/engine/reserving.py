"""Reserves in a budget scope, and waits where others have reserved what is needed."""

import asyncio
from collections.abc import Callable

from caseworker.control.ledger import Reservation, Room, Scope
from caseworker.control.usage import Charge


async def reserved(
    scope: Scope,
    charge: Charge,
    wanted: Callable[[Room], Charge] | None = None,
    *,
    tracked: bool = True,
    waits: Callable[[], object] = lambda: None,
) -> Reservation:
    """Hold ``charge`` in a scope and in all around it, as soon as others have left room for it.

    Those who came first get theirs first; a cancel of the task ends the wait. ``wanted`` and
    ``tracked`` are those of ``Scope.ask``; ``waits`` is called where it has to wait.

    Raises:
        BudgetExceededError: it does not fit even if nothing but the caller's own reservations is
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

    asked.on_end(lambda: loop.call_soon_threadsafe(wake))
    waits()
    try:
        await over
    except BaseException:
        asked.leave()
        raise
    return asked.reservation()
