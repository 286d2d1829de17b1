"""A process's tool registry, and the policy that selects the usable tools."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from caseworker.tools.ports import Tool, ToolSpec


class DuplicateToolError(ValueError):
    """Two tools, or functions of different tools, have the same name."""


class ToolRegistry:
    """All tools of this process; built once and never modified.

    Listings are sorted by name, so that prompts and traces do not depend on the order of creation.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Register the tools.

        Raises:
            DuplicateToolError: two tools have the same name, or functions of the same name.
        """
        by_name: dict[str, Tool] = {}
        for tool in tools:
            name = tool.spec.name
            if name in by_name:
                raise DuplicateToolError(f"two tools have the name {name!r}")
            by_name[name] = tool
        _require_own_functions(tool.spec for tool in by_name.values())
        self._by_name = dict(sorted(by_name.items()))

    def find(self, name: str) -> Tool | None:
        """Return the tool with this name, or None if it is not registered."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Tool]:
        """Return the tools, sorted by name."""
        return iter(self._by_name.values())

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the specs of all tools, sorted by name."""
        return tuple(tool.spec for tool in self._by_name.values())


def _require_own_functions(specs: Iterable[ToolSpec]) -> None:
    owners: dict[str, str] = {}
    for spec in specs:
        for name in {spec.name, *(function.name for function in spec.functions)}:
            if (owner := owners.setdefault(name, spec.name)) != spec.name:
                tools = f"the tools {owner!r} and {spec.name!r}"
                raise DuplicateToolError(f"{tools} have functions of the same name, {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """An allowlist and a denylist of tool names; a name on both lists is denied.

    The policy does not know which tools exist.
    """

    allow: frozenset[str] | None = None
    """Names of the tools that may be used. None allows all, an empty set allows none."""
    deny: frozenset[str] = frozenset()
    approval: frozenset[str] = frozenset()
    """Names of tools whose calls need a person's approval; ``server.*`` matches all tools of a
    server."""

    def allows(self, name: str) -> bool:
        """Return whether the policy permits a tool name."""
        return name not in self.deny and (self.allow is None or name in self.allow)

    def requires_approval(self, spec: ToolSpec) -> bool:
        """Return whether a person must approve calls to a tool."""
        server = f"{spec.name.partition('.')[0]}.*"
        return spec.requires_approval or not self.approval.isdisjoint((spec.name, server))
