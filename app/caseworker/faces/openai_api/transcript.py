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
    """The texts of the agent, one message for each turn with a text.

    A part is added in time proportional to its own length: an answer may have 100,000 parts.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    _messages: list[list[str]] = field(default_factory=list)
    """The texts in parts, as they arrived."""
    _turn: Any = None
    _sent_chars: int = 0
    """Length of the last message, in characters."""
    _written_chars: int = 0
    """Length of the turn's text so far. That text is the beginning of the last message. It may be
    shorter, because a repeated model call writes its answer again."""
    _is_open: bool = False
    """Whether the turn has a message."""

    @property
    def texts(self) -> list[str]:
        """The texts of the messages."""
        return [_joined(parts) for parts in self._messages]

    def read(self, events: Iterable[EventRecord]) -> Iterable[Delta]:
        """Yield the texts that events add."""
        for event in events:
            if event.type == USAGE:
                self.tokens_in += event.data["tokens_in"]
                self.tokens_out += event.data["tokens_out"]
            elif event.type == CONTENT_CHUNK and event.step_id == AGENT_STEP:
                yield from self._write(event.data)

    def finish(self, run: Run) -> Iterable[Delta]:
        """Yield the part of the answer that was not streamed."""
        answer, texts = answer_of(run), self.texts
        if not answer or (texts and texts[-1] == answer):
            return
        if texts and answer.startswith(texts[-1]):
            yield self._append(answer[self._sent_chars :])
        else:
            yield self._start(answer)

    def _write(self, data: Mapping[str, Any]) -> Iterable[Delta]:
        if data["turn_number"] != self._turn:
            self._turn, self._written_chars, self._is_open = data["turn_number"], 0, False
        offset, content = min(data["offset"], self._written_chars), data["content"]
        self._written_chars = offset + len(content)
        if not self._is_open:
            if content:
                self._is_open = True
                yield self._start(content)
            return
        if offset < self._sent_chars:  # the answer is written again
            streamed = _joined(self._messages[-1])
            repeated = streamed[offset : self._written_chars]
            if not content.startswith(repeated):
                yield self._start(streamed[:offset] + content)
                return
            content = content[len(repeated) :]
        if content:
            yield self._append(content)

    def _start(self, text: str) -> Delta:
        self._messages.append([])
        self._sent_chars = 0
        return self._append(text)

    def _append(self, text: str) -> Delta:
        self._messages[-1].append(text)
        self._sent_chars += len(text)
        return Delta(len(self._messages) - 1, text)


def _joined(parts: list[str]) -> str:
    """Return the text in parts, and keep it as a single one."""
    parts[:] = ["".join(parts)]
    return parts[0]


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
    """Read the events of a run that has ended; return an empty transcript of any other run.

    Clients poll responses in the background, so a poll must not cost the events of the whole run.
    """
    transcript = Transcript()
    if not run.finished:
        return transcript
    async for events in event_pages(runs, run.key):
        for _ in transcript.read(events):
            pass
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
