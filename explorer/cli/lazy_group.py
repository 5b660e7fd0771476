"""Groups that import a command only when it is called, so that a process imports only the command that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from refold.explorer.cli.options import InOrder


class LazyGroup(InOrder):
    """A group that imports a command when it is called. The help text lists the commands under headings."""

    def __init__(self, *arguments: Any, sections: Mapping[str, Mapping[str, tuple[str, str]]], **keywords: Any) -> None:
        """Create the group.

        Args:
            sections: heading -> command -> (MODULE:ATTRIBUTE below refold.explorer.cli, summary). The summary is the
                first sentence of the command's own help; a test checks that.
        """
        super().__init__(*arguments, **keywords)
        self.sections = sections
        self._commands = {name: each for commands in sections.values() for name, each in commands.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._commands and cmd_name not in self.commands:
            module, _, attribute = self._commands[cmd_name][0].partition(":")
            self.add_command(getattr(import_module(f"refold.explorer.cli.{module}"), attribute), cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._commands))
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])
