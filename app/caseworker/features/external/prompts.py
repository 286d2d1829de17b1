"""Conversations that the calls of a session have stored, and how two requests differ.

A call stores only the messages that no earlier call of its conversation has stored.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Final

from caseworker.features.external.recorded import RecordedCall
from caseworker.models.client_bodies import ClientBody
from caseworker.models.message_log import StoredPrompt

MAX_FIELDS: Final = 20
"""Number of fields that an event names at most."""
SHORT_HASH_CHARS: Final = 6
"""Length of hashes that only serve to show how two requests differ."""


class StoredPrompts:
    """The stored conversations of a session, each with the last call that continued it."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[str, str], tuple[StoredPrompt | None, str]] = {}
        """Stored messages and the key of the last call, by lane and hash of the conversation."""

    def continued(
        self, body: ClientBody, entry: RecordedCall, call_key: str
    ) -> tuple[StoredPrompt | None, Callable[[], None]]:
        """Return which messages of a body an earlier call has stored, and describe the request.

        ``call_key`` is the key of the call in the journal. A stored conversation is continued by
        one call, so that its calls are a sequence. The returned function notes that the call has
        stored the other messages.
        """
        *beginnings, conversation = ((entry.lane, each) for each in body.beginnings)
        longest = next((each for each in reversed(beginnings) if each in self._prompts), ("", ""))
        stored, after = self._prompts.pop(longest, (None, ""))
        if not entry.is_complete:
            items = body.item_hashes[beginnings.index(longest) if stored else 0 :]
            entry.content = {
                "fields": _shortened_fields(body.hashes),
                "items": " ".join(map(_shortened, items)),
                "after": after,
                "root": stored.call_key if stored else call_key,
            }

        def note_stored() -> None:
            if entry.attempt and (root := entry.content.get("root")):
                prompt = StoredPrompt(root, len(body.messages), body.hashes)
                self._prompts[conversation] = prompt, entry.key

        return stored, note_stored


def differences(
    body: ClientBody, recorded: RecordedCall, calls: Iterable[RecordedCall]
) -> list[str]:
    """Return the fields of a body that differ from those of a recorded request.

    For the conversation, it is the first message that differs. ``calls`` are all recorded calls.
    """
    fields, now = recorded.content.get("fields", {}), _shortened_fields(body.hashes)
    different = {name for name in fields | now if fields.get(name) != now.get(name)}
    contents = {each.key: each.content for each in calls}
    content, items = recorded.content, list[str]()
    while content:
        items[:0] = content["items"].split()
        content = contents.get(content["after"], {})
    pairs = zip_longest(items, map(_shortened, body.item_hashes))
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return sorted(different)[:MAX_FIELDS] + ([] if at is None else [f"{body.field}[{at}]"])


def _shortened(digest: str) -> str:
    return digest[:SHORT_HASH_CHARS]


def _shortened_fields(hashes: Mapping[str, str]) -> dict[str, str]:
    return {name: _shortened(digest) for name, digest in hashes.items()}
