"""Writes `config.yaml.example` from the schema: `python -m tests.support.config_example`."""

import json
import re
import sys
import textwrap
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from caseworker.platform.docstrings import docstrings_of
from caseworker.settings.schema import Settings
from caseworker.settings.values import Location, variable_of

_HEADER = """\
# All settings of Caseworker with their defaults: copy this file to config.yaml and change what
# you need; a key that is left out keeps its default. CASEWORKER_CONFIG names another file.
#
# The environment overrides the file: every key by its path in capitals, such as SERVER_PORT or
# BUDGET_MAX_SECONDS, or with CASEWORKER_ before it, which takes precedence. There, `null` is null,
# a list is written a,b,c, and an empty variable counts as not set. Keys and passwords come from
# the environment only.
"""


def render_example(section: type[BaseModel] = Settings, path: Location = ()) -> str:
    """Return the text of the example file, or of one section."""
    text, indent = "" if path else _HEADER, "  " * len(path)
    for name, field in section.model_fields.items():
        key, inner = (*path, name), type(field.default)
        if issubclass(inner, BaseModel):
            title = _comment(inner.__doc__ or "", indent)
            text += f"\n{title}{indent}{name}:\n{render_example(inner, key)}"
            continue
        line = f"{name}: {_scalar(field.default)}"
        if name == "api_key":
            line = f"# {name}: set {variable_of(key)} in the environment"
        kinds = (field.annotation, *get_args(field.annotation))
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        choices = f" One of {', '.join(words)}." * bool(words)
        about = field.description or docstrings_of(section)[name]
        text += f"{_comment(f'{about}{choices}', indent)}{indent}{line}\n"
    return text


def _comment(text: str, indent: str) -> str:
    lines = textwrap.wrap(" ".join(text.split()), 98 - len(indent), break_on_hyphens=False)
    return "".join(f"{indent}# {line}\n" for line in lines)


def _scalar(value: Any) -> str:
    """Return a default as YAML."""
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value) if isinstance(value, PurePath | str) else ""
    return text if re.fullmatch(r"[\w./][\w./-]*", text, re.ASCII) else json.dumps(value)


if __name__ == "__main__":
    sys.stdout.write(render_example())
