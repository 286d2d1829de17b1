"""Published replies of real endpoints; see ``tests/captures/README.md``."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caseworker.models.ports import Delta, Message, ModelReply, ModelRequest
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider.virtual import Replied

FOLDER = Path(__file__).parents[3] / "captures"


@dataclass(frozen=True, slots=True)
class Capture:
    """One reply as it was published."""

    id: str
    dialect: str
    streamed: bool
    status: int
    body: bytes
    expected: Mapping[str, Any]

    def __repr__(self) -> str:
        return self.id


def captures() -> list[Capture]:
    """Read all captures."""
    lines = [
        json.loads(line)
        for file in sorted(FOLDER.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return [
        Capture(
            line["id"],
            line["dialect"],
            line["streamed"],
            line["status"],
            line["body"].encode(),
            line["expected"],
        )
        for line in lines
    ]


class Player:
    """A wire that answers every request with one reply and keeps the last request's headers."""

    def __init__(self, reply: Replied) -> None:
        self._reply = reply
        self.url = ""
        self.headers: Mapping[str, str] = {}

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, note_sent: Callable[[], None]
    ) -> Replied:
        """Return the reply."""
        self.url, self.headers = url, headers
        return self._reply

    async def aclose(self) -> None:
        """Close nothing."""


async def read(
    capture: Capture, parts: Sequence[bytes] | None = None, deltas: list[Delta] | None = None
) -> ModelReply:
    """Read a capture that arrives in these parts, by default as one part.

    Raises:
        ModelError: the reply is not an answer.
    """
    build = openai_provider if capture.dialect == "openai" else anthropic_provider
    wire = Player(Replied(tuple((capture.body,) if parts is None else parts), capture.status))
    provider = build(base_url="http://models.test", wire=wire)
    noted = [] if deltas is None else deltas
    request = ModelRequest(
        messages=(Message(role="user", content="?"),),
        on_delta=noted.append if capture.streamed else None,
    )
    return await provider.complete("asked-model", request)
