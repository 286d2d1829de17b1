"""Files that tools create: where they are stored, their names, and references in results.

A run that can store files has an :class:`ArtifactKeeper` among its services. The dispatch gives
each tool call its own sink and adds the stored files to the call's result. The list of files
therefore comes from the service, not from the tool. File names are generated here and by the sink,
never by a caller.
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
"""File extensions by media type; tools cannot create other types of file."""

ARTIFACTS = "artifacts"
"""The key in a result that lists the files stored by its call."""

_STEM = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_STEM = 60


class ArtifactTooLargeError(Exception):
    """A file exceeds the size limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The file would be larger than the {max_bytes:,} bytes that are allowed.")
        self.max_bytes = max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedArtifact:
    """A file stored with its run."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    """SHA-256 of the content in hex."""


_REFERENCE = frozenset({*SavedArtifact.__dataclass_fields__, "url"})


class ArtifactSink(Protocol):
    """Stores the files of a run."""

    @property
    def max_bytes(self) -> int:
        """The maximum size of a file in bytes."""
        ...

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Store a file under the name from ``artifact_name``, with a distinct number.

        Saving the same bytes under the same stem again stores one file, so that calls can be
        repeated.

        Raises:
            ArtifactTooLargeError: the file has more than ``max_bytes``.
        """
        ...


class CallSink(ArtifactSink, Protocol):
    """Stores the files of one tool call."""

    @property
    def saved(self) -> Sequence[SavedArtifact]:
        """The files stored so far, in order."""
        ...


class ArtifactKeeper(Protocol):
    """Stores the files of one run; a run service."""

    def sink_of(self, call_key: str) -> CallSink:
        """Return a sink for one attempt of a call.

        Its file names derive from the call, so that a repeated call stores them under the same
        names.
        """
        ...


def artifact_name(name_stem: str, number: int, media_type: str) -> str:
    """Return the name of the ``number``-th file of a run, such as ``plot-aapl-line-1.png``.

    Raises:
        ValueError: the stem contains other characters than lowercase letters, digits and single
            hyphens, or the media type is not supported.
    """
    if len(name_stem) > _MAX_STEM or not _STEM.fullmatch(name_stem) or number < 1:
        raise ValueError("an artifact needs a plain stem and a number from 1")
    extension = EXTENSIONS.get(media_type)
    if extension is None:
        raise ValueError(f"no artifact is of the media type {media_type!r}")
    return f"{name_stem}-{number}{extension}"


def stem_of(*words: str) -> str:
    """Return a file name stem from the letters and digits of ``words``, cut to the longest stem."""
    plain = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower())
    return plain[:_MAX_STEM].strip("-")


def artifact_uri(run_id: str, name: str) -> str:
    """Return the URL path of the file."""
    return f"/runs/{run_id}/artifacts/{name}"


def with_references(
    result: dict[str, Any], saved: Sequence[SavedArtifact], run_id: str
) -> dict[str, Any]:
    """Add the list of stored files to a result."""
    if not saved:
        return result
    listed = [{**asdict(each), "url": artifact_uri(run_id, each.name)} for each in saved]
    return {**result, ARTIFACTS: listed}


def references_in(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the file references in a result; empty if ``artifacts`` holds anything else."""
    listed = result.get(ARTIFACTS)
    if not isinstance(listed, list) or not all(_is_reference(each) for each in listed):
        return []
    return [dict(each) for each in listed]


def _is_reference(listed: Any) -> bool:
    return isinstance(listed, Mapping) and listed.keys() == _REFERENCE
