"""Where steps, attempts and calls stand inside their run.

A path leads from an outermost step to what happens inside it: steps of nested graphs and calls, the
attempts and the fallback of a step, and the steps that are materialised for it. Its text is what
events and traces show as the id of a step and what the journal keeps as the key of a call; the
joints of that text are known here and nowhere else.
"""

from dataclasses import dataclass
from typing import Final

_INSIDE: Final = "/"
_ATTEMPT: Final = "~"
_LINK: Final = ">"
_JOINTS: Final = frozenset({_INSIDE, _ATTEMPT, _LINK})
_OF_ONE_ATTEMPT: Final = frozenset({_INSIDE, _LINK})

_STEP_RECORD: Final = "step:"
"""Begins the keys under which the journal keeps steps, as opposed to calls."""


@dataclass(frozen=True, slots=True)
class StepPath:
    """The path of a step, of one of its attempts or of a call; the same in every execution."""

    text: str
    """``outer/inner`` in a nested graph, ``step~2`` in the second attempt of a step,
    ``step~fallback`` in its fallback, ``step>other`` where another step is materialised for it."""

    @classmethod
    def of_record(cls, call_key: str) -> "StepPath":
        """Return the path that a key of the journal stands for."""
        return cls(call_key.removeprefix(_STEP_RECORD))

    def __str__(self) -> str:
        return self.text

    @property
    def record_key(self) -> str:
        """The key under which the journal keeps a step."""
        return _STEP_RECORD + self.text

    @property
    def step_id(self) -> str:
        """The id of the step in its own graph."""
        return self.text.rpartition(_INSIDE)[2]

    def step(self, step_id: str) -> "StepPath":
        """Return the path of a step of the graph that is executed here."""
        return StepPath(f"{self.text}{_INSIDE}{step_id}")

    def call(self, *names: object) -> "StepPath":
        """Return the path of a call; names may come in parts that say which call it is."""
        return StepPath(_INSIDE.join((self.text, *map(str, names))))

    def lineage(self) -> "list[StepPath]":
        """Return the paths of the steps around this one, the outermost first, and its own last."""
        parts = self.text.split(_INSIDE)
        return [StepPath(_INSIDE.join(parts[: end + 1])) for end in range(len(parts))]

    def around(self) -> "set[str]":
        """Return the texts of everything that this path stands in."""
        joints = (end for end, sign in enumerate(self.text) if sign in _JOINTS)
        return {self.text[:end] for end in joints}

    def attempt(self, number: int) -> "StepPath":
        """Return the path of a further attempt of this step; the first one is the step itself."""
        return StepPath(f"{self.text}{_ATTEMPT}{number}")

    def attempts(self) -> "list[StepPath]":
        """Return the paths of the attempts up to this one, the step itself first."""
        step, joint, number = self.text.rpartition(_ATTEMPT)
        if not joint or not number.isdecimal():
            return [self]
        first = StepPath(step)
        return [first, *(first.attempt(n) for n in range(2, int(number) + 1))]

    def fallback(self) -> "StepPath":
        """Return the path of what works in place of this step."""
        return StepPath(f"{self.text}{_ATTEMPT}fallback")

    def linked(self, step_id: str) -> "StepPath":
        """Return the path of a step that is materialised for this one."""
        return StepPath(f"{self.text}{_LINK}{step_id}")

    def inside(self) -> "Area":
        """Return everything inside this step, whichever attempt it is at."""
        return Area(self, _JOINTS)

    def inside_attempt(self) -> "Area":
        """Return everything inside this one attempt of a step."""
        return Area(self, _OF_ONE_ATTEMPT)


@dataclass(frozen=True, slots=True)
class Area:
    """All paths inside a step, or inside one attempt of it; that path itself is not."""

    path: StepPath
    _joints: frozenset[str]

    def __contains__(self, other: StepPath) -> bool:
        own, end = self.path.text, len(self.path.text)
        return other.text.startswith(own) and other.text[end : end + 1] in self._joints


def check_step_id(step_id: object) -> None:
    """Raise TypeError or ValueError for an id that is no text, empty or ambiguous in a path."""
    if not isinstance(step_id, str):
        raise TypeError(f"The id of a step must be a text, not {type(step_id).__name__}.")
    if not step_id or not _JOINTS.isdisjoint(step_id):
        raise ValueError("The id of a step must have a character and none of / ~ >")
