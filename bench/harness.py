"""How a figure is measured: rows, rounds and sides.

A row measures one quantity that the documents set a target for. It measures every side (this
project, a peer, or a floor that nothing could beat) in turn, A B A B, so other load on the machine
affects all sides alike. The first round is a warm-up and is not counted.
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
    """The amount of work of a measurement."""

    quick: bool = False

    @property
    def rounds(self) -> int:
        """The number of counted rounds of all sides."""
        return 5 if self.quick else 25

    def choose(self, full: int, quick: int) -> int:
        """Return the size for this effort."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table of speeds and sizes; every module in ``bench.rows`` has a ``ROW``.

    ``measure`` may start environments, workers and servers; it must stop them before it returns.
    """

    title: str
    peers: Sequence[str]
    """Pinned requirements of its peers, such as ``name==1.2.3``."""
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
