"""docs/CLI.md matches the help texts of the commands."""

from __future__ import annotations

import re

import click
import pytest

from refold.explorer.cli.document import page
from refold.explorer.cli.lazy_group import LazyGroup
from refold.explorer.cli.main import cli
from refold_tests.tree import ROOT

DOCUMENT = ROOT / "docs" / "CLI.md"


def commands_of(group: click.Group) -> dict[str, click.Command]:
    context = click.Context(group)
    return {name: group.get_command(context, name) or pytest.fail(name) for name in group.list_commands(context)}


def test_page_matches_the_commands() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == page(), "run: python -P -m refold.explorer.cli.document > docs/CLI.md"


def test_every_command_is_on_the_page_with_an_example() -> None:
    sections = dict(
        re.findall(r"^## refold ([\w-]+)\n(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    )
    assert sections.keys() == commands_of(cli).keys()
    for name, body in sections.items():
        assert f"  refold {name}" in body.partition("Example")[2].replace("| refold", "  refold"), name


def test_summary_in_the_list_equals_the_commands_docstring() -> None:
    groups = [cli, *(each for each in commands_of(cli).values() if isinstance(each, LazyGroup))]
    assert len(groups) > 1
    for group in groups:
        said = {name: command.get_short_help_str(limit=1000) for name, command in commands_of(group).items()}
        assert {name: says for commands in group.sections.values() for name, (_, says) in commands.items()} == said
        assert {name: command.name for name, command in commands_of(group).items()} == {name: name for name in said}


def test_every_form_of_when_is_explained() -> None:
    commands = commands_of(cli)
    for name, command in commands_of(cli).items():
        if isinstance(command, click.Group):
            commands |= {f"{name} {inner}": each for inner, each in commands_of(command).items()}
    assert "deadletters list" in commands
    for name, command in commands.items():
        asks = any("WHEN" in str(parameter.metavar) for parameter in command.params)
        assert asks == ("WHEN is one of" in (command.epilog or "")), name


def test_version_is_offered_for_questions_about_one_entity() -> None:
    commands = commands_of(cli)
    for name, command in commands_of(cli).items():
        if isinstance(command, click.Group):
            commands |= {f"{name} {inner}": each for inner, each in commands_of(command).items()}
    offered = {name for name, command in commands.items() if "  v12  " in (command.epilog or "")}
    assert offered == {"state", "history", "diff", "why"}
