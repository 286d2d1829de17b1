"""Seeds for randomised tests: fixed ones in each run, many more in proof runs."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class FreshSeeds:
    """Consecutive seeds from a random start, which is printed when the test begins.

    The start is drawn on iteration, because xdist needs the same parameters in all workers.
    """

    count: int

    def __iter__(self) -> Iterator[int]:
        start = random.SystemRandom().randrange(2**32)
        print(f"seeds {start} to {start + self.count - 1}")  # noqa: T201
        return iter(range(start, start + self.count))


def seeds(fast: int, proofs: int, *, shards: int = 8) -> pytest.MarkDecorator:
    """Parametrize a test with ``seeds``, an iterable of integers.

    ``make test`` runs the seeds from 0 to ``fast``. ``make proofs`` runs those up to ``proofs`` in
    shards, and then a tenth of that number from a random start.
    """
    size = -(-(proofs - fast) // shards)
    more = [range(at, min(at + size, proofs)) for at in range(fast, proofs, size)]
    values = [
        pytest.param(range(fast), id=f"first {fast}"),
        *(pytest.param(each, id=f"from {each[0]}", marks=pytest.mark.proof) for each in more),
        pytest.param(FreshSeeds(proofs // 10), id="random", marks=pytest.mark.proof),
    ]
    return pytest.mark.parametrize("seeds", values)
