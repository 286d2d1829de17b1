"""Names of files that tools create."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.artifacts import (
    SavedArtifact,
    artifact_name,
    artifact_uri,
    file_references_in,
    stem_of,
    with_references,
)


def test_a_name_is_made_of_stem_number_and_media_type() -> None:
    """The name has stem, number and media type, and its URI is a path of the service."""
    name = artifact_name("plot-aapl-line", 1, "image/png")
    longest = artifact_name("a" * 60, 1, "image/png")

    assert name == "plot-aapl-line-1.png"
    assert longest == "a" * 60 + "-1.png"
    assert artifact_uri("run-1", name) == "/runs/run-1/artifacts/plot-aapl-line-1.png"


@pytest.mark.parametrize(
    ("stem", "number", "media_type"),
    [
        ("../etc", 1, "image/png"),
        ("a/b", 1, "image/png"),
        ("Plot", 1, "image/png"),
        ("a--b", 1, "image/png"),
        ("", 1, "image/png"),
        ("a" * 61, 1, "image/png"),
        ("a\n", 1, "image/png"),
        ("a", 0, "image/png"),
        ("a", 1, "text/html"),
    ],
)
def test_what_is_no_plain_name_is_refused(stem: str, number: int, media_type: str) -> None:
    """A file name must not contain a path."""
    with pytest.raises(ValueError, match="artifact"):
        artifact_name(stem, number, media_type)


@given(words=st.lists(st.text(max_size=40), max_size=6))
def test_any_words_make_a_plain_stem(words: list[str]) -> None:
    """The service generates the name, whatever the caller sends."""
    stem = stem_of("plot", *words)

    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", stem)
    artifact_name(stem, 1, "image/png")


SAVED = SavedArtifact(name="plot-1.png", media_type="image/png", size_bytes=3, sha256="0" * 64)
REFERENCE = with_references({}, [SAVED], "run-1")["artifacts"][0]


@pytest.mark.parametrize(
    ("listed", "count"),
    [
        ([REFERENCE], 1),
        ([REFERENCE, REFERENCE], 2),
        ([], 0),
        ([REFERENCE, {}], 0),
        ([{**REFERENCE, "more": 1}], 0),
        ([{"name": "plot-1.png"}], 0),
        (["plot-1.png"], 0),
        ([None], 0),
        (REFERENCE, 0),
        ("plot-1.png", 0),
        (None, 0),
    ],
)
def test_only_whole_references_are_files_of_a_result(listed: Any, count: int) -> None:
    """A tool may return another list under the same name."""
    assert len(file_references_in({"artifacts": listed})) == count
    assert file_references_in({}) == []
