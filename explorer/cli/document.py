"""docs/CLI.md: what every command says with --help, written by

python -P -m refold.explorer.cli.document > docs/CLI.md
"""

from __future__ import annotations

import sys

import click

from refold.explorer.cli.main import cli

WIDTH = 100
HEADING = """\
# The command line

Every command with what it says to `--help`. This page is generated: change the help texts, then run
`python -P -m refold.explorer.cli.document > docs/CLI.md`.
"""


def page() -> str:
    """The whole page, in Markdown."""
    outer = _context(cli, "refold", None)
    parts = [HEADING, _section(outer)]
    for name in cli.list_commands(outer):
        command = cli.get_command(outer, name)
        assert command is not None
        parts.append(_section(_context(command, name, outer)))
    return "\n".join(parts)


def _context(command: click.Command, name: str, outer: click.Context | None) -> click.Context:
    return click.Context(
        command, parent=outer, info_name=name, terminal_width=WIDTH, help_option_names=["-h", "--help"]
    )


def _section(context: click.Context) -> str:
    return f"## {context.command_path}\n\n```text\n{context.get_help().strip()}\n```\n"


if __name__ == "__main__":
    sys.stdout.write(page())
