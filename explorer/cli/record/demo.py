"""`refold demo`: see refold work."""

from __future__ import annotations

from pathlib import Path

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.cli.output.screen import Screen
from refold.explorer.queries.log_target import LogTarget


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The folder for the demo's log, which is kept [.refold-demo].",
)
@click.option("--keep", is_flag=True, help="Keep the log of an earlier demo, and create the new one next to it.")
@click.option("--incident", is_flag=True, help="Only record the failing run of docs/INCIDENT.md, into the log.")
@click.option("--capture", is_flag=True, help="Record and play a program that does not use refold.")
@click.option("--heal", is_flag=True, help="Stop an agent in a loop, heal it, and prove it.")
@on_log
def demo(target: LogTarget, folder: Path | None, keep: bool, incident: bool, capture: bool, heal: bool) -> int:
    """See refold work, end to end.

    It records an agent, kills it midway, and explains it from its log alone. Then another agent fails, and you find out
    why. It downloads nothing and touches nothing outside the folder. At the end it prints commands with which to
    explore its log.

    With --incident it only records the failing run, into the log that every command uses. docs/INCIDENT.md starts with
    it.

    With --capture it runs a small agent with `refold record`, and again with `refold play`, with a stand-in for the
    model (docs/guides/capture.md). The log is in .refold-capture.

    With --heal an agent is stuck in a loop at night. `refold up` runs it, its policy stops it, and the supervisor heals
    it by morning (docs/guides/heal.md). The log is in .refold-heal, or that of --log.

    \b
    Examples
      refold demo
      refold demo --capture
      refold demo --heal
      refold demo --incident --log kafka://127.0.0.1:9092/agents
    """
    if capture:
        if target.url is not None or keep or incident or heal:
            raise InputError("--capture makes a log of its own, in the folder of --folder: leave the others out")
        from refold.explorer.demo.capture.demo import run as run_capture

        return run_capture(folder)
    if heal:
        if keep or incident:
            raise InputError("--heal records runs of its own: leave --keep and --incident out")
        from refold.explorer.demo.heal.demo import run as run_heal

        return run_heal(folder, target)
    if incident:
        if folder is not None or keep:
            raise InputError("--incident records into the log of --log or REFOLD_LOG: leave --folder and --keep out")
        return _fail(target)
    if target.url is not None:
        raise InputError("the demo makes a log of its own: name its folder with --folder, or say --incident")
    from refold.explorer.demo.run import run

    return run(folder, keep)


def _fail(target: LogTarget) -> int:
    from refold.explorer.demo.desk import AGENT, RUN, fail

    with target.write() as log:
        fail(log)
        Screen().say(f"{AGENT} failed in run {RUN}, recorded in {log.port.url}; find out why: docs/INCIDENT.md")
    return 0
