"""Data sets: JSON arrays of cases, validated before any case runs."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

Mode = Literal["hrm_small_then_escalate", "escalate", "fallback_only"]
Difficulty = Literal["easy", "medium", "hard"]
EASY: Difficulty = "easy"

_MAX_MISTAKES = 20
_WORDS = {"extra_forbidden": "unknown field", "missing": "this field is required"}

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
"""A string that is safe as a file name on every system."""

CaseId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
"""A case ID that is safe as a file name and short enough to be combined with the evaluation ID into
a run ID."""


def _sendable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("invalid Unicode text") from None
    return text


Text = Annotated[str, AfterValidator(_sendable)]


class DatasetError(Exception):
    """A data set cannot be used. The message names every invalid case."""


class EvalCase(BaseModel, extra="forbid", frozen=True):
    """A question with the criteria for judging its answer."""

    id: CaseId
    """ID of the case, which also names its trace file. IDs that differ only in case are not
    unique."""
    input: Text
    """Input of the case. It may be blank or too long, to test that the service rejects it."""
    expected_tools: tuple[Text, ...] = ()
    gold_answer: Text | None = None
    """The correct answer. With None, the service's own verification decides."""
    family: Word = "general"
    difficulty: Difficulty = "medium"
    """Difficulty of the case. Only ``easy`` cases (one tool, one action) count for the latency
    target."""
    mode: Mode | None = None
    timezone: Text | None = None
    tags: tuple[Text, ...] = ()
    expect: Literal["answer", "refused"] = "answer"
    """Expected outcome. With ``refused``, any outcome except a verified answer is correct."""
    needs_model: bool = False
    """Whether the built-in planner cannot solve the case. The case is skipped if the service has
    only that planner."""

    def is_called(self, pattern: str) -> bool:
        """Return whether the case's ID, family, difficulty or a tag matches a glob pattern."""
        names = (self.id, self.family, self.difficulty, *self.tags)
        return any(fnmatchcase(name, pattern) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The cases of a data set in file order."""

    name: str
    sha256: str
    """SHA-256 hash of the whole file, even if only some cases are selected."""
    cases: tuple[EvalCase, ...]

    def selected(
        self,
        *,
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        sample: int | None = None,
        sample_seed: int = 0,
        limit: int | None = None,
        with_models: bool = True,
    ) -> "Dataset":
        """Return the data set with a subset of its cases.

        ``only`` and ``skip`` are patterns for ``EvalCase.is_called``. ``sample`` is the number of
        cases to draw at random; the same ``sample_seed`` draws the same cases. ``limit`` is the
        maximum number of cases. ``with_models`` False leaves out the cases that need a model.

        Raises:
            DatasetError: no case is left.
        """
        cases = [
            case
            for case in self.cases
            if (not only or any(map(case.is_called, only)))
            and not any(map(case.is_called, skip))
            and (with_models or not case.needs_model)
        ]
        if sample is not None and sample < len(cases):
            drawn = Random(sample_seed).sample(range(len(cases)), sample)
            cases = [cases[place] for place in sorted(drawn)]
        if not cases[:limit]:
            why = "check --only, --skip and --limit"
            if not with_models:
                why += (
                    "; cases that require a model are skipped because the service has none "
                    "(--all includes them)"
                )
            raise DatasetError(f"{self.name}: no case is selected; {why}")
        return replace(self, cases=tuple(cases[:limit]))


_CASES = TypeAdapter(tuple[EvalCase, ...])


def load_dataset(path: Path) -> Dataset:
    """Load and validate a data set.

    Raises:
        DatasetError: the file is missing, is not a JSON array of valid cases, or is empty.
    """
    try:
        raw = path.read_bytes()
        items = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: {error}") from None
    if not isinstance(items, list) or not items:
        raise DatasetError(f"{path}: a data set must be a JSON array with at least one case")
    try:
        cases = _CASES.validate_python(items)
    except ValidationError as error:
        mistakes = [_mistake(detail, items) for detail in error.errors(include_url=False)]
    else:
        repeated = Counter(case.id.casefold() for case in cases)
        mistakes = [
            f"the id {case.id!r} is used more than once"
            for case in cases
            if repeated[case.id.casefold()] > 1
        ]
    if mistakes:
        more = len(mistakes) - _MAX_MISTAKES
        reported = mistakes[:_MAX_MISTAKES] + [f"and {more} more"] * (more > 0)
        raise DatasetError("\n".join(f"{path}: {mistake}" for mistake in reported))
    return Dataset(name=path.name, sha256=hashlib.sha256(raw).hexdigest(), cases=cases)


def _mistake(detail: ErrorDetails, items: Any) -> str:
    place, what = detail["loc"], _WORDS.get(detail["type"], detail["msg"])
    number = int(place[0])
    case_id = items[number].get("id") if isinstance(items[number], dict) else None
    suffix = f" ({case_id[:80]!r})" if isinstance(case_id, str) else ""
    field = ".".join(map(str, place[1:])) or "the case"
    return f"case {number + 1}{suffix}: {field}: {what}"
