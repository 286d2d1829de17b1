"""A live tree view of a run, built from its events.

Steps are children of the step whose graph contains them; calls are children of their step. A tree
taller than the terminal shows active, failed and recently finished entries and counts the rest.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from caseworker_client import Event, StreamedText
from rich.text import Text
from rich.tree import Tree

from caseworker.cli.output import STYLES
from caseworker.core.trace.call_rows import sort_of
from caseworker.core.trace.plain_text import cut, duration, plain

ACTIVE: Final = frozenset({"running", "waiting"})
_MARKS: Final = {
    "queued": "·",
    "waiting": "…",
    "running": "▸",
    "completed": "✓",
    "failed": "✗",
    "halted": "■",
    "cancelled": "⊘",
    "skipped": "-",
}
_ENDS: Final = {
    "completed": "completed",
    "error": "failed",
    "cancelled": "cancelled",
    "skipped": "skipped",
}
_CAPS: Final = (None, 20, 10, 6, 3, 2, 1)
"""Maximum number of children shown per entry: the first of these with which the tree fits."""
_DETAIL: Final = 60


@dataclass(slots=True)
class TreeRow:
    """A line in the tree: a run, step or call and its state."""

    label: str
    status: str
    began: datetime | None = None
    ended: datetime | None = None
    detail: str = ""
    children: "list[TreeRow]" = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether the entry completed or was skipped, so that it may be hidden to save space."""
        return self.status in ("completed", "skipped")

    def end(self, status: str, at: datetime, detail: str = "") -> None:
        """Set the final status and the end time."""
        self.status, self.ended = status, at
        self.detail = detail or ("" if status == "completed" else self.detail)


class RunTree:
    """The tree of steps and calls for one run."""

    def __init__(self, run_id: str, *, kind: str, status: str) -> None:
        self.root = TreeRow(f"{kind} {plain(run_id)}", status)
        self._run_id = run_id
        self._steps: dict[str, TreeRow] = {}
        self._calls: dict[str, TreeRow] = {}
        self._texts = StreamedText()
        self._warnings: list[str] = []

    def tell(self, event: Event) -> str | None:
        """Apply an event and return its log line, or None for a chunk of streamed text.

        Events must arrive in the order of their sequence numbers.
        """
        scope, _, what = event.type.partition(".")
        if self._texts.add(event):
            self._step(event).detail = _last_line(self._texts.content)
            return None
        match scope, what:
            case "run", _:
                self._run(event, what)
            case "step", "started" | "resumed":
                self._step(event).status = "running"
            case "step", _:
                self._step(event).end(_ENDS.get(what, what), event.ts, _why(event))
            case "call", "started":
                self._call_began(event)
            case "call", _ if event.node_id in self._calls:
                call = self._calls.pop(event.node_id)
                call.end(_ENDS.get(what, what), event.ts, _why(event) or _used(event))
            case _:
                self._note(event, scope, what)
        return self._line(event)

    def draw(self, now: datetime, *, height: int) -> Tree:
        """Return the tree as of ``now``, limited to roughly ``height`` lines."""
        max_rows = max(height - 2 - len(self._warnings), 3)
        cap = next((each for each in _CAPS if _lines(self.root, each) <= max_rows), 1)
        tree = Tree(_title(self.root, now), guide_style="dim")
        _grow(tree, self.root, now, cap)
        for warning in self._warnings:
            tree.add(Text(warning, "yellow"))
        return tree

    def _run(self, event: Event, what: str) -> None:
        if event.ends:
            stop = event.data.get("stop") or {}
            self.root.end(what, event.ts, plain(str(stop.get("reason") or "")))
            return
        self.root.status = "running"
        self.root.began = self.root.began or event.ts

    def _call_began(self, event: Event) -> None:
        data = event.data
        label = plain(sort_of(data.get("kind", ""), data.get("name", ""), data.get("model")))
        call = TreeRow(label, "running", event.ts)
        self._calls[event.node_id or ""] = call
        self._step(event).children.append(call)

    def _note(self, event: Event, scope: str, what: str) -> None:
        """Apply an event that neither starts nor ends a run, step or call."""
        step, data = self._step(event), event.data
        if event.type == "turn_start":
            step.detail = f"turn {data.get('turn_number', '')}"
        elif event.type == "router.routed":
            step.detail = "→ " + ", ".join(map(plain, data.get("handles", ())))
        elif event.type == "approval.requested":
            step.status = self.root.status = "waiting"
            approval = plain(str(data.get("approval_id")))
            step.detail = f"caseworker approve {plain(self._run_id)} {approval}"
        elif scope == "approval":
            step.detail = what.replace("_", " ")
        elif event.type == "budget.warning":
            self._warnings.append(_warning(data))

    def _step(self, event: Event) -> TreeRow:
        """Return the entry for the step of an event; create it if needed."""
        path = event.step_id
        if path is None:
            return self.root
        if path not in self._steps:
            parent, _, name = path.rpartition("/")
            self._steps[path] = TreeRow(plain(name), "running", event.ts)
            self._steps.get(parent, self.root).children.append(self._steps[path])
        return self._steps[path]

    def _line(self, event: Event) -> str:
        since = self.root.began or event.ts
        after = duration(_milliseconds(since, event.ts))
        path = plain(event.step_id or "")
        data = event.data
        about = _why(event)
        if event.type.startswith("call."):
            kind, name, model = data.get("kind", ""), data.get("name", ""), data.get("model")
            about = " ".join((sort_of(kind, name, model), about)).strip()
        elif event.type == "budget.warning":
            about = _warning(data)
        elif event.type == "approval.requested":
            about = f"caseworker approve {self._run_id} {data.get('approval_id')}"
        return "  ".join(filter(None, (f"{after:>9}", event.type, path, plain(about))))


def _lines(entry: TreeRow, cap: int | None) -> int:
    visible, hidden = _split_children(entry, cap)
    return 1 + bool(hidden) + sum(_lines(each, cap) for each in visible)


def _split_children(entry: TreeRow, cap: int | None) -> tuple[Sequence[TreeRow], Sequence[TreeRow]]:
    """Return the shown and the hidden children of an entry."""
    if cap is None:
        return entry.children, ()
    if entry.is_settled and entry.ended is not None:
        return (), ()  # it succeeded; the trace has the details
    if len(entry.children) <= cap:
        return entry.children, ()
    ranked = sorted(
        range(len(entry.children)),
        key=lambda at: (entry.children[at].status in ACTIVE, not entry.children[at].is_settled, at),
    )
    visible = {*ranked[-cap:]}
    hidden = [each for at, each in enumerate(entry.children) if at not in visible]
    return [entry.children[at] for at in sorted(visible)], hidden


def _grow(tree: Tree, entry: TreeRow, now: datetime, cap: int | None) -> None:
    visible, hidden = _split_children(entry, cap)
    if hidden:
        counts = Counter(each.status for each in hidden)
        summary = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        tree.add(Text(f"⋯ {summary}", "dim"))
    for each in visible:
        _grow(tree.add(_title(each, now)), each, now, cap)


def _title(entry: TreeRow, now: datetime) -> Text:
    style = STYLES.get(entry.status, "")
    word = "" if entry.status in ("completed", "running") else f" {entry.status}"
    title = Text.assemble((f"{_MARKS.get(entry.status, '?')} ", style), entry.label, (word, style))
    if entry.began is not None and entry.status != "skipped":
        lasted = duration(_milliseconds(entry.began, entry.ended or now))
        title.append(f"  {lasted}", "dim")
    if entry.detail:
        title.append(
            f"  {cut(entry.detail, _DETAIL)}", "red" if entry.status == "failed" else "dim"
        )
    title.no_wrap, title.overflow = True, "ellipsis"
    return title


def _milliseconds(since: datetime, until: datetime) -> int:
    return max(round((until - since).total_seconds() * 1000), 0)


def _why(event: Event) -> str:
    """Return the error or stop reason of an event; empty if it has none."""
    data = event.data
    return plain(str(data.get("error") or data.get("reason") or ""))


def _used(event: Event) -> str:
    tokens = (event.data.get("tokens_in") or 0, event.data.get("tokens_out") or 0)
    return f"{tokens[0]:,} → {tokens[1]:,} tokens" if any(tokens) else ""


def _warning(data: dict[str, Any]) -> str:
    fields = {name: data.get(name) for name in ("dimension", "scope", "used", "limit")}
    what = plain(" ".join(f"{name} {value}" for name, value in fields.items() if value is not None))
    return f"near a limit: {what}"


def _last_line(text: str) -> str:
    lines: Iterable[str] = (line for line in reversed(text.splitlines()) if line.strip())
    line = plain(next(iter(lines), ""))
    return line if len(line) <= _DETAIL else f"…{line[1 - _DETAIL :]}"
