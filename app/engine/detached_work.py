"""Work that was cut off although it goes on: it may end in peace, but begin nothing more."""

import asyncio


def inside_attempt(path: str) -> tuple[str, ...]:
    """Return how the paths begin of everything inside one attempt of a step."""
    return (f"{path}/", f"{path}>")


def inside_step(path: str) -> tuple[str, ...]:
    """Return how the paths begin of everything inside a step, whichever attempt it is at."""
    return (*inside_attempt(path), f"{path}~")


class DetachedWork:
    """What was cut off in a run and may still go on."""

    __slots__ = ("prefixes",)

    def __init__(self) -> None:
        self.prefixes: tuple[str, ...] = ()
        """How the paths begin of what was cut off; hardly ever is there any."""

    def begin(self, inside: tuple[str, ...]) -> None:
        """Cut off everything whose path begins so."""
        self.prefixes += inside

    def end(self, inside: tuple[str, ...]) -> None:
        """Forget what was cut off and has come to its end; as often as it was begun."""
        left = list(self.prefixes)
        for prefix in inside:
            left.remove(prefix)
        self.prefixes = tuple(left)

    def covers(self, path: str) -> bool:
        """Tell whether a path is inside of what was cut off."""
        return bool(self.prefixes) and path.startswith(self.prefixes)

    def check(self, path: str) -> None:
        """Keep a step or a call from beginning inside of what was cut off.

        Raises:
            asyncio.CancelledError: it is inside; it had been cancelled, and went on.
        """
        if self.prefixes and path.startswith(self.prefixes):
            raise asyncio.CancelledError("The work around it was cut off.")
