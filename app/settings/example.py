"""Writes `config.yaml.example` from the schema: `python -m app.settings.example`."""

import json
import re
import sys
import textwrap
from pathlib import PurePath
from typing import Any

from app.settings.keys import Key, SectionOfKeys, keys_of
from app.settings.schema import Settings

_HEADER = """\
# All settings of Caseworker with their defaults: copy this file to config.yaml and change what
# you need; a key that is left out keeps its default. CASEWORKER_CONFIG names another file.
#
# The environment overrides the file: every key by its path in capitals, such as SERVER_PORT or
# BUDGET_MAX_SECONDS, or with CASEWORKER_ before it, which takes precedence. There, `null` is null,
# a list is written a,b,c, and an empty variable counts as not set. Keys and passwords come from
# the environment only.
"""

_WIDTH = 100
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9./][A-Za-z0-9_./-]*")


def render_example() -> str:
    """Return the text of the example file."""
    return _HEADER + "".join(_part(name, part) for name, part in keys_of(Settings).parts.items())


def _part(name: str, part: Key | SectionOfKeys) -> str:
    indent = "  " * (len(part.path) - 1)
    if isinstance(part, Key):
        return _comment(_help(part), indent) + f"{indent}{_setting(name, part)}\n"
    inner = "".join(_part(name, inner) for name, inner in part.parts.items())
    return f"\n{_comment(part.description, indent)}{indent}{name}:\n{inner}"


def _setting(name: str, key: Key) -> str:
    if key.environment_only:
        return f"# {name}: set {key.variable} in the environment"
    return f"{name}: {_scalar(key.default)}"


def _help(key: Key) -> str:
    values = f" One of {', '.join(key.choices)}." if key.choices else ""
    return key.description + values


def _comment(text: str, indent: str) -> str:
    lead = f"{indent}# "
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False
    )
    return "".join(f"{line}\n" for line in lines)


def _scalar(value: Any) -> str:
    """Write a default as YAML."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, PurePath | str) and _PLAIN_TEXT.fullmatch(str(value)):
        return str(value)
    return json.dumps(value)


if __name__ == "__main__":
    sys.stdout.write(render_example())
