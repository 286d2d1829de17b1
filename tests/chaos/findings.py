"""The results of the oracles, and how much there was to check."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.chaos.evidence import Evidence
from tests.chaos.faults import chosen_for, left_out
from tests.chaos.oracles import PROMISES

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise, how often it was checked, and its violations."""

    promise: str
    checked: int
    problems: list[str]

    @property
    def rows(self) -> set[str]:
        """The rows of the table of promises that it covers."""
        return set(self.promise.partition("  ")[0].split(", "))


class Findings:
    """The results of all oracles; ``seconds`` are the durations of the storm's parts."""

    def __init__(self, evidence: Evidence, seconds: Mapping[str, float]) -> None:
        self.promises = []
        for promise, check in PROMISES.items():
            answers = list(check(evidence))
            found = Finding(promise, len(answers), [one for one in answers if one])
            self.promises.append(found)
        world, arrivals = evidence.world, evidence.arrivals
        outcomes = Counter(one.outcome for one in arrivals)
        self._left_out = left_out(world)
        self._needed = {
            "faults": {kind: world.chronicle.happened[kind] for kind in chosen_for(world)},
            "provider": {
                "calls": len(arrivals),
                "refused": sum(one.refused for one in arrivals),
                "cut": outcomes["cut"],
                "given up": outcomes["client_gone"],
            },
        }
        self._happened: Mapping[str, Mapping[str, int | float]] = self._needed | {
            "runs": Counter(run.status for run in evidence.runs.values()),
            "customers": evidence.customers.counts,
            "service": {
                "processes": sum(len(slot.pids) for slot in world.slots),
                "runs begun again": len(evidence.watch.losses),
                "worst lag here, ms": int(1000 * world.chronicle.lag(0, float("inf"))),
            },
            "seconds": {part: round(took, 1) for part, took in seconds.items()},
        }

    @property
    def broken_rows(self) -> set[str]:
        """The rows of the table of promises with a violation."""
        return {row for one in self.promises if one.problems for row in one.rows}

    @property
    def absent(self) -> list[str]:
        """The required events that did not occur."""
        counts = self._needed["faults"] | self._needed["provider"]
        return [kind for kind, times in counts.items() if not times]

    @property
    def unchecked(self) -> list[str]:
        """The promises that could not be checked."""
        return [one.promise for one in self.promises if not one.checked]

    def table(self) -> str:
        """Return the results as a table."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"| {'promise':48} | {'checked':>7} | {'broken':>6} |"
        yield f"|{'-' * 50}|{'-' * 8}:|{'-' * 7}:|"
        for one in self.promises:
            yield f"| {one.promise:48} | {one.checked:7} | {len(one.problems):6} |"
        for sort, counts in self._happened.items():
            yield f"{sort}: " + ", ".join(f"{kind} {times}" for kind, times in counts.items())
        for kind, why in self._left_out.items():
            yield f"left out: {kind}, for {why}"
        for one in self.promises:
            if one.problems:
                yield f"\n{one.promise}:"
                yield from (f"  {problem[:600]}" for problem in one.problems[:_SHOWN])
                yield f"  {len(one.problems)} in all"
