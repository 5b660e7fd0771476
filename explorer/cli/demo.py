"""`refold demo`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where to put the demo's log [a temporary folder].",
)
@click.option("--keep", is_flag=True, help="Keep the log at the end, to ask more of it.")
def demo(folder: Path | None, keep: bool) -> int:
    """See the main job end to end.

    An agent is recorded, killed midway, and explained from its log alone. Nothing is downloaded, and
    nothing outside the folder is touched.

    \b
    Example
      refold demo --folder /tmp/refold-demo --keep
    """
    from refold.explorer.demo.run import run

    return run(folder, keep)
