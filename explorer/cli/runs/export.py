"""`refold run export`: write a run, or a comparison of two, to one file that opens without refold."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import WHEN, on_log, run_argument
from refold.explorer.cli.options import at as at_option
from refold.explorer.cli.output.screen import Screen
from refold.explorer.cli.runs.code import redactor_for
from refold.explorer.queries.log_target import LogTarget
from refold.streams.exchange.atomic_file import whole_file


@click.command("export", epilog=WHEN)
@run_argument
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("--html", "file", metavar="FILE", required=True, help="The file to write.")
@click.option("--redact", is_flag=False, flag_value="", default=None, metavar="[NAME]",
              help="Replace secrets by tokens: by the standard rules, or a function, module:function.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@at_option
@on_log
def export(
    target: LogTarget, run_id: str, other: str | None, file: str, redact: str | None, force: bool, at: str | None
) -> int:
    """Write a run to one HTML file that opens without refold.

    The file holds all steps of the run, as the explorer shows them. With OTHER it holds the comparison of the two runs.
    It loads nothing and runs no script. A sealed content is written in clear if its key is here.

    \b
    Examples
      refold run export 8f2c --html incident.html
      refold run export 8f2c 91aa --html difference.html --redact
    """
    if find_spec("jinja2") is None:
        raise InputError("an export needs jinja2: install it with pip install 'refold[explore]'")
    from refold.explorer.web.export import comparison_file, run_file

    redactor = redactor_for(redact)
    with target.read() as log:
        content = (
            run_file(log, run_id, at, redactor, target.url)
            if other is None
            else comparison_file(log, run_id, other, at, redactor, target.url)
        )
    with whole_file(Path(file), replace=force) as stream:
        stream.write(content)
    Screen().say(f"{file}: {len(content):,} bytes; any browser opens it")
    return 0
