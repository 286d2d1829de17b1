"""The cost of tracing: the same graph with and without a trace, in pairs."""

from collections.abc import Sequence
from statistics import quantiles
from typing import Final

from bench.figures import Check, Figure, Samples, Target
from bench.graph_runtimes import runtimes
from bench.harness import OURS, Effort, Row, interleaved

PLAIN: Final = "without a trace"
TRACED: Final = "with a trace"
READ: Final = "with a trace that is read"
COST: Final = Target(must=5, stretch=2, unit="%")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure 100 steps in sequence, the mean of ten executions, in many alternating rounds.

    The overhead of a trace is smaller than the noise of a single pair, so many pairs are measured.
    """
    async with runtimes(OURS) as sides:
        measured = await interleaved(
            {
                PLAIN: sides.side(OURS, "protocol", 1e3),
                TRACED: sides.side(OURS, "protocol", 1e3, traced=True),
                READ: sides.side(OURS, "protocol", 1e3, traced=True, read=True),
            },
            40 * effort.rounds,
        )
    overheads = overhead_percent(measured[TRACED], measured[PLAIN])
    first, _, third = quantiles(overheads.values, n=4, method="inclusive")
    what = (
        f"median of {len(overheads.values):,} pairs (half of them lie from {first:.1f} to "
        f"{third:.1f} %)"
    )
    return [
        Figure(title="100 steps in sequence", unit="ms", sides=measured),
        Figure(
            title="Overhead",
            unit="%",
            sides={f"{TRACED}, against {PLAIN}": overheads},
            checks=[Check(what=what, value=overheads.median, target=COST)],
        ),
    ]


def overhead_percent(traced: Samples, plain: Samples) -> Samples:
    """Return by what percentage each traced value exceeds the plain one of its round."""
    pairs = zip(traced.values, plain.values, strict=True)
    return Samples(tuple(100 * (with_it - without) / without for with_it, without in pairs))


ROW: Final = Row(title="Tracing a graph", peers=(), measure=measure)
