"""Replies of OpenAI's Responses API, which clients of the gateway call with their own bodies."""

import json
from collections.abc import Mapping
from typing import Any, Final

from caseworker.models.counts import response_usage, uses_in
from caseworker.models.ports import ModelReply, TokenUsage
from caseworker.models.wires.finish_reasons import incomplete_of
from caseworker.models.wires.reply import Accumulator, WrittenCall, joined_text, texts_below

PATH: Final = "/responses"
LAST_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Types of the events that end a stream; each contains the whole response."""


class ResponseReply(Accumulator):
    """Builds a reply from one response, or from the items and the last event of its stream."""

    def __init__(self, model: str, origin: str) -> None:
        super().__init__(model, origin)
        self._items: list[Any] = []
        self._calls: list[WrittenCall] = []
        self._usage: TokenUsage | None = None
        self._shown_items = set[Any]()
        """Positions of the items whose text has arrived in parts."""

    def add(self, document: Mapping[str, Any]) -> None:
        """Process a response or an event of its stream; only whole items and responses count."""
        kind, response = document.get("type"), document.get("response")
        if isinstance(kind, str) and kind.endswith(".delta"):
            self._receive(kind, document)
        elif kind == "response.output_item.added":
            item_type = str(_type_of(document.get("item")))
            self.is_hiding = item_type in _HIDING
            self.received_calls += item_type.endswith("_call")
        elif kind == "response.output_item.done":
            item = document.get("item")
            self._items.append(item)
            self.tool_uses = uses_in(self._items)
            self.is_hiding = False
            if document.get("output_index") not in self._shown_items:
                self.received += texts_below(item, _WRITTEN.__contains__)
        elif kind in LAST_EVENTS and isinstance(response, dict):
            self._finish(response)
        elif isinstance(document.get("output"), list):
            self._finish(document)

    def reply(self) -> ModelReply | None:
        """Return the reply; None if the response has not arrived."""
        if not self.has_started:
            return None
        return self.finished(
            self._calls, incomplete_of((self.finish_reason,), refusal=self.explanation)
        )

    def counted(self, *, so_far: bool = False) -> TokenUsage | None:
        """Return the counts, which come at the end."""
        return self._usage

    def _receive(self, kind: str, event: Mapping[str, Any]) -> None:
        if isinstance(text := event.get("delta"), str) and text:
            self.received.append(text)
            self._shown_items.add(event.get("output_index"))
            self.is_hiding = self.is_hiding and "reasoning" in kind

    def _finish(self, response: Mapping[str, Any]) -> None:
        self.has_started = self.ended = True
        self.note_identity(response)
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        self.finish_reason = str(reason or response.get("status") or "completed")
        self._usage = response_usage(response, self._items)
        self.has_final_counts = self._usage is not None
        items = response.get("output")
        self.tool_uses = uses_in(items or self._items)
        if not self.received:
            self.received += texts_below(items, _WRITTEN.__contains__)
        for item in items if isinstance(items, list) and items else self._items:
            if isinstance(item, dict):
                self._item(item)

    def _item(self, item: Mapping[str, Any]) -> None:
        if item.get("type") == "reasoning":
            self.prose.add_thinking(joined_text(item.get("summary")))
        elif isinstance(called := item.get("call_id"), str):  # the client executes it
            name = joined_text(item.get("name")) or str(item.get("type"))
            written = item.get("arguments", item.get("input", item.get("action")))
            text = written if isinstance(written, str) else json.dumps(written or {})
            self._calls.append(WrittenCall(id=called, name=name, fragments=[text]))
        for part in _mappings(item.get("content")):
            self.prose.add_content(joined_text(part.get("text")))
            self.explanation += joined_text(part.get("refusal"))


_HIDING: Final = frozenset({"reasoning", "compaction"})
"""Types of items that show only a summary of the thinking, or nothing."""
_WRITTEN: Final = frozenset(
    {"content", "summary", "text", "refusal", "name", "arguments", "input", "code", "action"}
)
"""Fields of an item that the model writes."""


def _type_of(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
