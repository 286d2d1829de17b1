"""Everything goes wrong, and what was promised holds: ``python -m tests.chaos --seconds 600``.

Prints the promises, how much of each was checked, and what broke it. It ends with 1 if anything
broke one, and with 2 if it proves nothing: a fault did not happen, or there was nothing to check.
"""

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.chaos.customers import Customers
from tests.chaos.faults import ended_in_order, healed, storm
from tests.chaos.findings import Findings, judged
from tests.chaos.watch import Watch
from tests.chaos.world import World

SETTLE_SECONDS = 90.0
"""How long after the storm everything may take to end: a run that was lost twice waits for 5 s."""
_PRIVATE_MOUNTS = ("unshare", "--mount", "--propagation", "private")


async def chaos(world: World, seconds: float, lanes: int) -> Findings:
    """Have customers work through a storm, heal everything, and judge what became of it."""
    async with world:
        customers, watch = Customers(world, lanes=lanes), Watch(world)
        looking = asyncio.create_task(watch.look_on())
        working = asyncio.create_task(customers.work())
        await storm(world, seconds)
        customers.close()
        await healed(world)
        began = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await working
        settled = time.monotonic() - began
        looking.cancel()
        await ended_in_order(world)
        return await judged(world, customers, watch, settled_seconds=settled)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--lanes", type=int, default=12, help="customers at work at once")
    parser.add_argument("--broken", help="a service broken on purpose: see tests/chaos/broken.py")
    parser.add_argument("--keep", type=Path, help="the folder for logs")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="caseworker-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"chaos: seed {arguments.seed}, {arguments.seconds:g} s", flush=True)  # noqa: T201
    world = World(arguments.seed, folder, broken=arguments.broken)
    findings = asyncio.run(chaos(world, arguments.seconds, arguments.lanes))
    (folder / "chronicle.txt").write_text(f"{world.chronicle}\n")
    print(findings.table())  # noqa: T201
    if findings.violations:
        print(f"logs: {folder}")  # noqa: T201
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    if missing := findings.missing():
        print(f"It proves nothing, for this did not happen: {', '.join(missing)}")  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    # Root may mount a small disk for the database; in a namespace of its own nothing stays behind.
    if os.geteuid() == 0 and "CHAOS_INSIDE" not in os.environ and shutil.which("unshare"):
        os.environ["CHAOS_INSIDE"] = "1"
        program = (*_PRIVATE_MOUNTS, sys.executable, "-m", "tests.chaos", *sys.argv[1:])
        os.execvp("unshare", program)  # noqa: S606 - fixed words, and our own arguments
    sys.exit(_main())
