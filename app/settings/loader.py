"""Makes the settings of a process from a file and the environment (spec, section 12)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.settings.environment import (
    CONFIG_VARIABLE,
    Override,
    read_environment,
    shared_value,
)
from app.settings.fallbacks import api_key_variable, check_fallbacks, refuse_written_keys
from app.settings.keys import Path as KeyPath
from app.settings.keys import SectionOfKeys, keys_of
from app.settings.problems import SettingsError, bad_value
from app.settings.schema import ContradictionError, Settings
from app.settings.yaml_file import read_yaml

_DEFAULT_FILE = "config.yaml"
_TIERS = ("small", "big")


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
        SettingsError: something does not fit; its text is the one line to print.
    """
    schema = keys_of(Settings)
    source, place = _source(environ, cwd)
    written = read_yaml(source, place, schema) if source else {}
    for tier in _TIERS:
        refuse_written_keys(_fallbacks(written, tier), tier, f"{place}: {_dotted(tier)}")
    overrides, warnings = read_environment(environ, schema)
    for path, override in overrides.items():
        _put(written, path, override.value)
    overrides |= _take_usual_variables(written, environ)
    for tier in _TIERS:
        _complete_fallbacks(_fallbacks(written, tier), tier, environ)
        given = overrides.get(("models", tier, "fallbacks"))
        where = f"{place}: {_dotted(tier)}" if given is None else given.variable
        check_fallbacks(_fallbacks(written, tier), where)
    return LoadedSettings(
        settings=_validate(written, overrides, place, schema),
        warnings=tuple(warnings),
        source=source,
    )


def _source(environ: Mapping[str, str], cwd: Path) -> tuple[Path | None, str]:
    named = environ.get(CONFIG_VARIABLE, "").strip()
    if named:
        path = cwd / Path(named).expanduser()
        if not path.is_file():
            raise SettingsError(f"{CONFIG_VARIABLE}: there is no file {named!r}")
        return path, named
    path = cwd / _DEFAULT_FILE
    return (path if path.exists() else None), _DEFAULT_FILE


def _take_usual_variables(
    written: dict[str, Any], environ: Mapping[str, str]
) -> dict[KeyPath, Override]:
    """Give both tiers and the prices their providers' usual variables, unless closer ones are set.

    The usual key of prices goes to their provider itself alone.
    """
    shared: dict[KeyPath, Override] = {}
    for tier in _TIERS:
        model = written.get("models", {}).get(tier, {})
        for name, variable in _usual_variables(model.get("provider")).items():
            if model.get(name) is None and (override := shared_value(environ, variable)):
                shared["models", tier, name] = override
    prices = written.get("tools", {}).get("prices", {})
    closer = prices.get("api_key") or prices.get("base_url") or prices.get("provider") == "packaged"
    if not closer and (override := shared_value(environ, "TIINGO_API_KEY")):
        shared["tools", "prices", "api_key"] = override
    for path, override in shared.items():
        _put(written, path, override.value)
    return shared


def _complete_fallbacks(fallbacks: Any, tier: str, environ: Mapping[str, str]) -> None:
    """Give each fallback its own key, or its provider's usual one.

    The usual key goes to the provider itself alone: a fallback at an endpoint of its own would
    otherwise be sent the key of another server.
    """
    for number, item in enumerate(fallbacks if isinstance(fallbacks, list) else [], start=1):
        if not isinstance(item, dict) or item.get("api_key") is not None:
            continue
        own = shared_value(environ, api_key_variable(tier, number))
        usual = _usual_variables(item.get("provider")).get("api_key")
        if own is None and usual is not None and item.get("base_url") is None:
            own = shared_value(environ, usual)
        if own is not None:
            item["api_key"] = own.value


def _fallbacks(written: Mapping[str, Any], tier: str) -> Any:
    return written.get("models", {}).get(tier, {}).get("fallbacks")


def _dotted(tier: str) -> str:
    return f"models.{tier}.fallbacks"


def _usual_variables(provider: Any) -> dict[str, str]:
    """Return what a provider's own client reads, by the key that it fills here."""
    if provider in (None, "openai"):
        return {"api_key": "OPENAI_API_KEY", "base_url": "OPENAI_BASE_URL"}
    return {"api_key": "ANTHROPIC_API_KEY"} if provider == "anthropic" else {}


def _put(written: dict[str, Any], path: KeyPath, value: Any) -> None:
    *sections, name = path
    for section in sections:
        written = written.setdefault(section, {})
    written[name] = value


def _validate(
    written: dict[str, Any], overrides: Mapping[KeyPath, Override], file: str, schema: SectionOfKeys
) -> Settings:
    try:
        return Settings.model_validate(written)
    except ValidationError as error:
        raise _first_problem(error, overrides, file, schema) from None


def _first_problem(
    error: ValidationError, overrides: Mapping[KeyPath, Override], file: str, schema: SectionOfKeys
) -> SettingsError:
    """Say of the first error where its value stands and what it must be."""
    found = error.errors(include_url=False)[0]
    cause = found.get("ctx", {}).get("error")
    contradiction = cause if isinstance(cause, ContradictionError) else None
    place = contradiction.key.split(".") if contradiction else [str(at) for at in found["loc"]]
    key = next(key for key in schema.walk() if list(key.path) == place[: len(key.path)])
    override = overrides.get(key.path)
    where = override.variable if override else f"{file}: {key.dotted}"
    if contradiction:
        return SettingsError(f"{where}: {contradiction.problem}")
    return bad_value(where, key, override.value if override else found["input"])
