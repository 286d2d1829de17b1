"""Half a minute of chaos for each of ``CHAOS_SEEDS``; ``make chaos`` runs longer storms."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.broken import VARIANTS
from tests.support.processes import ChildProcess

SEEDS = json.loads(os.environ.get("CHAOS_SEEDS", "[11, 12]"))

BROKEN, RARE, UNCHECKED = 1, 2, 3
"""Exit codes: a promise was broken, a rare event did not occur in the short time, and a promise
could not be checked.
"""
ENOUGH = 5
"""The minimum number of faults, even on a busy machine."""


def variant_of_this_commit() -> str:
    """Return one variant in turn, chosen by the commit, or by the day without git."""
    asked = ("git", "rev-parse", "HEAD")
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        number = int(found, 16)
    except (OSError, subprocess.CalledProcessError):
        number = int(time.time() // 86400)
    return list(VARIANTS)[number % len(VARIANTS)]


async def _storm(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of a storm."""
    with ChildProcess.python(*arguments, "--lanes", "8", name="chaos") as storm:
        code = await storm.wait(timeout_seconds=280)
        sys.stdout.write(storm.stdout)
        return code, storm.stdout + storm.stderr[-4000:]


@pytest.mark.req("card/executor", "card/persist", "card/delete", "003/resume", "004/lifecycle")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.proof
async def test_what_is_promised_holds_while_everything_fails(seed: int, tmp_path: Path) -> None:
    """No run is lost, duplicated or overspent, and each promise is checked."""
    told, code = "", UNCHECKED
    for seconds in ("30", "60"):  # a busy machine may need more to have all promises checked
        if code == UNCHECKED:
            arguments = ("-m", "tests.chaos", "--seconds", seconds, "--seed", str(seed))
            code, told = await _storm(*arguments, "--keep", str(tmp_path))
    assert code in (0, RARE), told
    [faults] = re.findall(r"^faults: (.*)$", told, re.MULTILINE)
    assert sum(map(int, re.findall(r" (\d+)", faults))) >= ENOUGH, faults


def test_each_variant_still_applies() -> None:
    """A renamed method or another SQL text fails here, and not only where its variant is drawn."""
    code = "from tests.chaos.broken import VARIANTS\nfor each in VARIANTS.values(): each.apply()"
    subprocess.run((sys.executable, "-c", code), check=True)


@pytest.mark.timeout(600)
@pytest.mark.proof
async def test_what_is_broken_on_purpose_is_seen(tmp_path: Path) -> None:
    """One variant is tested for each commit; ``CHAOS_BROKEN=name`` selects one."""
    name, code, told = os.environ.get("CHAOS_BROKEN") or variant_of_this_commit(), RARE, ""
    for seed in ("1", "2", "3"):  # a short storm may miss the moment
        if code == RARE:
            arguments = ("-m", "tests.chaos", "--broken", name, "--seed", seed)
            code, told = await _storm(*arguments, "--keep", str(tmp_path / seed))
    assert code == BROKEN, told
    [rows] = re.findall(rf"^{name}: rows (.*) are broken$", told, re.MULTILINE)
    assert VARIANTS[name].rows.intersection(rows.split(", ")), rows
