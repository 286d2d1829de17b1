"""Which tools may be used."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """An allowlist and a denylist of tool names (seed 002, 23.1 and 23.2).

    A name that is on both lists is denied. Whether a tool exists is not this object's business.
    """

    allow: frozenset[str] | None = None
    """The only names that may be used; None allows all, an empty set none."""
    deny: frozenset[str] = frozenset()
    """Names that may not be used, whatever ``allow`` says."""

    def allows(self, name: str) -> bool:
        """Tell whether the tool of that name may be used."""
        return name not in self.deny and (self.allow is None or name in self.allow)

    def usable(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` that may be used, sorted."""
        return tuple(sorted(name for name in set(names) if self.allows(name)))

    def narrowed(self, other: "ToolPolicy") -> "ToolPolicy":
        """Return the policy that allows what both allow."""
        if self.allow is None or other.allow is None:
            allow = other.allow if self.allow is None else self.allow
        else:
            allow = self.allow & other.allow
        return ToolPolicy(allow=allow, deny=self.deny | other.deny)
