"""What a question comes to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Action:
    """One tool call."""

    tool: str
    args: Mapping[str, Any]
