"""What the judges found, and what there was to find it in."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.chaos.customers import Customers
from tests.chaos.evidence import Evidence
from tests.chaos.faults import OF_DATABASE, OF_PROCESSES
from tests.chaos.oracles import PROMISES
from tests.chaos.watch import Watch
from tests.chaos.world import World

_SHOWN = 10
MAY_BE_MISSING = ("21  only processes that were lost lose runs",)
"""What a short storm may not have to show."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise, how often it was checked, and what broke it."""

    promise: str
    checked: int
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Findings:
    """All of them, and what has happened, by sorts."""

    promises: list[Finding]
    happened: Mapping[str, Mapping[str, int | float | str]]

    @property
    def violations(self) -> int:
        """How many of the things that were checked broke a promise."""
        return sum(len(one.problems) for one in self.promises)

    def missing(self) -> list[str]:
        """Return what has to happen for this to prove anything, and did not."""
        faults = {**dict.fromkeys((*OF_PROCESSES, *OF_DATABASE), 0), **self.happened["faults"]}
        never = [kind for kind, times in faults.items() if not times]
        never += [kind for kind, times in self.happened["provider"].items() if not times]
        unchecked = [one.promise for one in self.promises if not one.checked]
        return never + [promise for promise in unchecked if promise not in MAY_BE_MISSING]

    def table(self) -> str:
        """Return it for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"| {'promise':48} | {'checked':>7} | {'broken':>6} |"
        yield f"|{'-' * 50}|{'-' * 8}:|{'-' * 7}:|"
        for one in self.promises:
            yield f"| {one.promise:48} | {one.checked:7} | {len(one.problems):6} |"
        for sort, counts in self.happened.items():
            yield f"{sort}: " + ", ".join(f"{kind} {times}" for kind, times in counts.items())
        for one in self.promises:
            if one.problems:
                yield f"\n{one.promise}:"
                yield from (f"  {problem[:600]}" for problem in one.problems[:_SHOWN])
                yield f"  {len(one.problems)} in all"


async def judged(
    world: World, customers: Customers, watch: Watch, *, settled_seconds: float
) -> Findings:
    """Ask every oracle."""
    evidence = await Evidence.gathered(world, customers, watch)
    promises = []
    for promise, check in PROMISES.items():
        answers = list(check(evidence))
        promises.append(Finding(promise, len(answers), [one for one in answers if one]))
    outcomes = Counter(one.outcome for one in evidence.arrivals)
    faults = {kind: world.chronicle.happened[kind] for kind in (*OF_PROCESSES, *OF_DATABASE)}
    return Findings(
        promises,
        {
            "faults": faults,
            "provider": {
                "calls": len(evidence.arrivals),
                "refused": sum(one.refused for one in evidence.arrivals),
                "cut": outcomes["cut"],
                "given up": outcomes["client_gone"],
            },
            "customers": {
                "runs": len(evidence.runs),
                **Counter(run.status for run in evidence.runs.values()),
                **customers.counts,
            },
            "service": {
                "processes": sum(len(slot.pids) for slot in world.slots),
                "runs begun again": len(watch.losses),
                "seconds to settle": round(settled_seconds, 1),
                "worst lag here, s": round(
                    max((lag for _, lag in world.chronicle.lags), default=0), 2
                ),
            },
        },
    )
