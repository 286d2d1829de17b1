"""The example file is the schema, written down."""

from pathlib import Path

import pytest
import yaml

from app.settings.example import render_example
from app.settings.keys import keys_of
from app.settings.loader import load_settings
from app.settings.schema import Settings

EXAMPLE = Path(__file__).parents[3] / "config.yaml.example"


@pytest.mark.req("002/17.5", "002/15.5", "002/24.3")
def test_the_example_states_every_default_and_nothing_else() -> None:
    """When this fails: `python -m app.settings.example > config.yaml.example`."""
    assert EXAMPLE.read_text(encoding="utf-8") == render_example()


def test_the_example_loads_as_the_defaults(tmp_path: Path) -> None:
    """Copying it changes nothing."""
    (tmp_path / "config.yaml").write_text(EXAMPLE.read_text(encoding="utf-8"))

    assert load_settings({}, tmp_path).settings == Settings()


def test_every_key_stands_in_the_example_but_secrets() -> None:
    """Secrets are named in a comment, with their variable."""
    text = EXAMPLE.read_text(encoding="utf-8")
    written = yaml.safe_load(text)

    for key in keys_of(Settings).walk():
        place = written
        for section in key.path[:-1]:
            place = place[section]
        assert (key.path[-1] in place) is not key.environment_only, key.dotted
        if key.environment_only:
            assert key.variable in text
