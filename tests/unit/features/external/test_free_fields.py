"""The setting of free fields is read again when its file changes."""

import os
from pathlib import Path

import pytest

from caseworker.gateway.admission import FieldsOf, FreeFields


class Setting:
    """A configuration file with the paths of chat completions, one a line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reads = 0

    def write(self, text: str) -> None:
        """Replace the file, as editors and orchestrators do."""
        written = self.file.with_suffix(".new")
        written.write_text(text)
        os.replace(written, self.file)

    def read(self) -> FieldsOf:
        """Return the paths in the file; a question mark is invalid."""
        self.reads += 1
        lines = self.file.read_text().split()
        if "?" in lines:
            raise ValueError("invalid")
        return {"chat_completions": lines}


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    """Return a setting whose file does not exist yet."""
    return Setting(tmp_path / "config.yaml")


async def test_a_change_of_the_file_applies_to_the_next_request(setting: Setting) -> None:
    """The file is not read as long as it stays the same."""
    fields = FreeFields({"messages": ["old"]}, setting.file, setting.read)
    assert await fields.of("messages") == ["old"]
    assert await fields.of("chat_completions") == ()
    assert setting.reads == 0

    for text in ("foo", "foo bar", ""):
        setting.write(text)
        for _ in range(3):
            assert await fields.of("chat_completions") == text.split()
    assert await fields.of("messages") == ()
    assert setting.reads == 3


async def test_an_invalid_file_changes_nothing(setting: Setting) -> None:
    """A mistake in the file must not stop the runs that work."""
    setting.write("foo")
    fields = FreeFields(setting.read(), setting.file, setting.read)

    setting.write("?")
    assert await fields.of("chat_completions") == ["foo"]
    assert await fields.of("chat_completions") == ["foo"]
    assert setting.reads == 2

    setting.write("bar")
    assert await fields.of("chat_completions") == ["bar"]


async def test_a_file_that_is_removed_changes_nothing(setting: Setting) -> None:
    """A mounted file may be away for a moment."""
    setting.write("foo")
    fields = FreeFields(setting.read(), setting.file, setting.read)

    setting.file.unlink()

    assert await fields.of("chat_completions") == ["foo"]
