"""Paths of steps, attempts and calls in their run.

A path starts at a step of the outermost graph. It continues with steps of nested graphs, calls,
attempts, fallbacks, and steps that are materialised for it. The text of a path serves as the step
ID in events and traces, and as the key of a call in the journal. Only this module knows the
separators in that text.

See docs/internals.md, "How a graph is executed".
"""

from dataclasses import dataclass
from typing import Final

_INSIDE: Final = "/"
_ATTEMPT: Final = "~"
_LINK: Final = ">"
_JOINTS: Final = frozenset({_INSIDE, _ATTEMPT, _LINK})
_OF_ONE_ATTEMPT: Final = frozenset({_INSIDE, _LINK})

_STEP_RECORD: Final = "step:"
"""Prefix of the journal keys of steps; the keys of calls have none."""


@dataclass(frozen=True, slots=True)
class StepPath:
    """The path of a step, an attempt or a call; it is the same in every execution of the run."""

    text: str
    """Text of the path: ``outer/inner`` for a step of a nested graph, ``step~2`` for the second
    attempt at a step, ``step~fallback`` for its fallback, ``step>other`` for a step materialised
    for it."""

    @classmethod
    def of_record(cls, call_key: str) -> "StepPath":
        """Parse the journal key of a step."""
        return cls(call_key.removeprefix(_STEP_RECORD))

    def __str__(self) -> str:
        return self.text

    @property
    def record_key(self) -> str:
        """Journal key of the step with this path."""
        return _STEP_RECORD + self.text

    @property
    def step_id(self) -> str:
        """ID of the step in its own graph: the last segment of the path."""
        return self.text.rpartition(_INSIDE)[2]

    def step(self, step_id: str) -> "StepPath":
        """Return the path of a step in the nested graph that this step executes."""
        return StepPath(f"{self.text}{_INSIDE}{step_id}")

    def call(self, *names: object) -> "StepPath":
        """Return the path of a call made by this step; ``names`` together identify the call."""
        return StepPath(_INSIDE.join((self.text, *map(str, names))))

    def lineage(self) -> "list[StepPath]":
        """Return the paths of the enclosing steps, outermost first, followed by this path."""
        parts = self.text.split(_INSIDE)
        return [StepPath(_INSIDE.join(parts[: end + 1])) for end in range(len(parts))]

    def enclosing_paths(self) -> "set[str]":
        """Return the texts of all paths that enclose this one: steps, attempts and links."""
        enclosing, text = set(), self.text
        for end, sign in enumerate(text):
            if sign in _JOINTS:
                enclosing.add(text[:end])
        return enclosing

    def attempt(self, number: int) -> "StepPath":
        """Return the path of attempt ``number`` (from 2); the first attempt has the step's path."""
        return StepPath(f"{self.text}{_ATTEMPT}{number}")

    def attempts(self) -> "list[StepPath]":
        """Return the paths of all attempts up to this one, starting with the step itself."""
        step, joint, number = self.text.rpartition(_ATTEMPT)
        if not joint or not number.isdecimal():
            return [self]
        first = StepPath(step)
        return [first, *(first.attempt(n) for n in range(2, int(number) + 1))]

    def fallback(self) -> "StepPath":
        """Return the path of this step's fallback."""
        return StepPath(f"{self.text}{_ATTEMPT}fallback")

    def linked(self, step_id: str) -> "StepPath":
        """Return the path of a step that is materialised for this one."""
        return StepPath(f"{self.text}{_LINK}{step_id}")

    def inside(self) -> "Area":
        """Return an area that contains all paths inside this step, in any attempt."""
        return Area(self, _JOINTS)

    def inside_attempt(self) -> "Area":
        """Return an area that contains all paths inside this attempt at a step."""
        return Area(self, _OF_ONE_ATTEMPT)


@dataclass(frozen=True, slots=True)
class Area:
    """A set of paths: all those inside a step or an attempt, without the step or attempt itself."""

    path: StepPath
    _joints: frozenset[str]

    def __contains__(self, other: StepPath) -> bool:
        prefix, end = self.path.text, len(self.path.text)
        return other.text.startswith(prefix) and other.text[end : end + 1] in self._joints


def check_step_id(step_id: object) -> None:
    """Check that a step ID is valid.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty or contains a path separator.
    """
    if not isinstance(step_id, str):
        raise TypeError(f"A step id must be a string, not {type(step_id).__name__}.")
    if not step_id or not _JOINTS.isdisjoint(step_id):
        raise ValueError("A step id must not be empty and must not contain any of / ~ >")
