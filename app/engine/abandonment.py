"""Work that was given up although it goes on: it may end in peace, but begin nothing more."""

import asyncio


class Abandonment:
    """The paths of a run's abandoned work."""

    __slots__ = ("_prefixes",)

    def __init__(self) -> None:
        self._prefixes: tuple[str, ...] = ()

    def of_attempt(self, path: str) -> None:
        """Abandon one attempt of a step, and everything inside it."""
        self._prefixes += (f"{path}/",)

    def of_step(self, path: str) -> None:
        """Abandon a step, whichever attempt it is at, and everything inside it."""
        self._prefixes += (f"{path}/", f"{path}~")

    def check(self, path: str) -> None:
        """Keep a step or a call from beginning inside abandoned work.

        Raises:
            asyncio.CancelledError: it is inside of some; it had been cancelled, and went on.
        """
        if self._prefixes and path.startswith(self._prefixes):
            raise asyncio.CancelledError("The work around it was abandoned.")
