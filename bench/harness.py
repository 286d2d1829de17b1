"""How a figure comes about: rows, rounds and sides.

A row measures one thing that the documents set a target for. It measures every side (this project,
a peer, a floor that nothing could be faster than) in turn, A B A B, so that whatever else the
machine does meets all of them alike. The first round only warms up and is not counted.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

import bench.rows
from bench.figures import Figure, Samples

Side = Callable[[], Awaitable[float]]
"""Measures once and returns the value."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work a measurement may be."""

    quick: bool = False

    @property
    def rounds(self) -> int:
        """Counted rounds of all sides."""
        return 5 if self.quick else 25

    def choose(self, full: int, quick: int) -> int:
        """Return a size that suits the effort."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table of speeds and sizes; every module in ``bench.rows`` has one, ``ROW``.

    ``measure`` may start environments, workers and servers; it must stop them before it returns.
    """

    title: str
    peers: Sequence[str]
    """Requirements of the peers it is held against, such as ``name==1.2.3``."""
    measure: Callable[[Effort], Coroutine[None, None, Sequence[Figure]]]


async def interleaved(sides: Mapping[str, Side], rounds: int) -> dict[str, Samples]:
    """Measure every side once a round, in order, and return the values of the counted rounds."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, measure in sides.items():
            value = await measure()
            if number > 0:
                values[name].append(value)
    return {name: Samples(tuple(measured)) for name, measured in values.items()}


def find_rows() -> dict[str, Row]:
    """Return all rows by the names of their modules."""
    rows: dict[str, Row] = {}
    for module in iter_modules(bench.rows.__path__):
        row = import_module(f"{bench.rows.__name__}.{module.name}").ROW
        assert isinstance(row, Row)
        rows[module.name] = row
    return rows


OURS: Final = "caseworker"
"""The name of this project's side in every figure."""
