"""`refold mcp-record`: record the messages between a client and an MCP server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.cli.record.proxy import (
    CLOSING_S,
    capture_modules,
    capture_settings,
    print_stored,
    spool_max_option,
    spool_option,
)
from refold.explorer.cli.record.record import exit_as
from refold.explorer.cli.runs.code import redact_option, redactor_for
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run


@click.command("mcp-record", context_settings={"ignore_unknown_options": True})
@click.option("--agent", metavar="NAME", help="The agent's name in the runs [the server's program].")
@click.option("--replay", "run_id", metavar="RUN", help="Answer from this run; no server is started.")
@redact_option
@spool_option
@spool_max_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- SERVER...")
@on_log
def mcp_record(
    place: LogTarget, agent: str | None, run_id: str | None, redact: str | None, spool: Path | None, spool_mib: int,
    command: tuple[str, ...],
) -> int:  # fmt: skip
    """Run an MCP server, and record what it is asked.

    Configure your client to start this command instead of the server. Every byte is passed on at once, in both
    directions. Each request becomes a step of a run, and each tool call an action: `read` if the server marks the tool
    with readOnlyHint, else `write`. While the log is slow or unavailable, recorded messages wait in a spool. The exit
    status is that of the server; if a signal ended the server, the same signal ends this command.

    With --replay the answers are from a recorded run, and no server is started. A request that is not recorded gets an
    error, and the exit status is 1.

    \b
    Examples
      claude mcp add shop -- refold mcp-record --log file:/srv/agents/.refold -- python shop_server.py
      refold mcp-record --replay 8f2c
    """
    if run_id is not None:
        if command:
            raise InputError("--replay answers from the recording alone: leave the server out")
        return _replay(place, run_id, redact)
    if not command:
        raise InputError("give the server's command after --, or a recorded run with --replay")
    capture_modules()
    from refold.agents.capture.mcp_tee import McpTee

    name = Path(command[0]).name
    given = capture_settings(place, agent or name, {"program": name}, redact, spool, spool_mib)
    tee = McpTee(given)
    try:
        ended = tee.run(command, os.environ)
    finally:
        print_stored(tee.close(CLOSING_S), given.log_url)
    return exit_as(ended)


def _replay(place: LogTarget, run_id: str, redact: str | None) -> int:
    from refold.agents.capture.mcp_playback import RecordedSession

    with place.read() as log:
        recording = log.recording(known_run(log, run_id, log.point().cut))
        given = redactor_for(redact)
        session = RecordedSession(recording, None if given is None else log.capturing(given).redactor())
    for line in session.serve(_pieces()):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    for each in session.unrecorded:
        click.echo(f"refold: not recorded: {each}", err=True)
    return 1 if session.unrecorded else 0


def _pieces() -> Iterator[bytes]:
    while data := os.read(sys.stdin.fileno(), 1 << 16):
        yield data
