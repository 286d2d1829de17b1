"""How the fake provider treats requests: steps, and the prompts that they match."""

import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

Cut = Literal["before", "middle"]

DEFAULT_PLAN: dict[str, Any] = {"actions": [{"tool": "respond", "args": {"answer": "42"}}]}
"""The default answer to a prompt with a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The treatment of one request; the defaults give a quick and healthy answer."""

    text: str | None = None
    """The text of the reply."""
    plan: Any = None
    """A JSON value that becomes the reply's text."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    """Additional response headers, such as ``{"retry-after": "1"}``."""
    delay_seconds: float = 0
    """Seconds before the answer."""
    hang: bool = False
    """Send nothing until released."""
    cut: Cut | None = None
    """Drop the connection before the response, or half-way through its body."""
    raw_body: str | None = None
    """Raw body sent instead of the JSON document or stream: broken and captured bodies."""
    omit_usage: bool = False
    tokens_in: int | None = None
    """Input tokens; None counts them from the prompt, and output tokens from the text."""
    tokens_out: int | None = None
    tokens_cached: int = 0
    tokens_cache_written: int = 0
    """Input tokens written to the cache, where the protocol counts them."""
    tokens_cache_written_1h: int = 0
    tokens_reasoning: int = 0
    finish_reason: str = "stop"
    """For a response, ``incomplete`` and ``failed`` are its status."""
    response_id: str = "resp_fake"
    """ID of the reply, where the protocol can refer to it."""
    dribble_seconds: float | None = None
    """Seconds between single bytes of the body."""
    gzip: bool = False
    """Compress the body, regardless of the request."""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    """Tool calls of the reply next to its text: ``id``, ``name``, ``arguments`` as text."""
    thinking: str | None = None
    signature: str = "signed-by-fake"
    """The signature of the thinking, where the protocol has one."""
    chunk_chars: int = 8
    """Characters in each event of a stream, for texts and arguments."""
    chunk_seconds: float = 0
    """Seconds before each event of a stream except the first."""
    after_events: int | None = None
    """The number of stream events before the action in ``then``."""
    then: Literal["hold", "cut", "end", "fail"] = "hold"
    """The action after ``after_events``.

    Wait until released, drop the connection, end the response normally, or send an error instead of
    the rest.
    """

    def reply_text(self, question: str | None) -> str:
        """Return the text of the reply to a prompt with ``question``."""
        if self.text is not None:
            return self.text
        if self.plan is not None:
            return json.dumps(self.plan)
        if self.tool_calls:
            return ""
        return json.dumps(DEFAULT_PLAN) if question is not None else "ok"

    @property
    def breaks_off(self) -> bool:
        """Whether a stream stops before its end."""
        return self.after_events is not None and self.then != "hold"


@dataclass(slots=True, kw_only=True)
class Script:
    """Steps for the prompts that contain ``marker``, one step per request, in order."""

    marker: str
    steps: list[Step]
    model: str | None = None
    """The model that requests must use; None allows any."""
    repeat_last: bool = False
    """Repeat the last step after all steps are used, instead of the default."""
    used: int = 0

    def matches(self, prompt: str, model: str) -> bool:
        """Return whether a request matches this script and a step is left."""
        left = self.used < len(self.steps) or (self.repeat_last and bool(self.steps))
        return left and self.marker in prompt and self.model in (None, model)

    def take(self) -> Step:
        """Return the step of the next request."""
        step = self.steps[min(self.used, len(self.steps) - 1)]
        self.used += 1
        return step


@dataclass(slots=True)
class Rate:
    """A rate limit: a burst, and then a number of requests a second."""

    burst: float
    per_second: float
    _left: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._at = self.burst, time.monotonic()

    def allows(self) -> bool:
        """Count a request; return whether it is within the limit."""
        now = time.monotonic()
        self._left = min(self.burst, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


TOO_MANY = Step(status=429, headers={"retry-after": "1"})


class Playbook:
    """All scripts of a test and the default; the newest matching script wins."""

    def __init__(self) -> None:
        self._scripts: list[Script] = []
        self.default = Step()

    def add(self, script: Script) -> None:
        """Put a script in front of the older ones."""
        self._scripts.insert(0, script)

    def next_step(self, prompt: str, model: str) -> tuple[Step, str | None]:
        """Return the step for a request, and the marker of its script."""
        for script in self._scripts:
            if script.matches(prompt, model):
                return script.take(), script.marker
        return self.default, None
