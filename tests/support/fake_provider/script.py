"""What the fake provider does with a request: steps, and which of them a prompt meets."""

import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

Cut = Literal["before", "middle"]

DEFAULT_PLAN: dict[str, Any] = {"actions": [{"tool": "respond", "args": {"answer": "42"}}]}
"""What a prompt that carries a question is answered with unless a test says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The treatment of one request. The defaults together are a quick and healthy answer."""

    text: str | None = None
    """The reply's text."""
    plan: Any = None
    """A JSON value that becomes the reply's text."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    """Added to the response, such as ``{"retry-after": "1"}``."""
    delay_seconds: float = 0
    """How long the provider thinks before it answers."""
    hang: bool = False
    """Say nothing until released."""
    cut: Cut | None = None
    """Drop the connection instead of a response, or half-way through its body."""
    raw_body: str | None = None
    """Sent as it is in place of the JSON document or the stream: broken and captured bodies."""
    omit_usage: bool = False
    tokens_in: int | None = None
    """Counted from the prompt when None; so are the output tokens from the text."""
    tokens_out: int | None = None
    tokens_cached: int = 0
    tokens_reasoning: int = 0
    finish_reason: str = "stop"
    dribble_seconds: float | None = None
    """Send the body byte by byte with this pause in between."""
    gzip: bool = False
    """Compress the body, whatever the client asked for."""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    """Calls that the reply asks for beside its text: ``id``, ``name``, ``arguments`` as text."""
    thinking: str | None = None
    signature: str = "signed-by-fake"
    """Of the thinking, where the protocol has one."""
    chunk_chars: int = 8
    """How many characters an event of a stream brings, of texts and of arguments alike."""
    chunk_seconds: float = 0
    """How long the provider waits before each event of a stream but the first."""
    after_events: int | None = None
    """After how many events of a stream it does what ``then`` says."""
    then: Literal["hold", "cut", "end", "fail"] = "hold"
    """Wait until released, drop the connection, end the response as if it were whole, or send an
    error in place of the rest."""

    def reply_text(self, question: str | None) -> str:
        """The text of the reply to a prompt that carries ``question``."""
        if self.text is not None:
            return self.text
        if self.plan is not None:
            return json.dumps(self.plan)
        if self.tool_calls:
            return ""
        return json.dumps(DEFAULT_PLAN) if question is not None else "ok"

    @property
    def breaks_off(self) -> bool:
        """Whether a stream does not come to its end."""
        return self.after_events is not None and self.then != "hold"


@dataclass(slots=True, kw_only=True)
class Script:
    """Steps for the prompts that contain ``marker``, one step a request, in order."""

    marker: str
    steps: list[Step]
    model: str | None = None
    """Only requests for this model; None: any."""
    repeat_last: bool = False
    """Keep to the last step when the steps are used up, instead of the default."""
    used: int = 0

    def matches(self, prompt: str, model: str) -> bool:
        """Whether a request belongs to this script and the script has something left to say."""
        left = self.used < len(self.steps) or (self.repeat_last and bool(self.steps))
        return left and self.marker in prompt and self.model in (None, model)

    def take(self) -> Step:
        """The step of the next request."""
        step = self.steps[min(self.used, len(self.steps) - 1)]
        self.used += 1
        return step


@dataclass(slots=True)
class Rate:
    """How often the provider lets itself be asked: a burst, and then so many requests a second."""

    burst: float
    per_second: float
    _left: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._at = self.burst, time.monotonic()

    def allows(self) -> bool:
        """Count a request, unless it is one too many."""
        now = time.monotonic()
        self._left = min(self.burst, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


TOO_MANY = Step(status=429, headers={"retry-after": "1"})


class Playbook:
    """All scripts of a test and the default behind them; the newest matching script wins."""

    def __init__(self) -> None:
        self._scripts: list[Script] = []
        self.default = Step()

    def add(self, script: Script) -> None:
        """Put a script in front of the older ones."""
        self._scripts.insert(0, script)

    def next_step(self, prompt: str, model: str) -> tuple[Step, str | None]:
        """The step for a request, and the marker of the script it came from."""
        for script in self._scripts:
            if script.matches(prompt, model):
                return script.take(), script.marker
        return self.default, None
