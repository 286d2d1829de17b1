"""Random agents, whole and interrupted: events are in order, and no call is lost or repeated."""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.budget.budget import Budget
from caseworker.models.ports import Incomplete, ModelReply, ModelRequest, TokenUsage, ToolCall
from caseworker.runs.run import EventRecord, RunStatus
from tests.property.agent_stories import WHY, AgentRun, Model, play_agent_run, reply_of, turn_of
from tests.support.event_log import event_problems
from tests.support.graph_invariants import (
    stored_steps,
    unasked_calls,
    unlike_journal,
    violations,
)
from tests.support.memory_rows import journal_of
from tests.support.runs import KEY, loop
from tests.support.seeded_loop import run
from tests.support.seeds import seeds

_LETTERS = {
    "turn_start": "<",
    "thinking": "c",
    "content_chunk": "c",
    "usage": "u",
    "tool_call_start": "(",
    "tool_call_end": ")",
    "turn_end": ">",
}
WHOLE = frozenset(_LETTERS) - {"thinking", "content_chunk"}
"""Events that occur once, whichever process executes the run."""


@pytest.mark.req("003/FR3.1", "003/FR3.2", "003/FR2.5")
@given(seed=st.integers(0, 2**32))
def test_events_of_agents_come_in_order_and_tell_everything(seed: int) -> None:
    """Each call has one start and one end, and the events contain the whole text."""
    agent_run, story = play_agent_run(seed)

    assert [*problems(agent_run), *story.leftover] == []
    if agent_run.final.status is RunStatus.FAILED:
        assert agent_run.final.stop is not None
        assert agent_run.final.stop["error_class"] == "ModelAnswerIncomplete"
        assert agent_run.final.result is not None
        found = agent_run.final.result["outputs"]["a"]["result"]
        assert (found["terminate_reason"], found["incomplete"] in WHY) == ("incomplete", True)
    else:
        assert agent_run.final.status in (RunStatus.COMPLETED, RunStatus.HALTED)
    for path, log in _by_path(agent_run.events).items():
        shown = "".join(_LETTERS[event.type] for event in log)
        assert re.fullmatch(r"(?:<(?:c*u){1,2}[()]*>)*(?:<c*>)?", shown), (path, shown)


@pytest.mark.req("003/resume", "003/FR3.4", "003/NFR2.2")
@seeds(fast=6, proofs=100)
def test_every_promise_holds_for_an_agent_resumed_by_another_process(seeds: Iterable[int]) -> None:
    """No finished call is made again, and a client sees every event once."""
    for seed in seeds:
        uninterrupted, peaceful = play_agent_run(seed)
        draw = random.Random(seed)
        for before in draw.sample(range(peaceful.steps), min(6, peaceful.steps)):
            agent_run, story = play_agent_run(seed, before_step=before, losses=draw.choice([1, 2]))
            found = [*problems(agent_run), *_differences(agent_run, uninterrupted), *story.leftover]
            assert found == [], f"seed {seed}, step {before}: {found}"


def test_the_runs_cover_every_kind_of_interruption() -> None:
    """Many runs are interrupted within answers and between calls of a turn."""
    seen = Counter[str]()
    for seed in range(24):
        _, peaceful = play_agent_run(seed)
        agent_run, _ = play_agent_run(
            seed, before_step=random.Random(seed).randrange(peaceful.steps)
        )
        seen["interrupted"] += agent_run.interrupted
        seen["replayed"] += any(agent_run.ended_before)
        seen["halted"] += agent_run.final.status is RunStatus.HALTED
        offsets = [e.data["offset"] for e in agent_run.events if e.type == "content_chunk"]
        seen["written anew"] += any(a >= b for a, b in pairwise(offsets))
        seen["failed"] += agent_run.final.status is RunStatus.FAILED
        seen["inner"] += any("tool" in str(e.step_id) for e in agent_run.events)

    assert seen["interrupted"] > 12
    wanted = ("replayed", "halted", "failed", "written anew", "inner")
    assert min(seen[kind] for kind in wanted) >= 3, seen


def problems(agent_run: AgentRun) -> Iterator[str]:
    """Yield each violated promise."""
    most, usage = agent_run.budget.max_llm_calls_small, agent_run.final.usage or {}
    if most is not None and usage.get("llm_calls_small", 0) > most:
        yield f"{usage} was used"
    yield from event_problems(agent_run.events, agent_run.final.status)
    row = agent_run.store.rows[KEY]
    stored = {node_id: record.node for node_id, record in row.calls.items()}
    yield from unasked_calls(row.calls.values())
    for snapshot in row.snapshots:
        yield from violations(snapshot)
        yield from unlike_journal(snapshot, stored)
    for path, log in _by_path(agent_run.events).items():
        yield from _about_turns(agent_run, path, log)
    for number, ended in enumerate(agent_run.ended_before, start=2):
        for made, process in agent_run.external_calls:
            kind, _, about = made.partition(" ")
            key = about if kind == "model" else _key_of_tool(about)
            if process >= number and key in ended:
                yield f"{made} was repeated by process {process}"


def _about_turns(agent_run: AgentRun, path: str, log: Sequence[EventRecord]) -> Iterator[str]:
    once = Counter(
        (event.type, event.data["turn_number"], str(_which(event)))
        for event in log
        if event.type in WHOLE
    )
    for event, count in once.items():
        if count > 1 + (
            event[0] == "usage" and _is_empty(agent_run, _call(agent_run, path, event[1], log))
        ):
            yield f"{path}: {event} came {count} times"
    for kind, turn, which in once:
        other = {"turn_start": "turn_end", "tool_call_start": "tool_call_end"}.get(kind)
        if other is not None and (other, turn, which) not in once:
            yield f"{path}: {kind} {turn} {which} has no end"
        if kind == "usage":
            call = _call(agent_run, path, turn, log)
            again = f"{call}/empty"
            if _is_empty(agent_run, call) and f"model {again}" in dict(agent_run.external_calls):
                call = again
            said = reply_of(agent_run.seed, call)
            for part, text in (("thinking", said.thinking), ("content_chunk", said.text)):
                if _text(log, part, turn) != text:
                    yield f"{path}: the {part} of turn {turn} is {_text(log, part, turn)!r}"


def _call(agent_run: AgentRun, path: str, turn: int, log: Sequence[EventRecord]) -> str:
    """Return the path of the model call that starts a turn."""
    last = any(e.data.get("last_answer") for e in log if e.data["turn_number"] == turn)
    call = f"{path}/{'wrap_up' if last else f'turn/{turn}'}"
    return f"{call}/last" if f"model {call}/last" in dict(agent_run.external_calls) else call


def _is_empty(agent_run: AgentRun, call: str) -> bool:
    return reply_of(agent_run.seed, call).incomplete is Incomplete.EMPTY


def _which(event: EventRecord) -> Any:
    called = event.data.get("tool_call")
    return called["id"] if called else event.data.get("tool_call_id")


def _text(log: Sequence[EventRecord], kind: str, turn: int) -> str:
    """Return the text that a client shows; a part with an earlier offset replaces the rest."""
    text = ""
    for event in log:
        if event.type == kind and event.data["turn_number"] == turn:
            assert event.data["offset"] <= len(text), "there is a gap"
            text = text[: event.data["offset"]] + event.data["content"]
    return text


def _differences(agent_run: AgentRun, uninterrupted: AgentRun) -> Iterator[str]:
    if agent_run.budget.max_llm_calls_small is not None:
        return  # which call is the last one may depend on timing
    if (agent_run.final.status, agent_run.final.result) != (
        uninterrupted.final.status,
        uninterrupted.final.result,
    ):
        yield f"it ended as {agent_run.final.status} with {agent_run.final.result}"
    kinds = [
        Counter((e.type, e.step_id) for e in each.events if e.type in WHOLE)
        for each in (agent_run, uninterrupted)
    ]
    if kinds[0] != kinds[1]:
        yield f"its events are {kinds[0] - kinds[1]} more and {kinds[1] - kinds[0]} less"
    steps = [stored_steps(journal_of(each.store.rows[KEY])) for each in (agent_run, uninterrupted)]
    if steps[0] != steps[1]:
        yield f"its steps are {steps[0]}, not {steps[1]}"
    usage = [each.final.usage and each.final.usage["turns"] for each in (agent_run, uninterrupted)]
    if usage[0] != usage[1]:
        yield f"it has used {usage[0]} turns, not {usage[1]}"


def _by_path(events: Sequence[EventRecord]) -> dict[str, list[EventRecord]]:
    found: dict[str, list[EventRecord]] = {}
    for event in events:
        if event.type in _LETTERS:
            found.setdefault(str(event.step_id), []).append(event)
    return found


def _key_of_tool(about: str) -> str:
    """Return the key of the tool call at a position of a model's answer."""
    turn, _, number = about.rpartition("/")
    return f"{turn_of(turn)}/tool/{int(number) + 1}"


class _Slow(AgentRun):
    """An agent that would run for a minute, with a limit of ten seconds."""

    @property
    def budget(self) -> Budget:
        return Budget()

    def record_call(self, call: str) -> None:
        super().record_call(call)
        if not self.interrupted:
            loop().call_later(7, self.strike)

    def _graph(self) -> dict[str, Any]:
        agent = {"name": "slow", "prompt": {}, "limits": {"timeout_ms": 10_000}}
        step = {"id": "a", "type": "agent", "data": {"agent": agent}}
        return {"steps": [step], "edges": []}


@pytest.mark.req("003/FR2.2", "003/resume")
@pytest.mark.parametrize("seed", [0, 1])
def test_the_time_of_an_agent_does_not_begin_anew_in_another_process(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After seven seconds in a process that is killed or shut down, the next one has three."""

    async def complete(self: Model, model: str, request: ModelRequest) -> ModelReply:
        self._agent_run.record_call("model")
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(Model, "complete", complete)
    agent_run = _Slow(seed)
    story = run(agent_run.play, seed)

    assert story.leftover == ()
    assert (agent_run.interrupted, agent_run.final.status) == (1, RunStatus.HALTED)
    assert agent_run.final.result is not None
    assert agent_run.final.result["outputs"]["a"]["result"]["terminate_reason"] == "timeout"
    assert agent_run.final.usage is not None
    assert agent_run.final.usage["seconds"] == pytest.approx(10, abs=1.5)


class _Counted(AgentRun):
    """An agent whose sub-agent would call tools for ever, and is interrupted after three."""

    limits: Mapping[str, Any]

    @property
    def budget(self) -> Budget:
        return Budget()

    @property
    def tools(self) -> set[str]:
        """The tool calls of the sub-agent, by their keys."""
        return {what for what, _ in self.external_calls if what.startswith("tool")}

    def record_call(self, call: str) -> None:
        super().record_call(call)
        if self.interrupted < self.losses and len(self.tools) == 3:
            self.strike()

    def _graph(self) -> dict[str, Any]:
        inner = {"name": "inner", "prompt": {}, "tools": ["reads"], "limits": self.limits}
        agent = {"name": "outer", "prompt": {}, "tools": [{"agent": inner}]}
        step = {"id": "a", "type": "agent", "data": {"agent": agent}}
        return {"steps": [step], "edges": []}


@pytest.mark.req("003/FR2.2", "003/resume")
@pytest.mark.parametrize(
    "limits",
    [
        {"max_turns": 4},
        *({"budget": {f"max_{each}": 5}} for each in ("tool_calls", "turns", "llm_calls_small")),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_limits_of_a_sub_agent_do_not_begin_anew_in_another_process(
    seed: int, limits: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process makes the calls that the lost one has left of the limit, and no more."""

    async def complete(self: Model, model: str, request: ModelRequest) -> ModelReply:
        assert request.origin is not None
        call, usage = request.origin.call, TokenUsage(tokens_in=10, tokens_out=5)
        self._agent_run.record_call(f"model {call}")
        name, about = ("reads", "about") if call.count("turn") > 1 else ("inner", "input")
        if name == "inner" and any(message.role == "tool" for message in request.messages):
            return ModelReply(text="done", model="m", usage=usage)
        wanted = ToolCall(id=call, name=name, arguments=json.dumps({about: call}))
        return ModelReply(text="", model="m", usage=usage, tool_calls=(wanted,))

    monkeypatch.setattr(Model, "complete", complete)
    uninterrupted, agent_run = (_Counted(seed, losses) for losses in (0, 1))
    for each in (uninterrupted, agent_run):
        each.limits = limits
        assert run(each.play, seed).leftover == ()

    assert (uninterrupted.interrupted, agent_run.interrupted) == (0, 1)
    assert 3 <= len(uninterrupted.tools) < 6
    calls = len(uninterrupted.tools)
    assert calls - 1 <= len(agent_run.tools) <= calls  # a call in flight at the loss counts, too
