"""The texts and token counts of an agent's run, computed from its events.

The log is the only state. The same events always give the same parts, so a stream can be resumed at
any event of it, by any process.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from caseworker.core.budget.stops import StopCause
from caseworker.engine.events import CONTENT_CHUNK, USAGE
from caseworker.gateway.refusals import Refusal, refusal_of
from caseworker.nodes.templates import compact
from caseworker.runs.kinds import AGENT_STEP
from caseworker.runs.run import EventRecord, Run, RunKey, RunStatus
from caseworker.runs.service import RunService

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of the agent."""

    index: int
    """Number of the message to which the text is added, from 0. A higher number than before starts
    the next message."""
    text: str


@dataclass(slots=True)
class Transcript:
    """The texts of the agent, one message for each turn with a text."""

    texts: list[str] = field(default_factory=list)
    tokens_in: int = 0
    tokens_out: int = 0
    _turn: Any = None
    _current: str = ""
    """Text of the turn so far. It may be shorter than the message that was sent, because a repeated
    model call writes its answer again."""
    _is_open: bool = False
    """Whether the turn has a message."""

    def read(self, events: Iterable[EventRecord]) -> Iterable[Delta]:
        """Yield the texts that events add."""
        for event in events:
            if event.type == USAGE:
                self.tokens_in += event.data["tokens_in"]
                self.tokens_out += event.data["tokens_out"]
            elif event.type == CONTENT_CHUNK and event.step_id == AGENT_STEP:
                yield from self._written(event.data)

    def finish(self, run: Run) -> Iterable[Delta]:
        """Yield the part of the answer that was not streamed."""
        answer = answer_of(run)
        if not answer or (self.texts and self.texts[-1] == answer):
            return
        if not (self.texts and answer.startswith(self.texts[-1])):
            self.texts.append("")
        yield from self._grown(answer)

    def _written(self, data: Mapping[str, Any]) -> Iterable[Delta]:
        if data["turn_number"] != self._turn:
            self._turn, self._current, self._is_open = data["turn_number"], "", False
        self._current = text = self._current[: data["offset"]] + data["content"]
        if not text:
            return
        streamed = self.texts[-1] if self._is_open else None
        if streamed is not None and streamed.startswith(text):
            return  # an answer that is written again, so far with the same text
        if streamed is None or not text.startswith(streamed):
            self._is_open = True
            self.texts.append("")
        yield from self._grown(text)

    def _grown(self, text: str) -> Iterable[Delta]:
        more = text[len(self.texts[-1]) :]
        self.texts[-1] = text
        yield Delta(len(self.texts) - 1, more)


def answer_of(run: Run) -> str:
    """Return the text of a run's answer; empty without one."""
    result = run.result or {}
    output = result.get("output")
    if isinstance(raw := result.get("raw_content"), str) and raw:
        return raw
    return output if isinstance(output, str) else "" if output is None else compact(output)


def model_of(run: Run) -> str:
    """Return the name of the agent of a run, with its version if it is registered."""
    ref = run.request.definition_ref
    if ref is None:
        return "agent"
    return ref.name if ref.version is None else f"{ref.name}@{ref.version}"


def failure_of(run: Run) -> Refusal | None:
    """Return why a run that ended has no complete answer; None if it has completed."""
    if run.status is RunStatus.COMPLETED:
        return None
    about = f" (run {run.key.run_id})"
    cause = StopCause.from_dict(run.stop) if run.stop else None
    if run.status is RunStatus.FAILED:
        message = cause.message if cause is not None else "The run failed."
        code = (cause and cause.error_class) or "run_failed"
        return Refusal(status=502, code=code, message=message + about)
    if cause is None:
        return Refusal(
            code=run.status.value, message=f"The run was {run.status}.{about}", is_stop=True
        )
    refusal = refusal_of(cause)
    return replace(refusal, message=refusal.message + about)


async def transcript_of(runs: RunService, run: Run) -> Transcript:
    """Read the events of a run so far."""
    transcript = Transcript()
    async for events in event_pages(runs, run.key):
        for _ in transcript.read(events):
            pass
    if run.finished:
        for _ in transcript.finish(run):
            pass
    return transcript


async def event_pages(runs: RunService, key: RunKey) -> AsyncIterator[list[EventRecord]]:
    """Yield the events of a run so far, in order."""
    after, events = 0, list[EventRecord]()
    while after == 0 or len(events) == _PAGE:
        events = list((await runs.events(key, after=after, limit=_PAGE)).events)
        if not events:
            return
        yield events
        after = events[-1].seq
