"""The programs in examples/ print what their README shows, without a network or a model."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import ServiceProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = re.compile(r"```sh\n\S+ examples/(\w+)\.py\n```\n\n```text\n(.*?)\n```", re.DOTALL)
README = dict(SHOWN.findall((EXAMPLES / "README.md").read_text()))
"""The output of each program by its name."""
MASKS = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "RUN",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "TIME",
    r"\w+day, \w+ \d+, \d{4}": "DAY",
    r" +(\d+ m )?[\d.]+ m?s\b": " DURATION",
    r"\"question\": .*": "CUT",
    r"(?m) +$": "",
}
"""IDs, times and text that is truncated after a date of variable length."""


def masked(printed: str) -> str:
    for pattern, mask in MASKS.items():
        printed = re.sub(pattern, mask, printed)
    return printed.strip()


def printed_by(name: str, **variables: str) -> str:
    """Run a program as a reader would, and return its output."""
    ran = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=EXAMPLES.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_program_is_shown() -> None:
    """There are six programs; the other files are their service and a tool server."""
    programs = {path.stem for path in EXAMPLES.glob("*.py")}

    assert len(README) == 6
    assert set(README) == programs - {"local_service", "inventory_server"}


@pytest.mark.parametrize(
    "name",
    [
        "case",
        *(pytest.param(each, marks=pytest.mark.proof) for each in README if each != "case"),
    ],
)
def test_a_program_prints_what_the_readme_shows(name: str, module_database_url: str) -> None:
    """Each program starts its own service; agents use recorded replies of a real model."""
    printed = printed_by(name, DATABASE_URL=module_database_url)

    assert masked(printed) == masked(README[name])


def exchanges(recording: Path) -> list[dict[str, Any]]:
    """Return the exchanges of a recording without run IDs and times."""
    lines = map(json.loads, recording.read_text().splitlines()[1:])
    kept = ("purpose", "request_hash", "reply")
    return sorted(({name: line[name] for name in kept} for line in lines), key=json.dumps)


async def test_a_service_records_what_its_models_reply(
    module_database_url: str, tmp_path: Path
) -> None:
    """Recording the replayed chat gives the same recording."""
    first, again = EXAMPLES / "recordings" / "chat.jsonl", tmp_path / "again.jsonl"
    settings = {
        "MODELS_SMALL_PROVIDER": "recorded",
        "MODELS_SMALL_RECORDING": str(first),
        "MODELS_SMALL_MODEL": json.loads(first.read_text().splitlines()[0])["models"][0]["model"],
    }
    options = ("--record", str(again))
    async with ServiceProcess(module_database_url, *options, settings=settings) as service:
        printed = await asyncio.to_thread(printed_by, "chat", CASEWORKER_URL=service.url)
        assert await service.child.terminate() == 0

    assert masked(printed) == masked(README["chat"])
    assert exchanges(again) == exchanges(first)
