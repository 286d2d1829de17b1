"""Makes the settings of a process from a YAML file and the environment.

A variable ``CASEWORKER_X`` is the same as ``X`` and takes precedence. Only with that prefix is an
unknown name an error: the environment holds many names of other programs.
"""

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import PydanticBaseSettingsSource, SettingsError, YamlConfigSettingsSource

from app.observability.redaction import redact_text
from app.settings.cases import ModelSettings
from app.settings.schema import Key, Settings, keys_of
from app.settings.values import ENVIRONMENT_ONLY

PREFIX = "CASEWORKER_"
SHARED_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "TIINGO_API_KEY")
"""What providers' own clients read; both tiers of models do too, and the stock tools."""
_USUAL = {
    "openai": {"api_key": "OPENAI_API_KEY", "base_url": "OPENAI_BASE_URL"},
    "anthropic": {"api_key": "ANTHROPIC_API_KEY"},
}
_FALLBACK_KEY = re.compile(r"MODELS_(?:SMALL|BIG)_FALLBACKS_[1-9]\d?_API_KEY")
_LINK_VALUE = re.compile(r"(?:tcp|udp|sctp)://")
_LINK_NAME = re.compile(r"_SERVICE_(?:HOST|PORT)(?:_|$)|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_|$)")
_IN_YAML = {"tuple_type": "must be a list", "path_type": "must be a path"}
"""Wording for errors that pydantic words with types of Python."""
_NEAR_MISS = 0.9
"""Likeness of two names above which one is taken for a slip of the other."""
_SHORTEST_NEAR_MISS_CHARS = 8

Location = tuple[str | int, ...]
"""The path of a value: names of sections and keys, and positions in lists."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and what is worth saying about where they came from."""

    settings: Settings
    warnings: tuple[str, ...]
    """Lines to log once logging works."""
    source: Path | None
    """The file that was read; None if there was none."""


def load_settings(environ: Mapping[str, str], cwd: Path) -> LoadedSettings:
    """Merge defaults, file and environment, each above the one before.

    The file is the one that ``CASEWORKER_CONFIG`` names, or else ``config.yaml`` in ``cwd`` if it
    exists.

    Raises:
        SettingsError: something does not fit; its text is one line and shows no secret.
    """
    named = environ.get(f"{PREFIX}CONFIG", "").strip()
    shown = named or "config.yaml"
    path = cwd / Path(shown).expanduser()
    if not path.is_file() and (named or path.exists()):
        raise SettingsError(f"{f'{PREFIX}CONFIG' if named else shown}: there is no file {shown!r}")
    source = EnvironmentSource(environ, YamlSource(path, shown))
    try:
        settings = Settings(_build_sources=((source,), {}))
    except ValidationError as error:
        line = _line(error.errors(include_url=False)[0], source.origins, shown)
        raise SettingsError(" ".join(line.split())) from None
    return LoadedSettings(settings, source.warnings, path if path.exists() else None)


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, whose mappings have texts for keys, each of them once."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise self._refused("aliases are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise self._refused("a key must be a text", key.start_mark)
            if key.value in seen:
                raise self._refused(f"the key {key.value!r} stands here twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def _refused(self, problem: str, mark: Any) -> yaml.MarkedYAMLError:
        return yaml.constructor.ConstructorError(None, None, problem, mark)


class YamlSource(YamlConfigSettingsSource):
    """What the file at ``path`` sets, if it exists: plain YAML without secrets.

    Raises:
        SettingsError: it cannot be read, is not plain YAML, or holds a secret.
    """

    def __init__(self, path: Path, shown: str) -> None:
        """``shown`` is how messages name the file."""
        self._shown = shown
        super().__init__(Settings, yaml_file=path)

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        try:
            written = yaml.load(file_path.read_bytes(), Loader=_PlainLoader)  # noqa: S506 - safe
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            reason = getattr(error, "problem", None) or getattr(error, "strerror", None)
            problem = redact_text(reason or "is not plain YAML in UTF-8, or nested too deeply")
            raise SettingsError(f"{self._shown}{where}: {problem}") from error
        if not isinstance(written, dict | None):
            raise SettingsError(f"{self._shown}: {_must_be(Settings)}")
        self._refuse_secrets(written)
        return written or {}

    def _refuse_secrets(self, written: Any) -> None:
        """Refuse keys, and passwords in URLs: files get copied, committed and mailed."""
        for key in keys_of(Settings):
            value, place, variable = _at(written, key.path), ".".join(key.path), key.variable
            credentials, at, _ = str(value).partition("://")[2].partition("@")
            password = (at and ":" in credentials) or "password=" in str(value)
            secret = ENVIRONMENT_ONLY in key.field.metadata or (SecretStr in key.types and password)
            if value is not None and secret:
                raise self._misplaced(place, variable)
            for number, item in enumerate(value if isinstance(value, list) else [], start=1):
                if _at(item, ("api_key",)) is not None:
                    raise self._misplaced(
                        f"{place} item {number}: api_key", f"{variable}_{number}_API_KEY"
                    )

    def _misplaced(self, place: str, variable: str) -> SettingsError:
        problem = f"secrets come from the environment only: set {variable}"
        return SettingsError(f"{self._shown}: {place}: {problem}")


class EnvironmentSource(PydanticBaseSettingsSource):
    """A file's settings with what the environment sets in their place.

    The environment sets the keys of the schema by their names, and the usual variables of
    providers set API keys that nothing else sets. A variable that is empty is not set.

    Raises:
        SettingsError: a prefixed name is unknown, or a value cannot be a setting's.
    """

    def __init__(self, environ: Mapping[str, str], file: YamlSource) -> None:
        super().__init__(Settings)
        self._given = {name: text.strip() for name, text in environ.items() if text.strip()}
        self._merged = file()
        self.origins: dict[Location, str] = {}
        """The variable that each value comes from."""
        # Of two keys with one name the longer path wins: it comes later.
        by_length = sorted(keys_of(Settings), key=lambda key: len(key.path))
        self._keys = {key.variable: key for key in by_length}
        self.warnings = tuple(self._judge_names())

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return nothing: values are found by their path, not by the name of a section."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return all that is set, by section and key."""
        for variable, key in self._keys.items():
            if name := self._find(variable):
                self._put(key.path, self._parsed(name, key), name)
        for tier in ("small", "big"):
            self._complete(("models", tier), self._usual(_at(self._merged, ("models", tier))))
            self._complete_fallbacks(("models", tier, "fallbacks"))
        prices = _at(self._merged, ("tools", "prices")) or {}
        if prices.get("provider") != "packaged" and not prices.get("base_url"):
            self._complete(("tools", "prices"), {"api_key": "TIINGO_API_KEY"})
        return self._merged

    def _find(self, *variables: str) -> str | None:
        """Return the first of these names that is set, with the prefix or without it."""
        names = (prefix + variable for variable in variables for prefix in (PREFIX, ""))
        return next((name for name in names if name in self._given), None)

    def _put(self, path: tuple[str, ...], value: Any, variable: str) -> None:
        """Set a value, unless the file has something else in the place of its section."""
        place = self._merged
        for name in path[:-1]:
            place[name] = place.get(name) or {}
            if not isinstance(place := place[name], dict):
                return
        place[path[-1]], self.origins[path] = value, variable

    def _usual(self, model: Any) -> dict[str, str]:
        """Return what the client of a model's provider reads, by the key that it sets here."""
        return _USUAL.get(str(_at(model, ("provider",)) or "openai"), {})

    def _complete(self, section: tuple[str, ...], variables: Mapping[str, str]) -> None:
        """Set keys that nothing closer sets."""
        for field, variable in variables.items():
            path = (*section, field)
            if _at(self._merged, path) is None and (name := self._find(variable)):
                self._put(path, self._given[name], name)

    def _complete_fallbacks(self, path: tuple[str, ...]) -> None:
        """Give each fallback its own API key, or its provider's usual one.

        The usual key goes to the provider itself alone: a fallback at an endpoint of its own would
        otherwise be sent the key of another server.
        """
        items = _at(self._merged, path)
        for index, item in enumerate(items if isinstance(items, list) else []):
            if not isinstance(item, dict) or item.get("api_key") is not None:
                continue
            variables = ["_".join((*path, str(index + 1), "api_key")).upper()]
            if item.get("base_url") is None:
                variables += [v for field, v in self._usual(item).items() if field == "api_key"]
            if name := self._find(*variables):
                item["api_key"], self.origins[(*path, index, "api_key")] = self._given[name], name

    def _parsed(self, name: str, key: Key) -> Any:
        """Read a text as null, a number or a list where the key takes one."""
        text = self._given[name]
        if _LINK_VALUE.match(text):
            raise SettingsError(
                f"{name}: {text!r} is a service link, which an orchestrator sets for a service of"
                f" that name: set {PREFIX}{key.variable}, which takes precedence, or turn service"
                " links off"
            )
        if text.lower() == "null" and NoneType in key.types:
            return None
        if tuple in key.types and not text.startswith("["):
            return [each.strip() for each in text.split(",") if each.strip()]
        if not {tuple, int, float}.intersection(key.types):
            return text
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _judge_names(self) -> Iterator[str]:
        """Yield warnings about names that are no setting's; refuse a prefixed one."""
        known, links = {*self._keys, *SHARED_VARIABLES, "CONFIG"}, []
        for name, text in sorted(self._given.items()):
            bare = name.removeprefix(PREFIX)
            if bare in known or _FALLBACK_KEY.fullmatch(bare):
                continue
            if bare == name:
                near = get_close_matches(name, known, n=1, cutoff=_NEAR_MISS)
                if near and near[0] not in self._given and len(name) >= _SHORTEST_NEAR_MISS_CHARS:
                    yield f"{name}: not a setting; did you mean {near[0]}?"
            elif _LINK_NAME.search(name) or _LINK_VALUE.match(text):
                links.append(name)
            else:
                near = get_close_matches(bare, known, n=1)
                hint = f"did you mean {PREFIX}{near[0]}?" if near else "see config.yaml.example"
                raise SettingsError(f"{name}: unknown setting; {hint}")
        if links:
            yield f"{', '.join(links)}: ignored; service links of an orchestrator, not settings"


def _at(data: Any, path: tuple[str, ...]) -> Any:
    """Return what stands at a path of nested mappings, None if there is nothing."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _section_at(path: Location) -> type[BaseModel]:
    section: type[BaseModel] = Settings
    for name in path:
        if isinstance(name, int):
            section = ModelSettings  # fallbacks are the only list of sections
        elif isinstance(default := section.model_fields[name].default, BaseModel):
            section = type(default)
    return section


def _must_be(section: type[BaseModel]) -> str:
    return f"must be a section with keys and values: {', '.join(section.model_fields)}"


def _line(error: ErrorDetails, origins: Mapping[Location, str], shown: str) -> str:
    """Say of an error where its value stands and what it must be."""
    path, kind, value = error["loc"], error["type"], error["input"]
    if kind == "contradiction":
        path = (*path, *error["ctx"]["key"].split("."))
    origin = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in origins), ())
    parts = (f" item {p + 1}:" if isinstance(p, int) else f".{p}" for p in path[len(origin) :])
    place = "".join(parts).replace(":.", ": ").removeprefix(".").removesuffix(":")
    where = origins[origin] + place if origin else f"{shown}: {place}"
    problem = re.sub(r"^.*? should ", "must ", error["msg"].removeprefix("Value error, "))
    problem = _IN_YAML.get(kind, problem)
    if kind == "contradiction":
        return f"{where}: {problem}"
    if kind == "model_type":
        return f"{where}: {_must_be(_section_at(path))}"
    if kind == "extra_forbidden":
        names = list(_section_at(path[:-1]).model_fields)
        near = get_close_matches(str(path[-1]), names, n=1)
        hint = f" did you mean {near[0]}?" if near else ""
        return f"{redact_text(where)}: unknown key;{hint} Allowed here: {', '.join(names)}"
    secret = any(key.path == path and SecretStr in key.types for key in keys_of(Settings))
    if secret or path[-1] == "api_key" or isinstance(value, dict | list):
        return f"{where}: {problem} (its value is not shown)"
    return f"{where}: {problem} (got {redact_text(json.dumps(value, default=str), max_chars=60)})"
