"""Pictures in the results of MCP tools are stored with the run."""

import base64
from dataclasses import replace

import pytest
from mcp.types import CallToolResult, ImageContent

from caseworker.tools.artifacts import SavedArtifact, artifact_name
from caseworker.tools.mcp.results import mcp_result_of
from tests.support.mcp_servers import CONTEXT

PICTURES = {
    "image/png": b"\x89PNG\r\n\x1a\nrest",
    "image/jpeg": b"\xff\xd8\xff\xe0rest",
    "image/gif": b"GIF89arest",
    "image/webp": b"RIFF\n\x00\x00\x00WEBPrest",
}


class SaveOutcome:
    """A sink that records the files it gets."""

    max_bytes = 1000

    def __init__(self) -> None:
        self.saved: list[tuple[str, str, bytes]] = []

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        self.saved.append((name_stem, media_type, data))
        return SavedArtifact(
            name=artifact_name(name_stem, 1, media_type),
            media_type=media_type,
            size_bytes=len(data),
            sha256="",
        )


async def given(media_type: str, data: bytes) -> tuple[SaveOutcome, object]:
    picture = ImageContent(data=base64.b64encode(data).decode(), mime_type=media_type)
    kept = SaveOutcome()
    result = await mcp_result_of(
        "h.draw", CallToolResult(content=[picture]), replace(CONTEXT, artifacts=kept)
    )
    return kept, result.get("omitted")


@pytest.mark.parametrize("media_type", PICTURES)
async def test_pictures_are_kept_as_files_of_their_type(media_type: str) -> None:
    """Pictures are stored with their type and unchanged bytes."""
    kept, omitted = await given(media_type, PICTURES[media_type])

    assert [saved[1:] for saved in kept.saved] == [(media_type, PICTURES[media_type])]
    assert omitted is None


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        ("image/png", PICTURES["image/jpeg"]),
        ("image/webp", b"RIFF\x00\x00\x00\x00WAVE"),
        ("image/svg+xml", b"<svg/>"),
        ("text/html", b"<script>"),
    ],
)
async def test_what_is_not_what_it_says_is_left_out(media_type: str, data: bytes) -> None:
    """Formats that may contain scripts are left out too."""
    kept, omitted = await given(media_type, data)

    assert kept.saved == []
    about = f"a picture ({media_type}, {len(data)} bytes)"
    assert omitted == [f"{about}: it is not a PNG, JPEG, GIF or WebP"]
