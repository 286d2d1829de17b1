"""Reply parsing that all APIs share: prose, tool calls and token counts."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caseworker.core.trace.json_values import JSON
from caseworker.models.ports import Delta, Incomplete, ModelReply, TokenUsage, ToolCall

_TAGS = ("<think>", "<thinking>", "<thought>")
_TAG_STARTS = ("", "<")
_LATE_CLOSE = re.compile(r"</(?:think|thinking|thought)>[ \t]*(?:\r?\n|\Z)")
_BLANKS = re.compile(r"\s*")

Repairs = dict[str, None]
"""Ordered set of the names of repaired faults; all values are None."""


class Prose:
    """Separates answer text from thinking, including thinking that a model encloses in tags.

    Tags are recognised only at the start of the text, so that an answer may mention them.
    """

    def __init__(self, repairs: Repairs) -> None:
        self._repairs = repairs
        self.deltas: list[Delta] = []
        """The parts to stream next; the caller clears the list."""
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._buffer = ""
        """Characters that may be the start of a tag, or whitespace before one."""
        self._close = ""
        """The closing tag of the current thinking section, or "" outside of one."""
        self._had_tags = self._is_text = False

    @property
    def text(self) -> str:
        """The answer text received so far."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """The thinking text received so far."""
        return "".join(self._thinking)

    def add_thinking(self, piece: str) -> None:
        """Process a piece of thinking, and add the deltas to stream."""
        if piece:
            self._thinking.append(piece)
            self.deltas.append(Delta("thinking", piece))

    def add_content(self, piece: str) -> None:
        """Process a piece of content, which may contain thinking tags or parts of them."""
        if self._is_text and piece and not self._buffer:
            self._text.append(piece)
            self.deltas.append(Delta("content", piece))
            return
        self._buffer += piece
        while self._close or self._opens():
            before, close, after = self._buffer.partition(self._close)
            cut = len(before) if close else len(before) - _length_of_beginning(before, self._close)
            self.add_thinking(before[:cut])
            self._buffer = after if close else before[cut:]
            if not close:
                return
            self._close = ""
        if self._is_text:
            self._written()

    def end(self) -> None:
        """Add the text that was held back because it might have been part of a tag.

        A closing tag without an opening one means that the chat template opened the thinking
        section. The text before that tag was already streamed as content; from now on it counts as
        thinking.
        """
        if self._close:
            self.add_thinking(self._buffer)
        elif self._buffer.strip() or not self._had_tags:
            self._written()
        closed = None if self._had_tags else _LATE_CLOSE.search(self.text)
        if closed is not None:
            self._repairs["think_tags"] = None
            self._thinking.append(self.text[: closed.start()])
            self._text = [self.text[closed.end() :].lstrip()]

    def _opens(self) -> bool:
        """Return whether a tag opens here; False also while more input is needed to decide."""
        if self._is_text:
            return False
        bare = self._buffer.lstrip()
        tag = None
        if bare.startswith(_TAGS):
            tag = next(tag for tag in _TAGS if bare.startswith(tag))
            self._repairs["think_tags"] = None
            self._had_tags = True
            self._buffer, self._close = bare[len(tag) :], tag.replace("<", "</")
        elif bare[:1] not in _TAG_STARTS or not any(tag.startswith(bare) for tag in _TAGS):
            self._is_text = True
            self._buffer = bare if self._had_tags else self._buffer
        return tag is not None

    def _written(self) -> None:
        if self._buffer:
            self._text.append(self._buffer)
            self.deltas.append(Delta("content", self._buffer))
            self._buffer = ""


class Accumulator(ABC):
    """Builds one reply from its documents, streamed or not. Each API has a subclass."""

    def __init__(self, model: str, origin: str) -> None:
        self.has_started = False
        """Whether a part of an answer has arrived."""
        self.ended = False
        """Whether the provider has sent a finish reason."""
        self.repairs: Repairs = {}
        self.prose = Prose(self.repairs)
        self.deltas = self.prose.deltas
        """The parts of the reply to stream next; the caller clears the list."""
        self.finish_reason: str | None = None
        self.explanation = ""
        """Explanation of the end, such as a refusal."""
        self.received: list[str] = []
        """All text that has arrived, of all choices: answers, thinking, names and arguments of
        calls. Providers count its tokens as output."""
        self.received_calls = 0
        """Number of tool calls that have begun to arrive, of all choices."""
        self.tool_uses: Mapping[str, int] = {}
        """How often the provider has executed each hosted tool, by name."""
        self.is_hiding = False
        """Whether the model thinks now without showing all of it."""
        self.has_final_counts = False
        """Whether the provider has sent the counts of the whole reply."""
        self.state: dict[str, Any] = {}
        """Data that the provider expects back in later requests."""
        self.origin = origin
        self._model = model
        self._id = ""

    @abstractmethod
    def add(self, document: Mapping[str, Any]) -> None:
        """Process one document, and add the parts of the reply in it to ``deltas``."""

    @abstractmethod
    def reply(self) -> ModelReply | None:
        """Return the reply; None if no answer has arrived."""

    @abstractmethod
    def counted(self, *, so_far: bool = False) -> TokenUsage | None:
        """Return the provider's counts; None if it sent none.

        With ``so_far`` they may lack the output: Anthropic counts the input at the beginning.
        """

    def note_identity(self, document: Mapping[str, Any]) -> None:
        """Read the reply ID and the model name from a document."""
        self._id = self._id or str(document.get("id") or "")
        if isinstance(model := document.get("model"), str) and model:
            self._model = model

    def finished(
        self,
        calls: "Sequence[WrittenCall]",
        incomplete: Incomplete | None,
        *,
        text: str | None = None,
    ) -> ModelReply:
        """Build the reply; ``text``, if given, replaces the accumulated text."""
        if not (self.ended or incomplete) and any(not one.arguments.strip() for one in calls):
            incomplete = Incomplete.LENGTH  # nothing confirms that the arguments are complete
        parsed_calls, signatures = tool_calls(
            calls, complete=incomplete is None, seed=self._id, repairs=self.repairs
        )
        written = self.prose.text if text is None else text
        if incomplete is None and not written.strip() and not parsed_calls:
            incomplete = Incomplete.EMPTY
        state = {**self.state, "calls": signatures} if signatures else self.state
        return ModelReply(
            text=written,
            model=self._model,
            usage=self.counted(),
            finish_reason=self.finish_reason,
            incomplete=incomplete,
            incomplete_reason=(self.explanation or None) if incomplete is not None else None,
            tool_calls=parsed_calls,
            thinking=self.prose.thinking,
            provider_state={"provider": self.origin, **state} if state else None,
            repairs=tuple(self.repairs),
        )


def _length_of_beginning(text: str, tag: str) -> int:
    """Return how many characters at the end of a text may be the start of a tag."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


@dataclass(slots=True)
class WrittenCall:
    """A tool call as received, in fragments."""

    id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list)
    index: int | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """Provider data to send back with this call in the next request."""

    @property
    def arguments(self) -> str:
        """The arguments: all received fragments joined."""
        return "".join(self.fragments)


def tool_calls(
    written: Sequence[WrittenCall], *, complete: bool, seed: str, repairs: Repairs
) -> tuple[tuple[ToolCall, ...], dict[str, Any]]:
    """Return the tool calls with unique IDs, and the provider data to send back, keyed by ID.

    If the answer is complete, malformed arguments are repaired to an object where possible. If it
    is incomplete, they stay unchanged. ``seed`` makes generated IDs differ between replies.
    """
    calls, state, seen = dict[str, ToolCall](), dict[str, Any](), set[tuple[str, str, str]]()
    for call in written:
        for arguments in _read(call, complete=complete, repairs=repairs):
            same = (call.id, call.name, arguments)
            if call.id and same in seen:
                repairs["call_repeated"] = None
                continue
            seen.add(same)
            call_id = call.id
            if not call_id or call_id in calls:
                repairs["call_id_repeated" if call_id else "call_id_missing"] = None
                call_id = _new_id(f"{seed}/{len(calls)}", calls)
            if not call.name.strip():
                repairs["call_name_missing"] = None
            calls[call_id] = ToolCall(id=call_id, name=call.name, arguments=arguments)
            if call.more:
                state[call_id] = call.more
    return tuple(calls.values()), state


def _new_id(seed: str, used_ids: Mapping[str, Any]) -> str:
    call_id = f"call_{hashlib.sha256(seed.encode(errors='replace')).hexdigest()[:16]}"
    return _new_id(f"{seed}+", used_ids) if call_id in used_ids else call_id


def _read(call: WrittenCall, *, complete: bool, repairs: Repairs) -> list[str]:
    """Return the arguments of a call; several if the model wrote several objects in one call."""
    written = call.arguments
    if not complete:
        return [written]
    if not written.strip():
        repairs["arguments_missing"] = None
        return ["{}"]
    documents = _objects(written)
    if len(documents) > 1:  # some endpoints first send an empty object and then the arguments
        documents = [one for one in documents if json.loads(one)] or documents[:1]
        if len(documents) == 1:
            return documents
    if len(documents) < 2:
        return [written]
    texts = dict.fromkeys(documents)
    repairs["call_repeated" if len(texts) < len(documents) else "calls_joined"] = None
    return list(texts)


def is_object(text: str) -> bool:
    """Return whether a text is exactly one JSON object."""
    return len(_objects(text)) == 1


def _objects(text: str) -> list[str]:
    """Return the JSON objects that a text consists of; empty if it contains anything else."""
    objects, at = list[str](), 0
    try:
        while (at := _BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, end = JSON.raw_decode(text, at)
            if not isinstance(value, dict):
                return []
            objects.append(text[at:end])
            at = end
    except (ValueError, RecursionError):
        return []
    return objects


def joined_text(value: Any) -> str:
    """Return the text in a string, or the joined texts in a list or mapping of message parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(joined_text, value))
    if isinstance(value, dict):
        return joined_text(value.get("text", value.get("content", "")))
    return ""


def texts_below(value: Any, is_written: Callable[[str], bool]) -> Iterator[str]:
    """Yield the texts in a part of a reply; ``is_written`` is whether the model writes a field."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from texts_below(each, is_written)
    elif isinstance(value, dict):
        for name in filter(is_written, value):
            yield from texts_below(value[name], is_written)
