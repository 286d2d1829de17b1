"""API schema for a single call of a run: its request, reply, attempts and errors."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal, Self

from caseworker.core.trace.analysis import ShownStatus, status_of
from caseworker.platform.http.bodies import View
from caseworker.runs.read.payloads import CallPayload
from caseworker.runs.run import RunStatus

Handling = Literal["retried", "fallback", "skipped", "failed"]
"""What happened after a call or attempt failed."""


class ErrorView(View):
    """The error of a failed call or attempt, and what happened next."""

    error_class: str
    message: str | None
    handling: Handling
    """What happened next. ``retried``: another attempt followed. ``fallback``: a fallback was
    called instead. ``skipped``: the step's error policy supplied a value. ``failed``: the call or
    step failed."""


class AttemptView(View):
    """One attempt at a call or step that was attempted more than once."""

    node_id: str
    attempt: int
    status: ShownStatus
    started_at: datetime
    finished_at: datetime | None
    error: ErrorView | None


class CallUsage(View):
    """Tokens and cost of a call, summed over all its attempts."""

    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    """Cost in US dollars; null if the model's price is unknown."""


class CallDetails(View):
    """A single call of a run (a CallNode of its trace): a model call, a tool call or a step."""

    run_id: str
    node_id: str
    parent_id: str | None
    kind: Literal["llm", "tool", "system"]
    """Kind of call: ``llm`` is a model call, ``tool`` a tool call. ``system`` is a step, an attempt
    or the run itself."""
    name: str
    model: str | None
    path: str | None
    """Path of the call within the run; it is the same in every execution of the run. Null for calls
    without one."""
    status: ShownStatus
    started_at: datetime
    finished_at: datetime | None
    reason: str | None
    """Reason why the call was halted or cancelled; otherwise null."""
    error: ErrorView | None
    retries: int
    attempts: list[AttemptView]
    """Attempts at the call, in order; empty if the first attempt succeeded."""
    usage: CallUsage
    payloads: Literal["redacted", "none", "full"]
    """How ``request`` and ``reply`` are shown, as configured: redacted and truncated, omitted, or
    unchanged."""
    request: dict[str, Any] | None
    """The request. For a model: messages, max_output_tokens, temperature, seed, json_schema. For a
    tool: args. For a step: its inputs, by handle; null for steps executed by a map or as a
    fallback."""
    reply: Any
    """The reply; null until there is one. For a model: text, model, finish_reason, incomplete,
    repairs, tokens. For a failed model call: raw_reply, the start of the response. For a tool: its
    result. For a step: its outputs, by handle."""
    metadata: dict[str, Any]
    """Further facts about the call, such as tier, provider and how JSON output was requested."""

    @classmethod
    def of(cls, call: CallPayload, mode: str) -> Self:
        """Return the view of a call with its payloads and attempts.

        ``mode`` is the configured display mode for payloads, returned as ``payloads``.
        """
        node, record = call.record.node, call.record
        cancelled = call.run.status is RunStatus.CANCELLED
        waiting = {record.node_id} if call.waits else frozenset[str]()
        status = status_of(node, call.root, cancelled=cancelled, waiting=waiting)  # type: ignore[arg-type]
        path = record.call_key or (node["name"] if "step_type" in node["metadata"] else None)
        return cls.model_validate(
            {
                **{name: node[name] for name in _AS_IT_IS},
                "run_id": call.run.key.run_id,
                "path": None if path is None else path.removeprefix("step:"),
                "status": status,
                "started_at": instant(node["start_ts_ms"]),
                "finished_at": None if call.waits else instant(node["end_ts_ms"]),
                "reason": node["stop_reason"] if node["status"] == "halt" else None,
                "error": _error_of(node, "failed"),
                "retries": node["retries_used"],
                "attempts": _attempts_of(call, cancelled),
                "usage": {name: node[name] for name in CallUsage.model_fields},
                "payloads": mode,
                "request": call.payload.request,
                "reply": call.payload.reply,
            },
        )


_AS_IT_IS = ("node_id", "parent_id", "kind", "name", "model", "metadata")


def instant(epoch_ms: int | None) -> datetime | None:
    """Convert a CallNode's timestamp in epoch milliseconds to a UTC datetime; None stays None."""
    return None if epoch_ms is None else datetime.fromtimestamp(epoch_ms / 1000, UTC)


def _attempts_of(call: CallPayload, cancelled: bool) -> Sequence[Mapping[str, Any]]:
    nodes, parent = call.attempts, call.record.node
    after = [following for _, following in pairwise(nodes)]
    return [
        {
            "node_id": node["node_id"],
            "attempt": node["metadata"].get("attempt", number),
            "status": status_of(node, call.root, cancelled=cancelled),  # type: ignore[arg-type]
            "started_at": instant(node["start_ts_ms"]),
            "finished_at": instant(node["end_ts_ms"]),
            "error": _error_of(node, _handling(then, parent)),
        }
        for number, (node, then) in enumerate(zip(nodes, [*after, None], strict=False), 1)
    ]


def _handling(then: Mapping[str, Any] | None, parent: Mapping[str, Any]) -> Handling:
    """Return how a failed attempt was handled; ``then`` is the next attempt, if any."""
    if then is not None:
        return "fallback" if then["metadata"].get("fallback") else "retried"
    return "skipped" if parent["status"] == "success" else "failed"


def _error_of(node: Mapping[str, Any], handling: Handling) -> dict[str, Any] | None:
    if node["status"] != "fail":
        return None
    return {
        "error_class": node["error_class"] or "Error",
        "message": node["stop_reason"],
        "handling": handling,
    }
