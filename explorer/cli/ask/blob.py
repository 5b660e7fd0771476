"""`refold blob`: a content that was too large to be stored in a field."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.queries.log_target import LogTarget
from refold.streams.exchange.atomic_file import whole_file

HASH = re.compile(r"[0-9a-fA-F]{64}\Z")


@click.command()
@click.argument("digest", metavar="HASH")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to a file [standard output].",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@on_log
def blob(target: LogTarget, digest: str, output: Path | None, force: bool) -> int:
    """Print a stored content by its SHA-256.

    \b
    Example
      refold blob 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 -o result.json
    """
    if not HASH.match(digest):
        raise InputError(f"{digest!r:.80}: a content is named by 64 hexadecimal digits; `refold state` shows them")
    with target.read() as log:
        content = log.blob(digest.lower())
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        with whole_file(output, replace=force) as file:
            file.write(content)
    return 0
