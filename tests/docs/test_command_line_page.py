"""The page about the command line against the commands that exist."""

import re
from typing import Any

import typer
from typer.core import TyperGroup

from caseworker.cli import cli
from tests.support.pages import ROOT

PAGE = ROOT / "docs" / "command-line.md"


def test_the_page_names_exactly_the_commands_that_exist() -> None:
    """Commands of a group are named with their group."""
    top: Any = typer.main.get_command(cli)
    names = set()
    for name in top.list_commands(None):
        command = top.get_command(None, name)
        if isinstance(command, TyperGroup):
            names |= {f"{name} {sub}" for sub, each in command.commands.items() if not each.hidden}
        else:
            names.add(name)
    groups = "|".join({name.split()[0] for name in names if " " in name})
    found = re.findall(rf"`caseworker ((?:{groups}) [a-z][a-z-]*|[a-z][a-z-]*)", PAGE.read_text())

    assert set(found) == names
