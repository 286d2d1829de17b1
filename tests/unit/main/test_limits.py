"""Limits of a process: artifacts."""

import pytest
from pydantic import ValidationError

from caseworker.features.artifacts.storage import ArtifactLimits
from caseworker.main.limits import artifact_limits
from caseworker.settings.schema import ArtifactSettings, Settings


@pytest.mark.req("002/23.3")
def test_a_file_may_have_five_megabytes_unless_configured_otherwise() -> None:
    """The default artifact limits in settings and code are equal; 1 MB is 1024 KB."""
    assert Settings().artifacts.max_artifact_mb == 5
    assert artifact_limits(Settings()) == ArtifactLimits(
        max_bytes=5 << 20, max_run_bytes=50 << 20, max_per_run=100
    )


@pytest.mark.req("002/23.3")
def test_the_configured_limits_are_those_of_the_runs() -> None:
    """Each configured artifact limit applies to runs."""
    chosen = ArtifactSettings(max_artifact_mb=2, max_run_mb=7, max_per_run=4)

    assert artifact_limits(Settings(artifacts=chosen)) == ArtifactLimits(
        max_bytes=2_097_152, max_run_bytes=7_340_032, max_per_run=4
    )


def test_a_run_has_room_for_one_file_at_least() -> None:
    """The limit per run must be at least the limit per file."""
    with pytest.raises(ValidationError, match="must be at least artifacts"):
        Settings(artifacts=ArtifactSettings(max_artifact_mb=51))
