"""Groups of commands that import a command when it is asked for, so that a process pays for the one it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from refold.explorer.cli.options import InOrder


class Late(InOrder):
    """late: name -> (where it stands, as MODULE:ATTRIBUTE beside this module; what a list of commands says of it).

    What is said is the first sentence of the command's own help; a test holds the two together.
    """

    def __init__(self, *arguments: Any, late: Mapping[str, tuple[str, str]], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.late = late

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.late)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.late and cmd_name not in self.commands:
            module, _, attribute = self.late[cmd_name][0].partition(":")
            self.add_command(getattr(import_module(f"refold.explorer.cli.{module}"), attribute), cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines: dict[str, click.Command] = {
            name: click.Command(name, help=says) for name, (_, says) in self.late.items()
        }
        InOrder(commands=lines).format_commands(ctx, formatter)
