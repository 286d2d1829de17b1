"""What a trace keeps and shows of requests and replies: prompts, arguments, results.

A request is made fit to be shown when the call begins, and stored like that. A reply stands in the
journal as it is, because a run that is executed again takes it from there; it is made fit to be
shown when somebody asks for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from caseworker.observability.redaction import redact_beginning, redact_text, redact_value

PayloadMode = Literal["redacted", "none", "full"]
"""Without secrets and cut to a length, not at all, or as it is."""

MAX_CHARS = 20_000
"""Of one request or reply, unless it is configured otherwise."""

_REMEMBERED_TEXTS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What one call asked and what it got, as far as that may be shown; a step likewise."""

    request: Any = None
    reply: Any = None


NOTHING_KEPT: Mapping[str, Payload] = MappingProxyType({})
"""The payloads of a run of which none can be shown."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """What the configuration says of payloads."""

    mode: PayloadMode = "redacted"
    max_chars: int = MAX_CHARS
    """Of one request or reply, where they are redacted."""

    def shown(self, value: Any, *, text_chars: int | None = None) -> Any:
        """Return a JSON value as it may be shown; None if nothing may.

        ``text_chars`` is the longest that one text in it may be.
        """
        if self.mode == "none" or value is None:
            return None
        if self.mode == "full":
            return value
        longest = self.max_chars if text_chars is None else text_chars
        return redact_value(_Room(self.max_chars).of(value), max_chars=longest)

    def beginning(self, text: str, chars: int) -> str | None:
        """Return the first characters of a text as they may be shown; None if nothing may.

        ``text`` holds ``LOOKAHEAD_CHARS`` more, if there are more.
        """
        if self.mode == "none" or not text:
            return None
        return text[:chars] if self.mode == "full" else redact_beginning(text, chars)

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the request of a model as it may be kept; None if nothing may.

        ``messages`` hold ``role`` and ``content``, and what else belongs to them, such as the calls
        of tools; ``parameters`` are shown as far as they are set.
        """
        if self.mode == "none":
            return None
        given = {name: value for name, value in parameters.items() if value is not None}
        if self.mode == "full":
            return {"messages": [dict(message) for message in messages], **given}
        left, shown, last = self.max_chars, [], len(messages) - 1
        for at, message in enumerate(messages):
            if "content" not in message:
                shown.append(dict(message))  # the name of a call that stores it
                continue
            role, text = message["role"], message["content"]
            # Prompts only grow from call to call: what stands before the end is redacted once.
            known = role == "system" or at < last
            show = _redacted_once if known else redact_text
            text = show(text, max_chars=max(left, 0))
            left -= len(text)
            shown.append({"role": role, "content": text})
            if len(message) > 2:
                rest = {name: message[name] for name in message if name not in shown[-1]}
                shown[-1] |= redact_value(_Room(left).of(rest), max_chars=max(left, 0))
                left -= len(str(rest))
        given = redact_value(_Room(self.max_chars).of(given), max_chars=self.max_chars)
        return {"messages": shown, **given}


class _Room:
    """How many characters of a value are shown.

    It leaves out whole texts, from the first one on for which there is no room: a text that was
    cut before it is redacted could show a part of a secret.
    """

    __slots__ = ("_left",)

    def __init__(self, chars: int) -> None:
        self._left = chars

    def of(self, value: Any) -> Any:
        """Return a value as far as there is room for it; what is left out is counted."""
        if isinstance(value, str):
            if self._left <= 0:
                return f"[{len(value)} characters]"
            self._left -= len(value)
            return value
        if value is None or isinstance(value, int | float):
            return value
        if isinstance(value, Mapping):
            pairs: dict[str, Any] = {}
            for name, item in value.items():
                if self._left <= 0:
                    return {**pairs, "...": len(value) - len(pairs)}
                self._left -= len(name)
                pairs[name] = self.of(item)
            return pairs
        if isinstance(value, list | tuple):
            items: list[Any] = []
            for item in value:
                if self._left <= 0:
                    return [*items, f"[{len(value) - len(items)} more items]"]
                self._left -= 1
                items.append(self.of(item))
            return items
        return value


_redacted_once = lru_cache(maxsize=_REMEMBERED_TEXTS)(redact_text)

REDACTED = Payloads()
