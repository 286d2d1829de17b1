"""The tools that a case may use, written down for planners once and not for every question."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from app.tools.ports import ToolSpec


class ToolOffer:
    """Some tools, as planners and executors of cases look at them."""

    __slots__ = ("names", "text")

    def __init__(self, specs: Iterable[ToolSpec] = ()) -> None:
        """Offer tools, in this order."""
        offered = tuple(specs)
        self.names = frozenset(spec.name for spec in offered)
        self.text = json.dumps(list(map(_shown, offered)), sort_keys=True, ensure_ascii=False)
        """What planners are told of them, as JSON."""


def _shown(spec: ToolSpec) -> Mapping[str, Any]:
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
    }
