"""The example file is the schema, written down."""

from pathlib import Path

import pytest
import yaml

from app.settings.loader import load_settings
from app.settings.schema import Settings, keys_of
from tests.support.config_example import render_example

EXAMPLE = Path(__file__).parents[3] / "config.yaml.example"


@pytest.mark.req("002/17.5", "002/15.5", "002/24.3")
def test_the_example_states_every_default_and_nothing_else() -> None:
    """When this fails: `python -m tests.support.config_example > config.yaml.example`."""
    assert EXAMPLE.read_text(encoding="utf-8") == render_example()


def test_the_example_loads_as_the_defaults(tmp_path: Path) -> None:
    """Copying it changes nothing."""
    (tmp_path / "config.yaml").write_text(EXAMPLE.read_text(encoding="utf-8"))

    assert load_settings({}, tmp_path).settings == Settings()


def test_every_key_stands_in_the_example_but_secrets() -> None:
    """Secrets are named in a comment, with their variable."""
    text = EXAMPLE.read_text(encoding="utf-8")
    written = yaml.safe_load(text)

    for key in keys_of(Settings):
        place = written
        for section in key.path[:-1]:
            place = place[section]
        assert (key.path[-1] in place) is (key.path[-1] != "api_key"), key.path
        assert key.path[-1] in place or key.variable in text
