"""A page of a list that is read with cursors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """The items of a page, and the cursor of the next page; None on the last page."""

    items: Sequence[Item]
    next_cursor: str | None
