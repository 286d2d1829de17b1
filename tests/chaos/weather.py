"""The model provider of the chaos world: a separate process that mostly answers well.

``python -m tests.chaos.weather --seed 7`` prints ``{"url": ...}``. The prompt determines the
answer: ``r-00017 <s0>`` is the place ``s0`` of a run, and ``tools=once,again;`` after it lists the
tools that the answers call in turn. The answer repeats the run's name, so a step that gets it
shows which run it came from.
"""

import argparse
import asyncio
import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.support.fake_provider.script import Playbook, Step
from tests.support.fake_provider.server import Server

PLACE = re.compile(r"(r-\d{5})[^<\n]*<([\w/-]+)>")
_TOOLS = re.compile(r"tools=([\w,]+);")
TOOL_MODEL = "tool"
"""The model name with which the tools of :mod:`tests.chaos.tools` report their calls."""
SLOWLY = "slowly"
"""Text in the prompts of slow runs, whose calls take some hundred milliseconds."""
HANGS_EACH = 60
"""One in this many answers never arrives."""

_WEATHER: Sequence[tuple[int, Mapping[str, Any]]] = (
    (70, {}),
    (12, {"delay_seconds": 0.6}),
    (4, {"status": 429, "headers": {"retry-after": "0"}}),
    (2, {"status": 500}),
    (2, {"status": 503}),
    (3, {"cut": "middle"}),
    (2, {"cut": "before"}),
    (1, {"after_events": 2, "then": "cut"}),
    (1, {"after_events": 2, "then": "fail"}),
    (1, {"after_events": 2, "then": "end"}),
)
"""The relative frequency of each change to an answer."""


class Weather(Playbook):
    """Answers prompts, with faults drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._answers = 0

    def next_step(self, prompt: str, model: str) -> tuple[Step, str | None]:
        """Return the step for a request, marked with the run, the place and the turn."""
        found = list(PLACE.finditer(prompt))
        if not found:
            return Step(), None
        name, place = found[-1].groups()
        behind = prompt[found[-1].end() :]
        tools = _TOOLS.search(behind)
        turn = behind.count("\n") if tools else 0
        if model == TOOL_MODEL:
            lost = self._random.random() < 0.05
            delay = self._random.choice((0.1, 0.6, 0.8))
            return Step(delay_seconds=delay, cut="before" if lost else None), f"{name} {place}"
        step = Step(text=name, tokens_in=self._random.randint(1, 400))
        if SLOWLY in found[-1].group():
            step = replace(step, delay_seconds=self._random.uniform(0.2, 0.5))
        if place == "case":
            step = Step(plan={"actions": [{"tool": "respond", "args": {"answer": "42"}}]})
        names = tools[1].split(",") if tools else []
        if turn < len(names):
            arguments = json.dumps({"place": f"{name} <{place}-{turn}>"})
            call = {"id": f"call-{turn}", "name": names[turn], "arguments": arguments}
            step = replace(step, text="", tool_calls=[call])
        return self._in_weather(step), f"{name} {place} {turn}"

    def _in_weather(self, step: Step) -> Step:
        self._answers += 1
        if self._answers % HANGS_EACH == HANGS_EACH // 2:
            return replace(step, hang=True)
        (changes,) = self._random.choices(
            [changes for _, changes in _WEATHER], [weight for weight, _ in _WEATHER]
        )
        step = replace(step, delay_seconds=step.delay_seconds or self._random.uniform(0, 0.15))
        return replace(step, **changes)


async def _serve(seed: int) -> None:
    server, port = await Server(Weather(seed)).listen("127.0.0.1", 0)
    async with server:
        print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)  # noqa: T201
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    asyncio.run(_serve(parser.parse_args().seed))
