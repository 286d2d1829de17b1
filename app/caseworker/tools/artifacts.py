"""Artifacts: files that tools create. Covers storage, file names, and references in results.

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

BINARY = "application/octet-stream"
"""Media type of a file of any other type."""

EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {
        "image/png": ".png",
        "image/svg+xml": ".svg",
        "image/jpeg": ".jpg",
        "image/gif": ".gif",
        "image/webp": ".webp",
        "audio/wav": ".wav",
        "audio/mpeg": ".mp3",
        "audio/ogg": ".ogg",
        "audio/flac": ".flac",
        "application/pdf": ".pdf",
        BINARY: ".bin",
    }
)
"""Maps the media types that tools may create to file extensions."""

ARTIFACTS = "artifacts"
"""Key in a tool's result that holds the list of files stored by the call."""

_STEM = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_STEM = 60


class ArtifactTooLargeError(Exception):
    """A file exceeds the size limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The file would be larger than the {max_bytes:,} bytes that are allowed.")
        self.max_bytes = max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedArtifact:
    """Metadata of a file that is stored with its run."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    """SHA-256 hash of the content, in hex."""


_REFERENCE = frozenset({*SavedArtifact.__dataclass_fields__, "url"})


class ArtifactSink(Protocol):
    """Stores files for a run."""

    @property
    def max_bytes(self) -> int:
        """Maximum size of a file in bytes."""
        ...

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Store a file under a name from ``artifact_name``; each file gets its own number.

        Saving the same bytes under the same stem again does not store another file, so calls can be
        repeated.

        Raises:
            ArtifactTooLargeError: the file has more than ``max_bytes``.
        """
        ...


class CallSink(ArtifactSink, Protocol):
    """Stores files for one tool call."""

    @property
    def saved(self) -> Sequence[SavedArtifact]:
        """Files that the call has stored so far, in order."""
        ...


class ArtifactKeeper(Protocol):
    """Creates the sinks that store a run's files; provided as a run service."""

    def sink_of(self, call_key: str) -> CallSink:
        """Return a sink for one attempt of a call.

        File names derive from ``call_key``, so a repeated call stores its files under the same
        names.
        """
        ...


def artifact_name(name_stem: str, number: int, media_type: str) -> str:
    """Return the name for a run's file with this number, such as ``plot-aapl-line-1.png``.

    Raises:
        ValueError: the stem contains characters other than lowercase letters, digits and single
            hyphens, or the media type is not supported.
    """
    if len(name_stem) > _MAX_STEM or not _STEM.fullmatch(name_stem) or number < 1:
        raise ValueError("an artifact requires a plain stem and a number of at least 1")
    extension = EXTENSIONS.get(media_type)
    if extension is None:
        raise ValueError(f"artifacts cannot have the media type {media_type!r}")
    return f"{name_stem}-{number}{extension}"


def stem_of(*words: str) -> str:
    """Return a file name stem from letters and digits in ``words``, cut to the maximum length."""
    plain = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower())
    return plain[:_MAX_STEM].strip("-")


def artifact_uri(run_id: str, name: str) -> str:
    """Return the URL path at which a run's file can be downloaded."""
    return f"/runs/{run_id}/artifacts/{name}"


def with_references(
    result: dict[str, Any], saved: Sequence[SavedArtifact], run_id: str
) -> dict[str, Any]:
    """Return the result with the list of stored files added."""
    listed = [{**asdict(each), "url": artifact_uri(run_id, each.name)} for each in saved]
    return {**result, ARTIFACTS: listed}


def file_references_in(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the file references in a result's ``artifacts``; empty if missing or malformed."""
    listed = result.get(ARTIFACTS)
    if not isinstance(listed, list) or not all(_is_reference(each) for each in listed):
        return []
    return [dict(each) for each in listed]


def _is_reference(listed: Any) -> bool:
    return isinstance(listed, Mapping) and listed.keys() == _REFERENCE
