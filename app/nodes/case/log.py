"""The log of a case: one JSON object a step, redacted (seed 002, requirements 7, 14 and 19)."""

import json
from typing import Any

from app.nodes.case.ports import Clock
from app.nodes.case.state import CaseState
from app.observability.redaction import redact_value

MAX_SUMMARY_CHARS = 300

_OURS = frozenset(
    {
        *("event", "level", "purpose", "token_usage", "attempts", "error_class", "problem"),
        *("output_summary", "failed", "metric", "passed", "checks", "stalled_rounds"),
        *("decision", "reason", "act_steps"),
    }
)
"""Details that hold only what the agent makes itself; all others are redacted."""


class CaseLog:
    """Appends to the logs of a case."""

    def __init__(self, run_id: str, state: CaseState, clock: Clock) -> None:
        self._run_id = run_id
        self._state = state
        self._clock = clock

    def add(self, step_type: str, **details: Any) -> None:
        """Log one step of the current tier; ``details`` are JSON values."""
        self._state.logs.append(
            {
                "ts": self._clock().isoformat(),
                "run_id": self._run_id,
                "tier": self._state.tier.value,
                "step_type": step_type,
                **{
                    name: value if name in _OURS else redact_value(value, name=name)
                    for name, value in details.items()
                },
            }
        )


def summary(value: Any) -> str:
    """Return the beginning of a text, or of a JSON value as text, redacted before it is cut."""
    shown = redact_value(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True)
    return text if len(text) <= MAX_SUMMARY_CHARS else f"{text[:MAX_SUMMARY_CHARS]}…"
