"""docs/limits.md lists every limit of the configuration with its current default."""

import re
from pathlib import Path
from typing import Any

from caseworker.settings.schema import Settings
from caseworker.settings.values import keys_of, path_text

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ROW = re.compile(r"^\| `([a-z_.]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
LIMIT = re.compile(r"(?:^|\.)(?:max_\w+|\w*timeout_(?:seconds|ms)|intent_ttl_seconds)$")
COUNTERS = frozenset({"act.max_steps", "act.max_steps_fallback_only"})
"""Rounds of the case agent: part of its design, not a limit that users reach."""


def shown(default: Any) -> str:
    """Return a default as the page writes it."""
    return "none" if default is None else f"{default:g}" if default < 1e6 else f"{default}"


def limits() -> dict[str, str]:
    keys = ((path_text(path), field.default) for path, field in keys_of(Settings))
    return {key: shown(default) for key, default in keys if LIMIT.search(key)}


def test_every_limit_of_the_configuration_stands_on_its_page() -> None:
    """Each limit is listed with its default and its effect."""
    rows = {key: default.strip() for key, default, _ in ROW.findall(PAGE.read_text())}

    expected = {key: default for key, default in limits().items() if key not in COUNTERS}
    assert len(expected) > 40
    assert {key: rows.get(key) for key in expected} == expected
    assert set(rows) <= set(expected) | {path_text(path) for path, _ in keys_of(Settings)}
