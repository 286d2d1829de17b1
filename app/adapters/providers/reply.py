"""What the replies of both dialects have in common: prose, calls, counts, and how they end."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.llm.ports import Delta, Incomplete, ModelReply, TokenUsage, ToolCall

_TAGS = ("<think>", "<thinking>", "<thought>")
_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"\s*")

_INCOMPLETE = {
    **dict.fromkeys(
        (
            *("length", "max_tokens", "max_output_tokens", "max_completion_tokens"),
            *("model_length", "model_context_window_exceeded"),
        ),
        Incomplete.LENGTH,
    ),
    **dict.fromkeys(
        (
            *("content_filter", "content_filtered", "safety", "recitation", "blocklist"),
            *("prohibited_content", "spii", "image_safety", "sensitive"),
            "guardrail_intervened",
        ),
        Incomplete.CONTENT_FILTER,
    ),
    "refusal": Incomplete.REFUSAL,
}
"""Finish reasons of all providers, in lower case, that say that an answer is not complete."""

FAILED = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})
"""Finish reasons, in lower case, of a provider that could not finish the answer."""


Repairs = dict[str, None]
"""The kinds of faults that were repaired, each once, in order."""


class Prose:
    """Text and thinking, told apart also where a model writes tags around its thoughts.

    Tags count at the beginning of the text alone, so that a text may speak of them.
    """

    def __init__(self, repairs: Repairs) -> None:
        self._repairs = repairs
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._held = ""
        """What may yet turn out to be a tag, or blanks before one."""
        self._state: Literal["start", "thinking", "after", "text"] = "start"
        self._close = ""

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """All thinking so far."""
        return "".join(self._thinking)

    def thought(self, piece: str) -> Iterator[Delta]:
        """Take a piece of thinking."""
        if piece:
            self._thinking.append(piece)
            yield Delta("thinking", piece)

    def said(self, piece: str) -> Iterator[Delta]:
        """Take a piece of content, which may hold tags or parts of them."""
        self._held += piece
        while self._held:
            if self._state == "text":
                yield from self._written()
            elif self._state == "thinking":
                before, close, after = self._held.partition(self._close)
                if close:
                    yield from self.thought(before)
                    self._held, self._state = after, "after"
                    continue
                keep = _length_of_beginning(self._held, self._close)
                cut = len(self._held) - keep
                ready, self._held = self._held[:cut], self._held[cut:]
                yield from self.thought(ready)
                return
            elif not self._opens():
                return

    def end(self) -> Iterator[Delta]:
        """Yield what was held back."""
        if self._state == "thinking":
            held, self._held = self._held, ""
            yield from self.thought(held)
        elif self._state == "text" or self._held.strip() or self._state == "start":
            yield from self._written()

    def _opens(self) -> bool:
        """Decide whether a tag opens; False if more has to come first."""
        bare = self._held.lstrip()
        if any(tag.startswith(bare) and tag != bare for tag in _TAGS):
            return False  # also for blanks alone
        tag = next((tag for tag in _TAGS if bare.startswith(tag)), None)
        if tag is not None:
            self._repairs["think_tags"] = None
            self._held, self._state = bare[len(tag) :], "thinking"
            self._close = tag.replace("<", "</")
        else:
            self._held = bare if self._state == "after" else self._held
            self._state = "text"
        return True

    def _written(self) -> Iterator[Delta]:
        if self._held:
            self._text.append(self._held)
            yield Delta("content", self._held)
            self._held = ""


class Accumulator(ABC):
    """Takes the documents of one reply, whole or in parts; a dialect reads them."""

    def __init__(self, model: str, origin: str) -> None:
        self.begun = False
        """Whether a part of an answer has come."""
        self.ended = False
        """Whether the provider has said why the answer ends."""
        self.repairs: Repairs = {}
        self.prose = Prose(self.repairs)
        self.origin = origin
        self._model = model
        self._id = ""

    @abstractmethod
    def add(self, document: Mapping[str, Any]) -> Iterator[Delta]:
        """Take one document and yield what it brings."""

    def end(self) -> Iterator[Delta]:
        """Yield what was held back, when nothing more comes."""
        yield from self.prose.end()

    @abstractmethod
    def reply(self) -> ModelReply | None:
        """Return the reply; None if no answer has come."""

    def named(self, document: Mapping[str, Any]) -> None:
        """Take the names of reply and model from a document."""
        self._id = self._id or str(document.get("id") or "")
        if isinstance(model := document.get("model"), str) and model:
            self._model = model

    def finished(
        self,
        calls: "Sequence[WrittenCall]",
        *,
        text: str | None,
        incomplete: Incomplete | None,
        finish_reason: str | None,
        said: str,
        usage: TokenUsage | None,
        state: Mapping[str, Any],
    ) -> ModelReply:
        """Return the reply; ``text`` takes the place of its prose.

        ``said`` is what was said about its end, ``state`` what its provider wants to see again.
        """
        made, kept = tool_calls(
            calls, complete=incomplete is None, seed=self._id, repairs=self.repairs
        )
        written = self.prose.text if text is None else text
        if incomplete is None and not written.strip() and not made:
            incomplete = Incomplete.EMPTY
        state = {**state, "calls": kept} if kept else state
        return ModelReply(
            text=written,
            model=self._model,
            usage=usage,
            finish_reason=finish_reason,
            incomplete=incomplete,
            incomplete_reason=(said or None) if incomplete is not None else None,
            tool_calls=made,
            thinking=self.prose.thinking,
            provider_state={"provider": self.origin, **state} if state else None,
            repairs=tuple(self.repairs),
        )


def _length_of_beginning(text: str, tag: str) -> int:
    """Return how many characters at the end of a text may begin a tag."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


@dataclass(slots=True)
class WrittenCall:
    """A call as it came, in fragments."""

    id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list)
    index: int | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """What its provider wants to see again with it."""

    @property
    def arguments(self) -> str:
        """All fragments."""
        return "".join(self.fragments)


def tool_calls(
    written: Sequence[WrittenCall], *, complete: bool, seed: str, repairs: Repairs
) -> tuple[tuple[ToolCall, ...], dict[str, Any]]:
    """Return the calls under unique ids, and what their provider wants to see again, by id.

    Arguments of a complete answer are made an object where that can be done; those of an incomplete
    one stay as they are. ``seed`` makes invented ids differ from reply to reply.
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


def _new_id(seed: str, taken: Mapping[str, Any]) -> str:
    made = f"call_{hashlib.sha256(seed.encode(errors='replace')).hexdigest()[:16]}"
    return _new_id(f"{seed}+", taken) if made in taken else made


def _read(call: WrittenCall, *, complete: bool, repairs: Repairs) -> list[str]:
    """Return the arguments of a call; more than one if several were written under one name."""
    written = call.arguments
    if not complete:
        return [written]
    if not written.strip():
        repairs["arguments_missing"] = None
        return ["{}"]
    documents = _objects(written)
    if len(documents) < 2:
        return [written]
    texts = dict.fromkeys(documents)
    repairs["call_repeated" if len(texts) < len(documents) else "calls_joined"] = None
    return list(texts)


def is_object(text: str) -> bool:
    """Return whether arguments are complete."""
    return len(_objects(text)) == 1


def _objects(text: str) -> list[str]:
    """Return the JSON objects that a text consists of; none if it is anything else."""
    found, at = list[str](), 0
    try:
        while (at := _BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, end = _DECODER.raw_decode(text, at)
            if not isinstance(value, dict):
                return []
            found.append(text[at:end])
            at = end
    except (ValueError, RecursionError):
        return []
    return found


def count(source: Any, *path: str) -> int | None:
    """Return a count of a document; None if there is none, or an impossible one."""
    for name in path:
        source = source.get(name) if isinstance(source, Mapping) else None
    if isinstance(source, float) and source.is_integer():
        source = int(source)
    fits = isinstance(source, int) and not isinstance(source, bool) and source >= 0
    return source if fits else None


def usage_of(
    tokens_in: int | None, tokens_out: int | None, cached: int | None, reasoning: int | None
) -> TokenUsage | None:
    """Return the counts; None if the provider has not counted."""
    if tokens_in is None or tokens_out is None or tokens_in + tokens_out == 0:
        return None
    return TokenUsage(
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=min(cached or 0, tokens_in),
        tokens_reasoning=min(reasoning or 0, tokens_out),
    )


def incomplete_of(reasons: Sequence[str | None], *, refusal: str = "") -> Incomplete | None:
    """Return what finish reasons say about an answer; None if they say that it is complete."""
    if refusal.strip():
        return Incomplete.REFUSAL
    found = (_INCOMPLETE.get(reason.lower()) for reason in reasons if reason)
    return next((each for each in found if each is not None), None)


def texts_in(value: Any) -> str:
    """Return the text of a value that is a string or a list of parts with texts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(texts_in, value))
    if isinstance(value, Mapping):
        return texts_in(value.get("text", value.get("content", "")))
    return ""
