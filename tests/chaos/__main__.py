"""Everything goes wrong, and what was promised holds: ``python -m tests.chaos --seconds 600``.

Prints the promises, how much of each was checked, and what broke it. It ends with 1 if anything
broke one, and with 2 if it proves nothing: a fault did not happen, or there was nothing to check.
With ``--broken`` it ends with 1 only if a promise was broken that rests on what was taken away.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tests.chaos.broken import VARIANTS
from tests.chaos.customers import Customers
from tests.chaos.disks import own_mounts
from tests.chaos.evidence import Evidence
from tests.chaos.faults import ended_in_order, healed, storm
from tests.chaos.findings import Findings
from tests.chaos.watch import Watch
from tests.chaos.world import World

SETTLE_SECONDS = 40.0
"""How long after the storm everything may take to end: a run that was lost twice waits for 5 s."""


async def chaos(world: World, seconds: float, lanes: int) -> Findings:
    """Have customers work through a storm, heal everything, and judge what became of it."""
    times = [time.monotonic()]
    async with world:
        times.append(time.monotonic())
        customers, watch = Customers(world, lanes=lanes), Watch(world)
        looking = asyncio.create_task(watch.look_on())
        working = asyncio.create_task(customers.work())
        await storm(world, seconds)
        times.append(time.monotonic())
        customers.close()
        await healed(world)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await working
        times.append(time.monotonic())
        looking.cancel()
        await ended_in_order(world)
        times.append(time.monotonic())
        parts = ("to start", "of storm", "to settle", "to end")
        took = [later - earlier for earlier, later in pairwise(times)]
        evidence = await Evidence.gathered(world, customers, watch)
        return Findings(evidence, dict(zip(parts, took, strict=True)))


def _main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--lanes", type=int, default=12, help="customers at work at once")
    parser.add_argument("--broken", choices=VARIANTS, help="see tests/chaos/broken.py")
    parser.add_argument("--keep", type=Path, help="the folder for logs")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="caseworker-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"chaos: seed {arguments.seed}, {arguments.seconds:g} s", flush=True)  # noqa: T201
    rows, break_it = VARIANTS.get(arguments.broken, (set[str](), lambda: None))
    break_it()  # here it changes nothing, and shows that it can
    world = World(arguments.seed, folder, broken=arguments.broken, no_disks=own_mounts())
    findings = asyncio.run(chaos(world, arguments.seconds, arguments.lanes))
    chronicle = sorted(world.chronicle.intervals, key=lambda one: one.began)
    (folder / "chronicle.txt").write_text("\n".join(map(str, chronicle)))
    print(findings.table())  # noqa: T201
    broken, missing = sorted(findings.broken_rows), findings.missing()
    if arguments.broken:
        print(f"{arguments.broken}: rows {broken} are broken, of {sorted(rows)}")  # noqa: T201
        return 1 if rows.intersection(broken) else 2
    if broken:
        print(f"logs: {folder}")  # noqa: T201
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    if missing:
        print(f"It proves nothing, for this did not happen: {', '.join(missing)}")  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main())
