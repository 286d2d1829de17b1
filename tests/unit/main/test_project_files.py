"""Files of a project that cannot be read: they stop nothing, or the start with one line."""

import os
from pathlib import Path

import pytest

from caseworker.main.development import _changes
from caseworker.main.errors import StartupError
from caseworker.main.project import use_dotenv
from caseworker.main.service_address import service_url


def test_a_link_to_itself_and_a_virtual_environment_are_not_watched(tmp_path: Path) -> None:
    """A file that cannot be read must not end the service."""
    (tmp_path / "link.py").symlink_to("link.py")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    changed = _changes(tmp_path)

    (tmp_path / "env" / "a.py").touch()
    (tmp_path / "tools.py").touch()

    changes = iter(changed, "")
    assert next(changes) == "tools.py"


@pytest.mark.parametrize("content", [b"A=\xe4secret", b"A=sec\0ret"])
def test_an_unreadable_env_file_stops_the_start_with_one_line(
    content: bytes, tmp_path: Path
) -> None:
    """The message shows nothing of the file."""
    (tmp_path / "caseworker.yaml").touch()
    (tmp_path / ".env").write_bytes(content)

    with pytest.raises(StartupError, match=r"^\.env cannot be read: \w+$"):
        use_dotenv(tmp_path)


def test_an_unreadable_configuration_is_reported_by_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that only needs the address of the service does not end with a traceback."""

    def unreadable(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", unreadable)

    assert service_url().startswith("http://")


def test_the_env_file_of_a_project_is_read_whatever_sets_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that call the service find their API key there."""
    (tmp_path / "caseworker.yaml").touch()
    (tmp_path / ".env").write_text("CASEWORKER_API_KEY=secret")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {})

    assert service_url("http://example.org") == "http://example.org"
    assert os.environ == {"CASEWORKER_API_KEY": "secret"}
