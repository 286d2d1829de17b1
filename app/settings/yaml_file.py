"""Reads a settings file: plain YAML, every key once, and nothing that expands."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from app.observability.redaction import redact_text
from app.settings.keys import Key, SectionOfKeys
from app.settings.problems import SettingsError, unknown_key

_MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 20


class _PlainLoader(yaml.SafeLoader):
    """YAML whose mappings have texts for keys, each of them once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping whose keys are texts that differ."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise _refused("a key must be a text", key.start_mark)
            if key.value in seen:
                raise _refused(f"the key {key.value!r} stands here twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(problem: str, mark: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def read_yaml(path: Path, place: str, schema: SectionOfKeys) -> dict[str, Any]:
    """Return what a file sets, by section and key; values are not judged yet.

    ``place`` is how messages name the file.

    Raises:
        SettingsError: it cannot be read, is not plain YAML, or has keys that are not known.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{place}: cannot be read: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"{place}: is larger than 1 MiB")
    return _known(_parse(content, place), schema, place)


def _parse(content: bytes, place: str) -> Any:
    try:
        _refuse_what_expands(content)
        return yaml.load(content, Loader=_PlainLoader)  # noqa: S506 - it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = redact_text(error.problem or error.context or "not YAML")
        raise SettingsError(f"{place}{where}: {problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{place}: is not plain YAML in UTF-8") from error


def _refuse_what_expands(content: bytes) -> None:
    """Refuse aliases, and nesting that would exhaust the stack of whoever builds it."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases are not allowed", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise _refused("it is nested too deeply", event.start_mark)


def _known(written: Any, schema: SectionOfKeys, place: str) -> dict[str, Any]:
    """Check names all the way down; an empty section is one that sets nothing."""
    at = f"{place}: {'.'.join(schema.path)}" if schema.path else place
    if written is None:
        return {}
    if not isinstance(written, Mapping):
        allowed = ", ".join(schema.parts)
        raise SettingsError(f"{at}: must be a section with keys and values: {allowed}")
    found: dict[str, Any] = {}
    for name, value in written.items():
        part = schema.parts.get(name)
        if part is None:
            dotted = ".".join((*schema.path, name))
            raise unknown_key(f"{place}: {redact_text(dotted)}", name, schema.parts)
        if isinstance(part, Key):
            _refuse_secret(part, value, place)
            found[name] = value
        else:
            found[name] = _known(value, part, place)
    return found


def _refuse_secret(key: Key, value: Any, place: str) -> None:
    """Keep secrets out of files: whole ones, and passwords inside a URL."""
    credentials, at, _ = str(value).partition("@")
    in_user_part = bool(at) and ":" in credentials.partition("://")[2]
    in_url = key.secret and (in_user_part or "password=" in str(value))
    if value is not None and (key.environment_only or in_url):
        raise SettingsError(
            f"{place}: {key.dotted}: secrets come from the environment only: set {key.variable}"
        )
