"""Redaction of payloads in traces: prompts, arguments and results.

A request is redacted when the call starts, and stored in redacted form. A reply is stored unchanged
in the journal, because a resumed run needs it; it is redacted when a client reads it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from caseworker.platform.logs.redaction import redact_beginning, redact_text, redact_value

PayloadMode = Literal["redacted", "none", "full"]
"""How payloads are shown. ``redacted``: without secrets and cut to a maximum length. ``none``: not
at all. ``full``: unchanged."""

MAX_CHARS = 20_000
"""Default maximum length of one request or reply, in characters."""

_REMEMBERED_TEXTS = 128
_MESSAGE_CHARS = 10
"""Work for a message without text, in characters that could be redacted instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The displayable request and reply of one call or step."""

    request: Any = None
    reply: Any = None


NOTHING_KEPT: Mapping[str, Payload] = MappingProxyType({})
"""Empty payloads, for a run that has none to show."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Settings for showing payloads, and the redaction that applies them."""

    mode: PayloadMode = "redacted"
    max_chars: int = MAX_CHARS
    """Maximum length of one request or reply in mode ``redacted``, in characters."""

    def display(self, value: Any, *, text_chars: int | None = None) -> Any:
        """Return the displayable form of a JSON value; None in mode ``none``.

        ``text_chars`` limits the length of each string in it.
        """
        if self.mode == "none" or value is None:
            return None
        if self.mode == "full":
            return value
        longest = self.max_chars if text_chars is None else text_chars
        return redact_value(_CharLimit(self.max_chars).of(value), max_chars=longest)

    def beginning(self, text: str, chars: int) -> str | None:
        """Return the displayable form of the first ``chars`` characters; None in mode ``none``.

        Pass ``LOOKAHEAD_CHARS`` more characters than ``chars``, so that a secret at the cut is
        detected.
        """
        if self.mode == "none" or not text:
            return None
        return text[:chars] if self.mode == "full" else redact_beginning(text, chars)

    def chars_to_redact(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of characters that :meth:`prompt` redacts and has not cached.

        Every message counts a few more.
        """
        if self.mode != "redacted":
            return 0
        budget, chars, last = self.max_chars, 0, len(messages) - 1
        for at, message in enumerate(messages):
            if budget <= 0:  # all further texts are omitted
                return chars + _MESSAGE_CHARS * (len(messages) - at)
            text = message.get("content", "")
            cached = (
                _redacted.get((text, max(budget, 0))) if _is_cached(message, at, last) else None
            )
            budget -= len(text if cached is None else cached)
            chars += _MESSAGE_CHARS + (len(text) if cached is None else 0)
            if len(message) > 2:
                rest = _chars_of(message, budget)
                budget, chars = budget - rest, chars + rest
        return chars

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the storable form of a model call's request; None in mode ``none``.

        ``messages`` have ``role``, ``content`` and optional fields such as tool calls. Parameters
        with the value None are omitted.
        """
        if self.mode == "none":
            return None
        options = {name: value for name, value in parameters.items() if value is not None}
        if self.mode == "full":
            return {"messages": [dict(message) for message in messages], **options}
        options = _CharLimit(self.max_chars).of(options)
        budget, entries, last = self.max_chars, [], len(messages) - 1
        for at, message in enumerate(messages):
            if "content" not in message:
                entries.append(dict(message))  # a reference to the call that stores the content
                continue
            role, text = message["role"], message["content"]
            is_cached = budget > 0 and _is_cached(message, at, last)
            show = _redacted_once if is_cached else redact_text
            text = show(text, max_chars=max(budget, 0))
            budget -= len(text)
            entries.append({"role": role, "content": text})
            if len(message) > 2:
                rest = {name: message[name] for name in message if name not in entries[-1]}
                entries[-1] |= redact_value(_CharLimit(budget).of(rest), max_chars=max(budget, 0))
                budget -= _chars_of(rest, budget)
        return {"messages": entries, **redact_value(options, max_chars=self.max_chars)}


@dataclass(slots=True)
class _CharLimit:
    """Limits a value to a number of characters before it is redacted.

    Once the limit is exhausted, all further strings are omitted. A string is never cut here,
    because a secret that is cut before redaction would not be recognised.
    """

    _chars_left: int

    def of(self, value: Any) -> Any:
        """Return a value up to the limit, with counts of the omitted parts."""
        if isinstance(value, str):
            if self._chars_left <= 0:
                return f"[{len(value)} characters]"
            self._chars_left -= len(value)
            return value
        if value is None or isinstance(value, int | float):
            return value
        if isinstance(value, Mapping):
            pairs: dict[str, Any] = {}
            for name, item in value.items():
                if self._chars_left <= 0:
                    return {**pairs, "...": len(value) - len(pairs)}
                self._chars_left -= len(name)
                pairs[name] = self.of(item)
            return pairs
        if isinstance(value, list | tuple):
            items: list[Any] = []
            for item in value:
                if self._chars_left <= 0:
                    return [*items, f"[{len(value) - len(items)} more items]"]
                self._chars_left -= 1
                items.append(self.of(item))
            return items
        return value


def _chars_of(message: Mapping[str, Any], limit: int) -> int:
    """Return about how many characters the fields of a message have, without its content.

    Counting stops above ``limit``, so that long fields take no longer.
    """
    waiting = [each for name, each in message.items() if name != "content"]
    chars = 0
    for value in waiting:
        chars += len(value) + 4 if isinstance(value, str | dict | list) else 4
        if chars > max(limit, 0):
            break
        if isinstance(value, dict):
            chars += sum(map(len, value))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return chars


_redacted: dict[tuple[str, int], str] = {}
"""Cache of redacted texts by text and maximum length, the least recently used first."""


def _is_cached(message: Mapping[str, Any], at: int, last: int) -> bool:
    """Return whether the redaction of a message is cached: prompts only grow from call to call."""
    return message.get("role") == "system" or at < last


def _redacted_once(text: str, *, max_chars: int) -> str:
    key = text, max_chars
    redacted = _redacted.pop(key, None)
    if redacted is None:
        redacted = redact_text(text, max_chars=max_chars)
        if len(_redacted) >= _REMEMBERED_TEXTS:
            with suppress(StopIteration, RuntimeError):  # another thread changes the cache
                _redacted.pop(next(iter(_redacted)), None)
    _redacted[key] = redacted
    return redacted


REDACTED = Payloads()
