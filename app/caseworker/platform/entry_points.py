"""The entry points of installed packages. This module imports no other one of the service."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points


def registered(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group."""
    return _all_points().select(group=group)


_all_points = cache(entry_points)
"""Cached because every call reads the metadata of all installed packages."""
