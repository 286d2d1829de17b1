"""Settings loaded from a folder with a config.yaml."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from caseworker.settings.loader import LoadedSettings, load_settings


def load(
    cwd: Path, text: str | None = None, environ: Mapping[str, str] | None = None
) -> LoadedSettings:
    """Load with ``text`` as the config.yaml of ``cwd``."""
    if text is not None:
        (cwd / "config.yaml").write_text(text, encoding="utf-8")
    return load_settings(environ or {}, cwd)


def problem(cwd: Path, text: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return the one-line error that stops the start."""
    with pytest.raises(SettingsError) as caught:
        load(cwd, text, environ)
    line = str(caught.value)
    assert "\n" not in line
    return line
