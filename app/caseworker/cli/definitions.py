"""Commands that agents and graphs have in common."""

from typing import Any

import typer

from caseworker.cli.output import fail, show, show_json
from caseworker.cli.service import add_action, add_list


def reference(text: str) -> dict[str, Any]:
    """Return a reference to a registered definition, given as ``NAME`` or ``NAME@VERSION``."""
    name, _, version = text.partition("@")
    if not version:
        return {"name": name}
    if not version.isdecimal():
        fail(f"{text}: the version must be a number, such as {name}@2.")
    return {"name": name, "version": int(version)}


def add_definition_commands(cli: typer.Typer, kind: str) -> None:
    """Add the commands ``list``, ``show`` and ``delete``; ``kind`` is ``agent`` or ``graph``."""

    def parse(text: str) -> Any:
        return reference(text).values()

    columns = "name version created_at description"
    add_list(cli, f"{kind}s", columns, f"List the registered {kind}s, by name.")
    text = f"Print a registered {kind} as JSON. NAME@VERSION selects a version."
    add_action(cli, "show", text, f"get_{kind}", parse=parse)
    text = f"Delete a registered {kind}. NAME@VERSION deletes only one version."
    add_action(cli, "delete", text, f"delete_{kind}", f"Deleted {kind} {{id}}.", parse)


def show_registered(kind: str, registered: Any, *, as_json: bool) -> None:
    """Print the name, the version and the warnings of a definition that was registered."""
    if as_json:
        show_json(registered.as_json())
        return
    for warning in registered.warnings:
        show(f"warning: {warning['place']}: {warning['message']}")
    show(f"Registered {kind} {registered.name}, version {registered.version}.")
