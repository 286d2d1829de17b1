"""How the files that tools make find their way into results.

A run that can keep files has an :class:`ArtifactKeeper` among its services. The dispatch hands each
tool call a sink of its own and writes into the call's result what was kept; what a result says of
files is therefore the service's word and not the tool's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from app.tools.artifacts import ArtifactSink, SavedArtifact, artifact_uri

ARTIFACTS = "artifacts"
"""Where a result lists the files that its call has kept."""

_REFERENCE = frozenset({"name", "media_type", "size_bytes", "sha256", "url"})


class CallSink(ArtifactSink, Protocol):
    """Keeps the files of one tool call."""

    @property
    def saved(self) -> Sequence[SavedArtifact]:
        """The files that were kept so far, in the order in which they were saved."""
        ...


class ArtifactKeeper(Protocol):
    """Keeps the files of one run; a service of runs that can."""

    def sink_of(self, call_key: str) -> CallSink:
        """Return a sink for one try of a call.

        Its files are named after the call, so that a call that is made again keeps them under the
        same names.
        """
        ...


def with_references(
    result: dict[str, Any], saved: Sequence[SavedArtifact], run_id: str
) -> dict[str, Any]:
    """Return a result that lists the files of its call (seed 002, 9.4)."""
    if not saved:
        return result
    return {**result, ARTIFACTS: [_reference(each, run_id) for each in saved]}


def references_in(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a result lists of the files of its call.

    Whatever else a tool calls artifacts is none of ours.
    """
    listed = result.get(ARTIFACTS)
    if not isinstance(listed, list) or not all(_is_reference(each) for each in listed):
        return []
    return [dict(each) for each in listed]


def _reference(saved: SavedArtifact, run_id: str) -> dict[str, Any]:
    return {
        "name": saved.name,
        "media_type": saved.media_type,
        "size_bytes": saved.size_bytes,
        "sha256": saved.sha256,
        "url": artifact_uri(run_id, saved.name),
    }


def _is_reference(listed: Any) -> bool:
    return isinstance(listed, Mapping) and listed.keys() == _REFERENCE
