"""Generate docs/CLI.md, the help texts of all commands.

python -P -m refold.explorer.cli.document > docs/CLI.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from refold.explorer.cli.main import cli

WIDTH = 100
HEADING = """\
# The command line

The help text of every command. This page is generated: change the help texts, then run
`python -P -m refold.explorer.cli.document > docs/CLI.md`.
"""


def page() -> str:
    """Return the whole page, in Markdown."""
    outer = _context(cli, "refold", None)
    return "\n".join([HEADING, *_sections(outer, cli, "##")])


def _sections(context: click.Context, command: click.Command, mark: str) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands."""
    yield f"{mark} {context.command_path}\n\n```text\n{context.get_help().strip()}\n```\n"
    if isinstance(command, click.Group):
        # The commands of `refold` itself get headings of the same level.
        inner = mark if context.parent is None else f"{mark}#"
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _sections(_context(found, name, context), found, inner)


def _context(command: click.Command, name: str, outer: click.Context | None) -> click.Context:
    return click.Context(
        command, parent=outer, info_name=name, terminal_width=WIDTH, help_option_names=["-h", "--help"]
    )


if __name__ == "__main__":
    sys.stdout.write(page())
