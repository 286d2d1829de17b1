"""Load the settings of a process from a YAML file and environment variables.

``CASEWORKER_X`` is equivalent to ``X`` and takes precedence. Unknown names are an error only with
this prefix.
"""

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import InitSettingsSource, SettingsError, YamlConfigSettingsSource

from caseworker.settings.schema import Settings
from caseworker.settings.values import Location, keys_of, path_text, types_in, variable_of

PREFIX = "CASEWORKER_"
FILE, PROJECT_FILE = "config.yaml", "caseworker.yaml"
SHARED_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "TIINGO_API_KEY")
"""Environment variables that provider clients use by convention. They serve as defaults if no
specific setting is given."""
_NO_SETTINGS = tuple(f"{PREFIX}{name}" for name in ("CONFIG", "URL", "API_KEY", "KEY"))
"""Variables of the command line: the settings file, the service URL and the keys for it."""
_NEAR_MISS = ": not a setting;"
_HARMLESS_URL = re.compile(r"[\w+]+://(?![^@]*:.*@)(?!.*password=)")
_TIERS, _NAMED_MODELS = (("models", "small"), ("models", "big")), ("models", "named")
_LINK = re.compile(r"=(tcp|udp|sctp)://|_SERVICE_(HOST|PORT)[_=]|_PORT_\d+_(TCP|UDP|SCTP)[_=]")
_IN_YAML = {"model_type": "must be a section with keys and values", "tuple_type": "must be a list"}


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings of a process, warnings about them, and the file they were read from, if any."""

    settings: Settings
    warnings: tuple[str, ...]
    """Warning lines to log once logging is configured."""
    near_misses: tuple[str, ...]
    """The subset of ``warnings`` about environment variables that look like misspelled settings."""
    source: Path | None
    origins: Mapping[Location, str]
    """Where each value that is not a default was set: a variable, or a file with its line."""


def load_settings(environ: Mapping[str, str], cwd: Path) -> LoadedSettings:
    """Return the settings merged from defaults, the configuration file and the environment.

    The environment takes precedence over the file. The file is the one that ``CASEWORKER_CONFIG``
    names, by default ``config.yaml`` or ``caseworker.yaml`` in ``cwd``.

    Raises:
        SettingsError: a setting is invalid; the message is one line and shows no secret.
    """
    path = settings_file(environ, cwd)
    source = EnvironmentSource(environ, YamlSource(Settings, path))
    try:
        settings = Settings(_build_sources=((source,), {}))
    except ValidationError as error:
        line = _line(error.errors(include_url=False)[0], source.origins, path.name)
        raise SettingsError(" ".join(line.split())) from None
    exists = path.exists()
    lines = lines_of(path) if exists else {}
    origins = {at: f"{path.name}:{line}" for at, line in lines.items()} | source.origins
    return LoadedSettings(
        settings, source.warnings, source.near_misses, path if exists else None, origins
    )


def settings_file(environ: Mapping[str, str], cwd: Path) -> Path:
    """Return the path of the configuration file; without ``CASEWORKER_CONFIG`` it may not exist.

    Raises:
        SettingsError: the named file does not exist, or there are two files.
    """
    config_path = environ.get(f"{PREFIX}CONFIG", "").strip()
    existing = [each for each in (FILE, PROJECT_FILE) if (cwd / each).exists()]
    if not config_path and len(existing) > 1:
        problem = f"one of them would be ignored; remove one, or name one in {PREFIX}CONFIG"
        raise SettingsError(f"{' and '.join(existing)}: {problem}")
    path = cwd / Path(config_path or next(iter(existing), FILE)).expanduser()
    if not path.is_file() and (config_path or path.exists()):
        where = f"{PREFIX}CONFIG" if config_path else path.name
        raise SettingsError(f"{where}: file not found: {str(path)!r}")
    return path


class _PlainLoader(yaml.SafeLoader):
    """A YAML loader that rejects aliases and duplicate keys and converts keys to strings."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key, value in node.value:
            if (name := str(key.value)) in mapping:
                problem = f"duplicate key {name!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            mapping[name] = self.construct_object(value, deep=True)
        return mapping


class _CoreLoader(_PlainLoader):
    """A loader for the core schema of YAML 1.2, which reads ``no`` and ``2025-01-31`` as text."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - those of YAML 1.1 are not inherited


for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def read_yaml(path: Path, *, is_core_schema: bool = False) -> Any:
    """Return the contents of a YAML file. Aliases and duplicate keys are rejected.

    ``is_core_schema`` selects the core schema of YAML 1.2, which OpenAPI documents use.

    Raises:
        SettingsError: the file cannot be read; the message names it and shows no secret.
    """
    try:
        with path.open("rb") as file:  # as bytes, because errors would quote text
            loader = _CoreLoader if is_core_schema else _PlainLoader
            return yaml.load(file, Loader=loader)  # noqa: S506 - safe
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        from caseworker.platform.logs.redaction import redact_text  # slow, and only for errors

        problem = " ".join(redact_text(str(error)).split())
        raise SettingsError(f"{path.name} cannot be read: {problem}") from error


def lines_of(path: Path) -> dict[Location, int]:
    """Return the line of each value in a valid YAML file that is not itself a mapping or list."""
    lines: dict[Location, int] = {}

    def visit(node: yaml.Node, at: Location) -> None:
        match node:
            case yaml.MappingNode():
                for key, value in node.value:
                    visit(value, (*at, str(key.value)))
            case yaml.SequenceNode():
                for index, value in enumerate(node.value):
                    visit(value, (*at, index))
            case _:
                lines[at] = node.start_mark.line + 1

    with path.open("rb") as file:
        if (root := yaml.compose(file, Loader=_PlainLoader)) is not None:
            visit(root, ())
    return lines


class YamlSource(YamlConfigSettingsSource):
    """Settings source for the YAML file, if it exists. Secrets in the file are rejected."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        written = read_yaml(file_path)
        if not isinstance(written, dict | None):
            raise SettingsError(f"{file_path.name}: {_IN_YAML['model_type']}")
        _refuse_secrets(written, (), file_path.name)
        return written or {}


class EnvironmentSource(InitSettingsSource):
    """Settings source that overrides the file with environment variables.

    Empty variables count as unset.
    """

    def __init__(self, environ: Mapping[str, str], file: YamlSource) -> None:
        self._values = {name: text.strip() for name, text in environ.items() if text.strip()}
        self._merged = file()
        self.origins: dict[Location, str] = {}  # the variable that set each value
        empty = sorted(name for name, text in environ.items() if not text.strip())
        warnings = tuple(_check_empty(empty))
        for path, _ in keys_of(Settings):
            self._set(path, variable_of(path))
        for tier in _TIERS:
            if self._section(tier).get("use") is None:
                self._complete(tier, "openai", tier=True)
        keys = {path: variable_of(path) for path in self._keys_of_models()}
        for path, variable in keys.items():
            self._set(path, variable)
            self._complete(path[:-1], "openai")
        self._complete(("tools", "prices"), "tiingo")
        self.warnings = (*warnings, *self._check_names(keys.values()))
        self.near_misses = tuple(line for line in self.warnings if _NEAR_MISS in line)
        super().__init__(Settings, self._merged)

    def _keys_of_models(self) -> Iterator[Location]:
        """Yield the paths of the API keys of fallbacks and named models."""
        for tier in _TIERS:
            fallbacks = self._section(tier).get("fallbacks")
            for index in range(len(fallbacks) if isinstance(fallbacks, list) else 0):
                yield (*tier, "fallbacks", index, "api_key")
        for name in self._section(_NAMED_MODELS):
            yield (*_NAMED_MODELS, name, "api_key")

    def _section(self, path: Location) -> dict[str, Any]:
        """Return the values of a section; empty if its path holds another type."""
        place: Any = self._merged
        for name in path:
            if isinstance(place, dict) and place.get(name) is None:
                place[name] = {}
            exists = isinstance(place, dict) or (isinstance(place, list) and isinstance(name, int))
            place = place[name] if exists else {}
        return place if isinstance(place, dict) else {}

    def _set(self, path: Location, variable: str) -> None:
        """Set a key from its environment variable, if given."""
        section = self._section(path[:-1])
        name = PREFIX + variable if PREFIX + variable in self._values else variable
        if name in self._values:
            section[str(path[-1])], self.origins[path] = self._parsed(name, path), name

    def _complete(self, path: Location, provider: str, *, tier: bool = False) -> None:
        """Default a provider's key and endpoint to the variables that its own clients read."""
        section = self._section(path)
        provider_name, base_url = str(section.get("provider") or provider), section.get("base_url")
        if tier and provider_name == "openai" and base_url is None:
            self._set((*path, "base_url"), "OPENAI_BASE_URL")
        # Otherwise the endpoint of a fallback or price source would receive another server's key.
        if (tier or base_url is None) and section.get("api_key") is None:
            self._set((*path, "api_key"), f"{provider_name.upper()}_API_KEY")

    def _parsed(self, name: str, path: Location) -> Any:
        """Parse a variable as null, a number or a list where its key accepts one."""
        text, types = self._values[name], types_in(_field_at(path).annotation)
        if _LINK.match(f"={text}"):
            problem = (
                f"{text!r} is a service link of the orchestrator; disable service links, or set"
            )
            raise SettingsError(
                f"{name}: {problem} {PREFIX}{variable_of(path)}, which takes precedence"
            )
        if text.lower() == "null" and type(None) in types:
            return None
        if tuple in types and not text.startswith("["):
            return [each.strip() for each in text.split(",") if each.strip()]
        with suppress(ValueError):
            return json.loads(text) if any(t in (dict, tuple, int, float) for t in types) else text
        return text

    def _check_names(self, keys_of_models: Iterable[str]) -> Iterator[str]:
        """Yield warnings about names that resemble settings; reject unknown prefixed names."""
        known_names = {
            *map(variable_of, dict(keys_of(Settings))),
            *SHARED_VARIABLES,
            *keys_of_models,
        }
        for name, text in sorted(self._values.items()):
            bare = name.removeprefix(PREFIX)
            if bare in known_names or name in _NO_SETTINGS:
                continue
            prefix = name.removesuffix(bare)
            near = get_close_matches(bare, known_names, n=1, cutoff=0.6 if prefix else 0.9)
            hint = f"did you mean {prefix}{near[0]}?" if near else "see config.yaml.example"
            if prefix and _LINK.search(f"{name}={text}"):
                yield (
                    f"{name}: ignored because it is a service link of the orchestrator, not a "
                    "setting"
                )
            elif prefix:
                raise SettingsError(f"{name}: unknown setting; {hint}")
            elif near and near[0] not in self._values:
                yield f"{name}{_NEAR_MISS} {hint}"


def _check_empty(names: Sequence[str]) -> Iterator[str]:
    """Yield a warning about empty provider keys and endpoints.

    Raises:
        SettingsError: a secret of ``auth`` is empty, which could leave the service open.
    """
    paths = {variable_of(path): path for path, _ in keys_of(Settings)}
    unset = []
    for name in names:
        bare = name.removeprefix(PREFIX)
        path = paths.get(bare, ())
        if path[:1] == ("auth",) and SecretStr in types_in(_field_at(path).annotation):
            raise SettingsError(
                f"{name}: the variable is empty; set the secret or remove the variable"
            )
        of_provider = path[-1:] in (("api_key",), ("base_url",)) or bare in SHARED_VARIABLES
        of_model = bare.startswith("MODELS_") and bare.endswith("_API_KEY")
        if of_model or (of_provider and bare.endswith(("_KEY", "_BASE_URL"))):
            unset.append(name)
    if unset:
        yield f"{', '.join(unset)}: empty, treated as not set"


def _refuse_secrets(value: Any, path: Location, source: str) -> None:
    """Reject keys, and passwords in URLs: files get copied, committed and mailed."""
    secret = SecretStr in types_in(_field_at(path).annotation) and value is not None
    if secret and not _HARMLESS_URL.match(str(value)):
        problem = f"secrets are read from the environment only; set {variable_of(path)}"
        raise SettingsError(f"{source}: {path_text(path)}: {problem}")
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _refuse_secrets(inner, (*path, name), source)


def _field_at(path: Location) -> FieldInfo:
    """Return the schema field at a path; an untyped field if the schema has no such key."""
    field = FieldInfo(annotation=Settings)
    by_name = False  # the keys of a dict are free names
    for name in path:
        if isinstance(name, str) and not by_name:
            field = _keys_in(field).get(name, FieldInfo())
        by_name = not by_name and dict in types_in(field.annotation)
    return field


def _keys_in(field: FieldInfo) -> dict[str, FieldInfo]:
    """Return the keys of a field's section, or of the sections in its list."""
    types = types_in(field.annotation)
    return next((kind.model_fields for kind in types if hasattr(kind, "model_fields")), {})


def _line(error: ErrorDetails, origins: Mapping[Location, str], source: str) -> str:
    """Format a validation error as one line: where the value was set, and the allowed values."""
    from caseworker.platform.logs.redaction import redact_text

    kind, path, value = error["type"], error["loc"], error["input"]
    problem = re.sub(r"^.*? should ", "must ", error["msg"].removeprefix("Value error, "))
    problem, field, value_note = _IN_YAML.get(kind, problem), _field_at(path), ""
    if kind == "extra_forbidden":
        names = list(_keys_in(_field_at(path[:-1])))
        near = [f"did you mean {near}? " for near in get_close_matches(str(path[-1]), names, n=1)]
        problem = f"unknown key; {''.join(near)}Allowed keys: {', '.join(names)}"
    elif kind == "value_error" and _keys_in(field):
        name, _, problem = problem.partition(": ")
        problem = problem.replace("its own api_key", variable_of((*path, "api_key")))
        path = (*path, *name.split("."))
    elif (
        SecretStr in types_in(field.annotation)
        or isinstance(value, dict | list)
        or (path in origins and _keys_in(field))  # malformed JSON may contain keys
    ):
        value_note = " (its value is not shown)"
    else:
        value_note = f" (got {redact_text(json.dumps(value, default=str), max_chars=60)})"
    origin = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in origins), ())
    place = path_text(path[len(origin) :])
    where = f"{origins[origin]}.{place}".strip(".") if origin else f"{source}: {place}"
    return f"{redact_text(where)}: {problem}{value_note}"
