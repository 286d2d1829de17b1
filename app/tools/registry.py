"""The tools of a process, by name."""

from collections.abc import Iterable

from app.tools.ports import Tool, ToolSpec


class DuplicateToolError(ValueError):
    """Two tools have the same name."""


class ToolRegistry:
    """Every tool that exists here; built once and never changed.

    Listings are in the order of names, so that prompts and traces do not depend on the order in
    which tools were made (seed 002, 22.3).
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Take the tools.

        Raises:
            DuplicateToolError: two tools have the same name.
        """
        by_name: dict[str, Tool] = {}
        for tool in tools:
            name = tool.spec.name
            if name in by_name:
                raise DuplicateToolError(f"there are two tools named {name!r}")
            by_name[name] = tool
        self._by_name = dict(sorted(by_name.items()))

    def find(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._by_name.get(name)

    def names(self) -> tuple[str, ...]:
        """Return every name, sorted."""
        return tuple(self._by_name)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return every spec, sorted by name."""
        return tuple(tool.spec for tool in self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)
