"""Find, import and call the entry points of installed packages.

This module imports few other parts of the service, because the command line reads it.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar

from caseworker.main.errors import StartupError
from caseworker.platform.entry_points import registered as installed

Product = TypeVar("Product")

COMMANDS = "caseworker.commands"
"""Entry point group for CLI commands; the entry point's name is the command name."""


def installed_commands(
    points: Iterable[EntryPoint] | None = None,
) -> Mapping[str, Callable[[object], Callable[..., None]]]:
    """Return a loader for each CLI command registered as an entry point, by name.

    A loader imports and returns the command. Its argument opens an API client; factories with a
    required parameter receive it. ``points`` replaces the installed entry points.

    A command that cannot be created raises StartupError when it is called, so that a broken package
    disables no other command.
    """
    points_by_name: dict[str, list[EntryPoint]] = {}
    for at in registered(COMMANDS, points):
        points_by_name.setdefault(at.name, []).append(at)
    return {name: partial(_command, at) for name, at in points_by_name.items()}


def _command(points: list[EntryPoint], with_client: object) -> Callable[..., None]:
    point = points[0]
    try:
        if len(points) > 1:
            raise _twice("command", point.name, point.value, points[1].value)
        object_ = created(point, "command", with_client)
        if not inspect.isroutine(object_):
            raise StartupError(
                f"The command {point.name!r} ({point.value}) must be a function that returns a "
                "command."
            )
    except StartupError as error:
        reason = error

        def refuse() -> None:
            raise reason

        refuse.__doc__ = str(error)
        return refuse
    command: Callable[..., None] = object_
    return command


def registered(group: str, points: Iterable[EntryPoint] | None) -> Iterable[EntryPoint]:
    """Return the entry points of a group; ``points`` replaces the installed ones."""
    return installed(group) if points is None else points


def unique(kind: str, entries: Iterable[tuple[str, str, Product]]) -> dict[str, Product]:
    """Return (name, origin, object) entries as a mapping by name, sorted; reject duplicates."""
    by_name: dict[str, tuple[str, Product]] = {}
    for name, origin, each in entries:
        if name in by_name:
            raise _twice(kind, name, by_name[name][0], origin)
        by_name[name] = (origin, each)
    return {name: each for name, (_, each) in sorted(by_name.items())}


def _twice(kind: str, name: str, one: str, other: str) -> StartupError:
    return StartupError(f"Two {kind}s have the name {name!r}: {one} and {other}.")


def created(point: EntryPoint, kind: str, argument: object) -> Any:
    """Return the object of an entry point; pass ``argument`` to factories that require one.

    Raises:
        StartupError: the object cannot be imported or created; the message calls it a ``kind``.
    """
    loaded = loaded_from(point, kind)
    if not (inspect.isroutine(loaded) or inspect.isclass(loaded)):
        return loaded
    factory: Callable[..., Any] = loaded
    try:
        return factory(argument) if _requires_one(factory) else factory()
    except Exception as error:
        from caseworker.platform.logs.errors import message_of_error

        raise StartupError(
            f"The {kind} {point.name!r} ({point.value}) cannot be created: "
            f"{message_of_error(error)}"
        ) from error


def _requires_one(factory: Callable[..., Any]) -> bool:
    return any(
        each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        for each in inspect.signature(factory).parameters.values()
    )


def loaded_from(point: EntryPoint, kind: str) -> Any:
    """Import and return the object that an entry point names.

    Raises:
        StartupError: the import fails; ``kind`` names the object in the message.
    """
    try:
        return point.load()
    except Exception as error:
        from caseworker.platform.logs.errors import message_of_error

        reason, missing = message_of_error(error), getattr(error, "name", None) or ""
        if isinstance(error, ModuleNotFoundError) and missing.partition(".")[0] == "app":
            reason = f"it imports {missing}, but the package app was renamed to caseworker"
        elif not isinstance(error, SyntaxError):  # its message ends with the place
            reason = f"{reason}{_place_of(error)}"
        raise StartupError(
            f"The {kind} {point.name!r} ({point.value}) cannot be loaded: {reason}"
        ) from error


def _place_of(error: Exception) -> str:
    """Return the innermost file and line of a module that raised an error when it was imported."""
    frames = [each for each in extract_tb(error.__traceback__) if each.name == "<module>"]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
