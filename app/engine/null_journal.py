"""The journal of a run that nothing outlives: graphs that are executed in Python."""

from app.control.usage import NOTHING, Charge
from app.engine.cancellation import CancellationToken
from app.engine.ports import Entry, Recorded


class NullJournal:
    """Implements the journal without remembering anything; only a stop bars the way."""

    def __init__(self, token: CancellationToken) -> None:
        self._token = token

    def recorded(self, call_key: str) -> Recorded | None:
        """Return None: nothing was executed before."""
        return None

    def spent_below(self, path: str) -> Charge:
        """Return nothing, for the same reason."""
        return NOTHING

    def note(self, node_id: str, entry: Entry) -> None:
        """Forget an entry."""

    def touch(self) -> None:
        """Store nothing."""

    async def barrier(self, *, external: bool) -> None:
        """Pass unless a stop was given.

        Raises:
            Stop: one was.
        """
        self._token.check()
