"""`refold demo`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the demo's log goes, and stays [.refold-demo].",
)
@click.option("--keep", is_flag=True, help="Leave a former demo's log there, and put the new one beside it.")
def demo(folder: Path | None, keep: bool) -> int:
    """See the main job end to end.

    An agent is recorded, killed midway, and explained from its log alone. Nothing is downloaded, and
    nothing outside the folder is touched. At the end you are given commands to ask more of its log.

    \b
    Example
      refold demo
    """
    from refold.explorer.demo.run import run

    return run(folder, keep)
