"""Events that an agent emits while it works: turns, answer chunks, tool calls and errors.

Every event except an answer chunk has a key that identifies it. An execution that replays a turn
therefore emits no event that is already stored. Answer chunks have no key: a repeated answer is
emitted again from offset 0. If an answer may have been emitted only in part, a replay emits the
whole answer under the key of the next event.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from caseworker.core.budget.stops import HandOver, Stop
from caseworker.engine.context import FlowContext
from caseworker.engine.events import (
    AGENT_ERROR,
    CONTENT_CHUNK,
    THINKING,
    TOOL_CALL_END,
    TOOL_CALL_START,
    TURN_END,
    TURN_START,
    USAGE,
    Event,
)
from caseworker.models.gateway import Completion
from caseworker.models.ports import Delta, ToolCall
from caseworker.nodes.agent.references import MAX_SHOWN_CHARS, MIN_CHARS, TEXT_OF, marked
from caseworker.nodes.templates import compact
from caseworker.tools.ports import ToolResult, is_failure

MERGE_SECONDS = 0.02
"""Period, in seconds, in which answer chunks are merged into one event. A chunk that arrives after
a longer pause is emitted immediately."""
CHUNK_CHARS = 2048

_KINDS: Mapping[str, str] = {"thinking": THINKING, "content": CONTENT_CHUNK}


class TurnActivity:
    """Emits the events of one turn."""

    def __init__(
        self, context: FlowContext, number: int, tool_of: Callable[[str], str] = str
    ) -> None:
        """Create the emitter of a turn; ``tool_of`` maps an offered name to its tool."""
        self._context = context
        self._tool_of = tool_of
        self._number = number
        self._stream: _Stream | None = None
        self._answer_of: str | None = None

    def start(self, *, last_answer: bool = False) -> None:
        """Emit the start of the turn, or of the final answer that follows all turns."""
        self._emit_once(TURN_START, {"last_answer": True} if last_answer else {})

    def stream(self) -> "_Stream":
        """Start a streamed answer and return a receiver for its chunks."""
        self._stream = _Stream(self._emit)
        return self._stream

    def streamed_text(self) -> str:
        """Flush the pending chunks of an interrupted answer and return its text so far.

        The text is empty if another process resumes the answer.
        """
        if self._stream is None or self.is_handed_over:
            return ""
        written, self._stream = self._stream.close(), None
        return written["content"]

    def answered(self, completion: Completion, name: str) -> None:
        """Emit an answer with its tokens and cost.

        Its thinking and text are emitted unless they were streamed completely.

        ``name`` is the name of the model call within the turn; the event keys contain it.
        """
        usage_key = f"{USAGE}|{self._number}|{name}"
        written = {"thinking": "", "content": ""}
        if self._stream is not None:
            written, self._stream = self._stream.close(), None
        for kind, text in (("thinking", completion.thinking), ("content", completion.text)):
            if written[kind] == text:
                continue
            for offset in range(0, len(text), CHUNK_CHARS):
                part = text[offset : offset + CHUNK_CHARS]
                self._emit(_KINDS[kind], {"offset": offset, "content": part}, usage_key)
        cost = completion.cost_usd
        used = {
            "tokens_in": completion.tokens_in,
            "tokens_out": completion.tokens_out,
            "cost_usd": None if cost is None else float(cost),
        }
        self._answer_of = completion.call_key
        self._emit(USAGE, used, usage_key, answer_of=completion.call_key)

    def tool_started(self, index: int, call: ToolCall) -> None:
        """Emit the start of a tool call; ``index`` is its one-based position in the turn."""
        called: dict[str, Any] = {"id": call.id, "name": self._tool_of(call.name)}
        if called["name"] != call.name:
            called["function"] = call.name
        if self._answer_of is None or len(call.arguments) < MIN_CHARS:
            called["arguments"] = marked(call.arguments)
            self._emit_once(TOOL_CALL_START, {"tool_call": called}, index)
        else:
            called["index"] = index
            about = {"tool_call": called, TEXT_OF: self._answer_of}
            self._emit_once(TOOL_CALL_START, about, index)

    def tool_ended(
        self, index: int, call: ToolCall, result: ToolResult, stored_as: str | None = None
    ) -> None:
        """Emit the end of a tool call; ``stored_as`` is the journal key of its result, if any."""
        about = {"tool_call_id": call.id, "name": self._tool_of(call.name)}
        if is_failure(result):
            about["error"] = marked(str(result["error"]))
            stored_as = None
        text = compact(result)
        if stored_as is not None and MIN_CHARS <= len(text) <= MAX_SHOWN_CHARS:
            about[TEXT_OF] = stored_as
        else:
            about["result"] = marked(text)
        self._emit_once(TOOL_CALL_END, about, index)

    def noted(self, kind: str, data: Mapping[str, Any]) -> None:
        """Emit an event of type ``kind``, unless this turn already has one of this type."""
        self._emit_once(kind, data)

    def failed(self, error_class: str, message: str) -> None:
        """Emit the error that ended the turn."""
        self._emit_once(AGENT_ERROR, {"error_class": error_class, "message": message})

    def end(self) -> None:
        """Emit the end of the turn, after the pending chunks of an interrupted answer."""
        if self._stream is not None:
            self._stream.close()
        self._emit_once(TURN_END, {})

    def stopping(self) -> AbstractContextManager[Callable[[Stop], None]]:
        """Return the context of calls that run concurrently; see :meth:`Activity.stopping`."""
        return self._context.calls.activity.stopping(self._context.path.inside())

    @property
    def is_handed_over(self) -> bool:
        """Whether another process resumes the interrupted turn, so that the turn has not ended."""
        return isinstance(self._context.token.stop, HandOver)

    def _emit_once(self, kind: str, data: Mapping[str, Any], *which: object) -> None:
        self._emit(kind, data, "|".join(map(str, (kind, self._number, *which))))

    def _emit(
        self,
        kind: str,
        data: Mapping[str, Any],
        key: str | None = None,
        answer_of: str | None = None,
    ) -> None:
        context = self._context
        if context.run.events is None:
            return
        path = context.path.text
        event = Event(
            type=kind,
            step_id=path,
            node_id=context.trace_parent,
            data={"turn_number": self._number, **data},
            once_key=None if key is None else f"{path}|{key}",
            answer_of=answer_of,
        )
        context.run.events.emit(event)


class _Stream:
    """Merges the chunks of one answer and emits them with their offset in the text."""

    def __init__(self, emit: Any) -> None:
        self._emit = emit
        self._attempt = 0
        self._emitted_parts: dict[str, list[str]] = {"thinking": [], "content": []}
        self._offsets = {"thinking": 0, "content": 0}
        self._outdated: set[str] = set()
        """Kinds shown in an earlier attempt but not yet in the current one."""
        self._waiting: list[str] = []
        self._waiting_chars = 0
        self._kind = "content"
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0

    def on_delta(self, attempt: int, delta: Delta) -> None:
        """Buffer a chunk; a new attempt restarts the answer."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._outdated |= {kind for kind, parts in self._emitted_parts.items() if parts}
            self._waiting, self._waiting_chars = [], 0
            self._emitted_parts = {"thinking": [], "content": []}
            self._offsets = {"thinking": 0, "content": 0}
        if delta.kind != self._kind:
            self._flush()
            self._kind = delta.kind
        self._waiting.append(delta.text)
        self._waiting_chars += len(delta.text)
        loop = asyncio.get_running_loop()
        if self._waiting_chars >= CHUNK_CHARS or loop.time() >= self._quiet_until:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_at(self._quiet_until, self._flush)

    def close(self) -> dict[str, str]:
        """Emit the rest; return the text shown, by kind."""
        self._flush()
        for kind in self._outdated:
            self._emit(_KINDS[kind], {"offset": 0, "content": ""})
        if self._timer is not None:
            self._timer.cancel()
        return {kind: "".join(parts) for kind, parts in self._emitted_parts.items()}

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        text, kind = "".join(self._waiting), self._kind
        self._waiting, self._waiting_chars = [], 0
        self._quiet_until = asyncio.get_running_loop().time() + MERGE_SECONDS
        self._emitted_parts[kind].append(text)
        self._outdated.discard(kind)
        for start in range(0, len(text), CHUNK_CHARS):
            part = text[start : start + CHUNK_CHARS]
            self._emit(_KINDS[kind], {"offset": self._offsets[kind], "content": part})
            self._offsets[kind] += len(part)
