"""Cancels the open runs of revoked standing keys, for the routes and the command line."""

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from caseworker.features.access.postgres import PostgresKeys
from caseworker.platform.caller import Caller
from caseworker.runs.run import RunKey

_REVOKED: Final = "The key was revoked."


class CancelRun(Protocol):
    """Function that cancels runs."""

    async def __call__(self, key: RunKey, *, by: str, reason: str | None = None) -> object:
        """Store a cancel request for a run."""


async def cancel_runs_of(
    keys: PostgresKeys, key_ids: Collection[str], cancel: CancelRun, by: Caller
) -> Sequence[RunKey]:
    """Cancel the open runs of revoked keys, and of keys that they have made; return these runs.

    Each run is cancelled in a separate transaction. If one fails, a repetition cancels the rest.
    """
    runs = await keys.open_runs_of(key_ids)
    for run in runs:
        await cancel(run, by=by.name, reason=_REVOKED)
    return runs
