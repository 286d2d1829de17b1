"""Resources that a process's tools share."""

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

Shared = TypeVar("Shared")


class ToolResources:
    """Passed to tool factories that take an argument; closed when the process stops.

    A factory is registered as an entry point of the group ``caseworker.tools``.
    """

    def __init__(self, settings: Any) -> None:
        """Share resources configured by ``settings``, the section ``tools`` of the settings."""
        self.settings = settings
        self._shared: dict[Callable[[ToolResources], Any], Any] = {}
        self._exit_stack = AsyncExitStack()

    def shared(self, make: Callable[["ToolResources"], Shared]) -> Shared:
        """Return ``make(self)``; all tools that pass the same ``make`` share one object.

        If the object has an async method ``aclose``, it is called when the process stops.
        """
        if make not in self._shared:
            resource = self._shared[make] = make(self)
            close = getattr(resource, "aclose", None)
            if inspect.iscoroutinefunction(close):
                self._exit_stack.push_async_callback(close)
        return cast("Shared", self._shared[make])

    async def aclose(self) -> None:
        """Close the shared objects in reverse order of creation."""
        await self._exit_stack.aclose()
