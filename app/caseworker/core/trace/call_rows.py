"""Formats the calls of a run as lines of text: call tree, requests and replies, and failures."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from caseworker.core.trace.analysis import (
    ShownStatus,
    calls_of,
    children_of,
    duration_ms,
    first_halted,
    is_attempt,
    status_of,
    waiting_nodes,
)
from caseworker.core.trace.node import (
    OVERRUN_TOKENS,
    OVERRUN_USD,
    WAITED_FOR_MODEL_MS,
    WAITED_MS,
    WORKER_LOST,
    TraceNode,
    estimated_of,
    imported_from_run,
)
from caseworker.core.trace.payloads import Payload
from caseworker.core.trace.plain_text import counted, cut, dollars_text, duration, plain
from caseworker.core.trace.snapshot import Snapshot

_LABEL: Final = 42
_TOP: Final = 5
_EXCERPT: Final = 100
"""The maximum length of a shown request or reply."""
_TELLING: Final = 12
"""The minimum length of a reason to be recognised inside a longer reason that wraps it."""


def first_in_tree(snapshot: Snapshot, count: int) -> list[str]:
    """Return the IDs of the first nodes of the tree of calls, each parent before its children."""
    children = children_of(snapshot)
    pending = [] if snapshot["root_id"] is None else [snapshot["root_id"]]
    ids: list[str] = []
    while pending and len(ids) < count:
        ids.append(pending.pop())
        pending += [child["node_id"] for child in reversed(children[ids[-1]])]
    return ids


class CallRows:
    """Formats the calls in one snapshot; an error that several nodes share is shown only once."""

    def __init__(
        self,
        snapshot: Snapshot,
        root: TraceNode,
        payloads: Mapping[str, Payload],
        *,
        cancelled: bool,
        waiting: bool = False,
    ) -> None:
        """Prepare to format a run.

        ``payloads`` are the displayable requests and replies by node ID. ``cancelled`` and
        ``waiting`` (for an approval) say which status the run has.
        """
        self._snapshot = snapshot
        self._nodes = snapshot["nodes"]
        self._root = root
        self._payloads = payloads
        self._cancelled = cancelled
        self._waiting = waiting_nodes(snapshot) if waiting else frozenset[str]()
        self._children = children_of(snapshot)
        self._reported: list[str] = []

    def status(self, node: TraceNode) -> ShownStatus:
        """Return the status of a node, with the same names as for runs."""
        return status_of(node, self._root, cancelled=self._cancelled, waiting=self._waiting)

    def troubles(self) -> Iterator[str]:
        """Yield lines for the cause of a stop and for failed calls; each distinct error once."""
        if halted := first_halted(self._snapshot):
            after = duration((halted["end_ts_ms"] or 0) - self._root["start_ts_ms"])
            yield f"Stopped at {called(halted)} after {after}: {self._tell(halted)}"
        by_reason: dict[tuple[str, str], list[TraceNode]] = {}
        for node in self._nodes.values():
            if node["status"] == "fail" and not is_attempt(node) and self._began(node):
                failure = self._recovered(node), end_reason_of(node)
                by_reason.setdefault(failure, []).append(node)
        for (label, _), nodes in list(by_reason.items())[:_TOP]:
            more = f" and {counted(len(nodes) - 1, 'more call')}" if len(nodes) > 1 else ""
            yield f"{label}: {called(nodes[0])}{more}: {self._tell(nodes[0])}"
        if len(by_reason) > _TOP:
            yield f"… and {counted(len(by_reason) - _TOP, 'more failure')}"

    def tree(self, max_nodes: int) -> Iterator[str]:
        """Yield lines for the first ``max_nodes`` nodes as a tree, with requests and replies."""
        pending = [(self._root, "", "")]
        count = 0
        while pending and count < max_nodes:
            node, prefix, indent = pending.pop()
            children = self._children[node["node_id"]]
            count += 1
            yield self._row(node, prefix)
            for line in self._details(node):
                yield f"{'':8}{indent}{'│  ' if children else '   '}{line}"
            for child in reversed(children):
                last = child is children[-1]
                branch, trunk = ("└─ ", "   ") if last else ("├─ ", "│  ")
                pending.append((child, indent + branch, indent + trunk))
        if hidden := len(self._nodes) - count:
            yield f"… and {counted(hidden, 'more call')}; the snapshot contains all calls"

    def _began(self, node: TraceNode) -> bool:
        """Return whether a failure originated here: no child of the node failed."""
        children = calls_of(self._children[node["node_id"]])
        return all(child["status"] != "fail" for child in children)

    def _recovered(self, node: TraceNode) -> str:
        """Return the label of a failure, which names the ancestor that succeeded despite it."""
        parent_id = node["parent_id"]
        while parent_id is not None:
            ancestor = self._nodes[parent_id]
            if ancestor["status"] == "success":
                return (
                    f"Failed, but {ancestor['name']} continued"
                    if ancestor["parent_id"]
                    else "Failed"
                )
            parent_id = ancestor["parent_id"]
        return "Failed"

    def _tell(self, node: TraceNode) -> str:
        self._reported.append(node["stop_reason"] or end_reason_of(node))
        return end_reason_of(node)

    def _knows(self, reason: str) -> bool:
        """Return whether a reason, or one that it wraps, was shown before."""
        return reason in self._reported or any(
            len(report) >= _TELLING and report in reason for report in self._reported
        )

    def _details(self, node: TraceNode) -> Iterator[str]:
        reason = node["stop_reason"] or node["error_class"]
        if reason and not self._knows(reason):
            yield self._tell(node)
        if node["stop_reason"] == WORKER_LOST and node["kind"] != "system":
            yield "its outcome is unknown"
        if (run_id := imported_from_run(node)) is not None and self._was_first(node, run_id):
            yield f"imported from run {plain(run_id)}"
        if waited := self._waited_ms(node):
            yield f"waited {duration(waited)} between its attempts"
        yield from _budget_notes(node)
        payload = self._payloads.get(node["node_id"])
        if payload is None:
            return
        if excerpt := _request_excerpt(payload.request):
            yield f"asked: {excerpt}"
        raw = isinstance(payload.reply, Mapping) and "raw_reply" in payload.reply
        if payload.reply is not None and not raw:  # the error already shows a raw reply
            yield f"got: {_excerpt(_reply_text(payload.reply))}"

    def _was_first(self, node: TraceNode, run_id: str) -> bool:
        """Return whether an imported node has no parent that was imported from the same run."""
        parent = self._nodes.get(node["parent_id"] or "")
        return parent is None or imported_from_run(parent) != run_id

    def _waited_ms(self, node: TraceNode) -> int:
        """Return the total back-off between the attempts of a call or step."""
        attempts = [each for each in self._children[node["node_id"]] if is_attempt(each)]
        ends = [each["end_ts_ms"] or each["start_ts_ms"] for each in attempts]
        begins = [each["start_ts_ms"] for each in attempts]
        return sum(max(begin - end, 0) for end, begin in zip(ends, begins[1:], strict=False))

    def _row(self, node: TraceNode, prefix: str) -> str:
        repetitions = node["retries_used"]
        retries = f" +{counted(repetitions, 'retry', 'retries')}" if repetitions else ""
        sort = sort_of(node["kind"], node["name"], node["model"] or _step_type(node))
        label = cut(prefix + plain(f"{sort}{retries}"), _LABEL)
        tokens = ""
        if node["tokens_in"] or node["tokens_out"]:
            tokens = f"{node['tokens_in'] or 0:,} → {node['tokens_out'] or 0:,} tok"
        cost = dollars_text(node["cost_usd"]) if node["cost_usd"] != 0 else ""
        lasted = duration(duration_ms(node, self._snapshot))
        status = self.status(node)
        row = f"{node['node_id']:8}{label:{_LABEL}} {status:9} {lasted:>8} {tokens:>18} {cost:>9}"
        return row.rstrip()


def _budget_notes(node: TraceNode) -> Iterator[str]:
    """Yield lines for a call's waits for budget and rate slot, its estimates and its overrun."""
    waited = node["metadata"].get(WAITED_MS)
    if isinstance(waited, int):
        yield f"waited {duration(waited)} for budget"
    queued = node["metadata"].get(WAITED_FOR_MODEL_MS)
    if isinstance(queued, int):
        yield f"waited {duration(queued)} for the model's rate limit"
    tokens, usd = estimated_of(node)
    if tokens or usd:
        cost = f" and {dollars_text(usd)}" if usd else ""
        yield f"estimated: {counted(tokens, 'token')}{cost}"
    if isinstance(over := node["metadata"].get(OVERRUN_TOKENS), int):
        yield f"overrun: {counted(over, 'token')} more than reserved"
    if isinstance(over := node["metadata"].get(OVERRUN_USD), float):
        yield f"overrun: {dollars_text(over)} more than reserved"


def called(node: TraceNode) -> str:
    """Return the name of a call followed by its ID."""
    return plain(sort_of(node["kind"], node["name"])) + f" ({node['node_id']})"


def sort_of(kind: str, name: str, model: str | None = None) -> str:
    """Format a name together with its kind (omitted for ``system``) and its model."""
    return ("" if kind == "system" else f"{kind} ") + name + (f" ({model})" if model else "")


def end_reason_of(node: TraceNode) -> str:
    """Return the error class and the reason why a node ended; the class is not repeated."""
    error_class, reason = node["error_class"], node["stop_reason"]
    if error_class and reason and error_class in reason:
        error_class = None
    return plain(": ".join(part for part in (error_class, reason) if part)) or "no reason given"


def _step_type(node: TraceNode) -> str | None:
    """Return the type of a step if it differs from the step's name."""
    kind = node["metadata"].get("step_type")
    return kind if isinstance(kind, str) and kind != node["name"] else None


def _request_excerpt(request: Any) -> str:
    """Return an excerpt of a request: the last message of a prompt, or the arguments."""
    if not isinstance(request, Mapping):
        return ""
    if messages := request.get("messages"):
        last = messages[-1]
        call = last.get("result_of") or last.get("reply_of")  # a reference to another call's reply
        return _excerpt(str(last.get("content") or f"the result of {call}"))
    return _excerpt(_reply_text(request.get("args", request)))


def _reply_text(value: Any) -> str:
    if isinstance(value, Mapping) and isinstance(value.get("text"), str) and "model" in value:
        calls = [each for each in value.get("tool_calls") or () if isinstance(each, Mapping)]
        called = (f"calls {each.get('name')} {each.get('arguments')}" for each in calls)
        return "; ".join(filter(None, (value["text"], *called)))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _excerpt(text: str) -> str:
    return cut(plain(" ".join(text[: 4 * _EXCERPT].split())), _EXCERPT)
