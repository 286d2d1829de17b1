"""The port through which tools keep the files they make (seed 002, 9.4 and 23.3).

Names are made here and by the sink, never by a caller; results refer to a file by its name and URI.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

EXTENSIONS: Mapping[str, str] = MappingProxyType({"image/png": ".png", "image/svg+xml": ".svg"})
"""The endings of the files that tools make, by media type."""

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


class ArtifactSink(Protocol):
    """Keeps the files of one run."""

    @property
    def max_bytes(self) -> int:
        """How large a file may be."""
        ...

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Keep a file under the name that ``artifact_name`` gives it, with a number of its own.

        Saving the same bytes under the same stem again keeps one file, so that a call may be made
        again.

        Raises:
            ArtifactTooLargeError: there are more than ``max_bytes``.
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
    """Return a stem made of the letters and digits of ``words``, cut to what a name may have."""
    plain = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower())
    return plain[:_MAX_STEM].strip("-")


def artifact_uri(run_id: str, name: str) -> str:
    """Return where the service gives the file out."""
    return f"/runs/{run_id}/artifacts/{name}"
