"""Commands for a project with own agents and tools: create it, and serve it while it changes."""

import os
import shutil
import sys
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from caseworker.cli.output import AsJson, fail, show, show_json, startup_errors

cli = typer.Typer(rich_markup_mode=None)

_DOT = "dot-"
"""Prefix of template files whose names start with a dot in the project."""
CREATED = """\
Created a project in {folder}. Next:
{enter}  caseworker dev      serve it, and reload it on changes
  caseworker agents run support "Where is order 1042?" --max-cost-usd 0.01
                      ask the agent in another terminal, within a budget
  pytest              test tool and agent without a model
README.md describes the files."""


@cli.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the project.")] = Path(),
) -> None:
    """Create a project with an agent, a tool, a test and files for Docker.

    Exits with 2, and changes nothing, if one of its files exists.
    """
    with as_file(files("caseworker.cli") / "template") as template:
        copies = {
            each: folder / str(each.relative_to(template)).replace(_DOT, ".")
            for each in sorted(template.rglob("*"))
            if each.is_file() and each.suffix != ".pyc"
        }
        if existing := [str(each) for each in copies.values() if each.exists()]:
            fail(f"{', '.join(existing)}: already exists. Choose another folder.")
        try:
            for source, target in copies.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        except OSError as error:
            fail(f"{error.filename}: cannot be written: {error.strerror}")
    enter = "" if folder == Path() else f"  cd {folder}\n"
    show(CREATED.format(folder=folder.resolve(), enter=enter))


@cli.command()
def dev(
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the viewer in a browser.")
    ] = True,
) -> None:
    """Serve the project in this folder, and reload it on changes.

    Reads .env, logs for humans, and uses an embedded Postgres unless DATABASE_URL is set.
    Unfinished runs continue after a reload. If no model is configured, a stub model answers.
    """
    from caseworker.main.development import run_development

    def started(url: str) -> None:
        show(f"Caseworker listens on {url}\nView all runs: {url}/ui   Press Ctrl+C to stop.")
        if open_browser and sys.stdout.isatty() and _has_desktop():
            import webbrowser

            webbrowser.open(f"{url}/ui")

    with startup_errors():
        run_development(report=show, started=started)


@cli.command()
def doctor(
    models: Annotated[
        bool, typer.Option("--models", help="Call each configured model once. This costs money.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check everything that the service needs.

    Prints one line for each check. Exits with 1 if there is a problem. An embedded database is
    started and migrated.
    """
    from caseworker.main.doctor import examine

    findings = []
    for each in examine(ask_models=models):
        findings.append(asdict(each))
        if not as_json:
            show(f"{'OK' if each.ok else 'problem':8} {each.check:14} {each.detail}")
    if as_json:
        show_json(findings)
    if not all(each["ok"] for each in findings):
        raise typer.Exit(1)


def _has_desktop() -> bool:
    local = "SSH_CONNECTION" not in os.environ
    display = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    return local and bool(display)
