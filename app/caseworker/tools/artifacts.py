"""Files that tools make: the sink that keeps them, their names, and how results refer to them.

A run that can keep files has an :class:`ArtifactKeeper` among its services. The dispatch hands each
tool call a sink of its own and writes into the call's result what was kept, so that the list of
files comes from the service and not from the tool. File names are made here and by the sink, never
by a caller.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Protocol

EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {
        "image/png": ".png",
        "image/svg+xml": ".svg",
        "image/jpeg": ".jpg",
        "image/gif": ".gif",
        "image/webp": ".webp",
    }
)
"""The file extensions by media type; tools make no other files."""

ARTIFACTS = "artifacts"
"""The key under which a result lists the files that its call has kept."""

_STEM = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_STEM = 60


class ArtifactTooLargeError(Exception):
    """A file has more bytes than may be kept."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The file would be larger than the {max_bytes:,} bytes that are allowed.")
        self.max_bytes = max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedArtifact:
    """A file that is kept with its run."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    """Of the bytes, in hexadecimal digits."""


_REFERENCE = frozenset({*SavedArtifact.__dataclass_fields__, "url"})


class ArtifactSink(Protocol):
    """Keeps the files of one run."""

    @property
    def max_bytes(self) -> int:
        """The size of the largest file that may be kept."""
        ...

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Keep a file under the name that ``artifact_name`` gives it, with a number of its own.

        Saving the same bytes under the same stem again keeps one file, so that a call may be made
        again.

        Raises:
            ArtifactTooLargeError: there are more than ``max_bytes``.
        """
        ...


class CallSink(ArtifactSink, Protocol):
    """Keeps the files of one tool call."""

    @property
    def saved(self) -> Sequence[SavedArtifact]:
        """The files that were kept so far, in the order in which they were saved."""
        ...


class ArtifactKeeper(Protocol):
    """Keeps the files of one run; a service of runs that can."""

    def sink_of(self, call_key: str) -> CallSink:
        """Return a sink for one attempt of a call.

        Its files are named after the call, so that a call that is made again keeps them under the
        same names.
        """
        ...


def artifact_name(name_stem: str, number: int, media_type: str) -> str:
    """Return the name of the ``number``-th file of a run, such as ``plot-aapl-line-1.png``.

    Raises:
        ValueError: the stem is not made of small letters, digits and single hyphens, or files of
            that media type are not made here.
    """
    if len(name_stem) > _MAX_STEM or not _STEM.fullmatch(name_stem) or number < 1:
        raise ValueError("an artifact needs a plain stem and a number from 1")
    extension = EXTENSIONS.get(media_type)
    if extension is None:
        raise ValueError(f"no artifact is of the media type {media_type!r}")
    return f"{name_stem}-{number}{extension}"


def stem_of(*words: str) -> str:
    """Return a stem made of the letters and digits of ``words``, cut to the longest stem."""
    plain = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower())
    return plain[:_MAX_STEM].strip("-")


def artifact_uri(run_id: str, name: str) -> str:
    """Return the path under which the service serves the file."""
    return f"/runs/{run_id}/artifacts/{name}"


def with_references(
    result: dict[str, Any], saved: Sequence[SavedArtifact], run_id: str
) -> dict[str, Any]:
    """Return a result that lists the files of its call."""
    if not saved:
        return result
    listed = [{**asdict(each), "url": artifact_uri(run_id, each.name)} for each in saved]
    return {**result, ARTIFACTS: listed}


def references_in(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the references to files in a result; none if ``artifacts`` is anything else."""
    listed = result.get(ARTIFACTS)
    if not isinstance(listed, list) or not all(_is_reference(each) for each in listed):
        return []
    return [dict(each) for each in listed]


def _is_reference(listed: Any) -> bool:
    return isinstance(listed, Mapping) and listed.keys() == _REFERENCE
