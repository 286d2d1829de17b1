"""The files of runs as callers see them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.nodes.reading import OWN
from app.runs.artifacts import StoredArtifact
from app.tools.artifacts import artifact_uri

_NAME = r"^[a-z0-9][a-z0-9._-]*$"
_MAX_NAME = 100

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


def _name(value: str) -> str:
    if len(value) > _MAX_NAME or not re.fullmatch(_NAME[1:-1], value):
        message = "The name of a file is 1 to 100 of the characters a-z 0-9 . _ -"
        raise PydanticCustomError(OWN, message)
    return value


ArtifactName = Annotated[
    str,
    AfterValidator(_name),
    Field(
        json_schema_extra={"pattern": _NAME, "minLength": 1, "maxLength": _MAX_NAME},
        examples=["plot-aapl-line-3f9a2c71-1.png"],
    ),
]
"""Made by the service; part of a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactView:
    """A file that a run has made."""

    __pydantic_config__ = _DOCUMENTED

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    """Of its bytes, in hexadecimal digits; also its entity tag."""
    created_at: datetime
    url: str
    """Where its bytes are."""

    @classmethod
    def of(cls, run_id: str, artifact: StoredArtifact, root: str) -> Self:
        """Return the view of a file, with its URL below the path the service is served under."""
        return cls(
            name=artifact.name,
            media_type=artifact.media_type,
            size_bytes=artifact.size_bytes,
            sha256=artifact.sha256,
            created_at=artifact.created_at,
            url=f"{root}{artifact_uri(run_id, artifact.name)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactList:
    """All files that a run has made so far, oldest first."""

    __pydantic_config__ = _DOCUMENTED

    run_id: str
    artifacts: Sequence[ArtifactView]

    @classmethod
    def of(cls, run_id: str, found: Sequence[StoredArtifact], root: str) -> Self:
        """Return the view of the files of a run."""
        return cls(run_id=run_id, artifacts=[ArtifactView.of(run_id, each, root) for each in found])
