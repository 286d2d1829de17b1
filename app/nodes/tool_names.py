"""The tools that graphs may name."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from app.kernel.wording import quoted

ToolName = Annotated[str, Field(min_length=1, max_length=128)]


class ToolNames:
    """The names of the tools that may be used here; a denied tool is not told from none."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def problem(self, name: str) -> str:
        """Return what to say of a name that is none of these."""
        return (
            f"There is no tool {quoted(name)} that may be used; GET /tools lists those there are."
        )
