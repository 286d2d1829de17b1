"""Reads settings from the environment, by the names that the schema gives its keys.

A variable ``CASEWORKER_X`` is the same as ``X`` and takes precedence. Only with that prefix is an
unknown name an error: the environment holds many names that are none of our business.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from app.settings.fallbacks import API_KEY_VARIABLE
from app.settings.keys import Key, Path, SectionOfKeys
from app.settings.problems import SettingsError, bad_value

PREFIX = "CASEWORKER_"

CONFIG_VARIABLE = "CASEWORKER_CONFIG"
"""Names the settings file."""

SHARED_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "TIINGO_API_KEY")
"""What providers' own clients read; both tiers of models do too, and the stock tools."""

_NEAR_MISS = 0.9
"""Likeness of two names above which one is taken for a slip of the other."""

_SHORTEST_NEAR_MISS_CHARS = 8

_LINK_VALUE = re.compile(r"(?:tcp|udp|sctp)://")
_LINK_NAME = re.compile(r"_SERVICE_(?:HOST|PORT)(?:_|$)|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_|$)")


@dataclass(frozen=True, slots=True)
class Override:
    """A value from the environment and the variable it came from."""

    variable: str
    value: Any


def read_environment(
    environ: Mapping[str, str], schema: SectionOfKeys
) -> tuple[dict[Path, Override], list[str]]:
    """Return what the environment sets, by path, and warnings about what it seems to mean.

    A variable that is empty is not set.

    Raises:
        SettingsError: a prefixed name is unknown, or a value cannot be a setting's.
    """
    given = {name: text.strip() for name, text in environ.items() if text.strip()}
    # Of two keys with one name the longer path wins: it comes later.
    keys = {key.variable: key for key in sorted(schema.walk(), key=lambda key: len(key.path))}
    warnings = [*_refuse_unknown(given, keys), *_near_misses(given, keys)]
    overrides: dict[Path, Override] = {}
    for variable, key in keys.items():
        name = PREFIX + variable if PREFIX + variable in given else variable
        if name in given:
            overrides[key.path] = Override(name, _value(name, given[name], key))
    return overrides, warnings


def shared_value(environ: Mapping[str, str], variable: str) -> Override | None:
    """Return a variable that is no key's own, such as a shared one, if it is set."""
    for name in (PREFIX + variable, variable):
        if text := environ.get(name, "").strip():
            return Override(name, text)
    return None


def _value(name: str, text: str, key: Key) -> Any:
    """Read a text as the kind of value that the key takes; its bounds are judged later."""
    if _LINK_VALUE.match(text):
        raise SettingsError(
            f"{name}: must be {key.expected}; {text!r} is a service link, which an orchestrator"
            f" sets for a service of that name: set {PREFIX}{key.variable}, which takes"
            " precedence, or turn service links off"
        )
    if key.nullable and text.lower() == "null":
        return None
    if not key.is_list:
        return text
    if not text.startswith("["):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        return json.loads(text)
    except ValueError:
        raise bad_value(name, key, text) from None


def _refuse_unknown(given: Mapping[str, str], keys: Mapping[str, Key]) -> list[str]:
    """Stop at an unknown prefixed name, unless no person wrote it; then warn."""
    links = []
    known = {CONFIG_VARIABLE.removeprefix(PREFIX), *keys, *SHARED_VARIABLES}
    for name in sorted(given):
        bare = name.removeprefix(PREFIX)
        if bare == name or bare in known or API_KEY_VARIABLE.fullmatch(bare):
            continue
        if not (_LINK_NAME.search(name) or _LINK_VALUE.match(given[name])):
            raise SettingsError(f"{name}: unknown setting{_suggestion(bare, known)}")
        links.append(name)
    if not links:
        return []
    return [f"{', '.join(links)}: ignored; service links of an orchestrator, not settings"]


def _near_misses(given: Mapping[str, str], keys: Mapping[str, Key]) -> list[str]:
    known = {*keys, *SHARED_VARIABLES}
    return [
        f"{name}: not a setting; did you mean {near[0]}?"
        for name in sorted(given)
        if name not in known
        and not API_KEY_VARIABLE.fullmatch(name.removeprefix(PREFIX))
        and len(name) >= _SHORTEST_NEAR_MISS_CHARS
        and (near := get_close_matches(name, known, n=1, cutoff=_NEAR_MISS))
        and near[0] not in given
    ]


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return (
        f"; did you mean {PREFIX}{near[0]}?" if near else "; config.yaml.example names all of them"
    )
