"""`refold mcp-record`: record the messages between a client and an MCP server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.cli.record.proxy import (
    CLOSING_S,
    address_of,
    capture_modules,
    capture_settings,
    print_stored,
    spool_max_option,
    spool_option,
    stop_by_signals,
)
from refold.explorer.cli.record.record import exit_as
from refold.explorer.cli.runs.code import redact_option, redactor_for
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run
from refold.streams.runtime import wait_for

if TYPE_CHECKING:
    from refold.agents.capture.capture import CaptureSettings
    from refold.agents.capture.mcp_playback import RecordedSession

LISTEN = "127.0.0.1:6079"


@click.command("mcp-record", context_settings={"ignore_unknown_options": True})
@click.option("--url", metavar="URL", help="A server over streamable HTTP, such as https://mcp.example.com/mcp.")
@click.option("--listen", metavar="HOST:PORT",
              help=f"Over HTTP: the address, loopback only; port 0 is any free port [{LISTEN}].")  # fmt: skip
@click.option("--agent", metavar="NAME", help="The agent's name in the runs [the server's program or host].")
@click.option("--replay", "run_id", metavar="RUN", help="Answer from this run; no server is started.")
@redact_option
@spool_option
@spool_max_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- SERVER...")
@on_log
def mcp_record(
    target: LogTarget, url: str | None, listen: str | None, agent: str | None, run_id: str | None, redact: str | None,
    spool: Path | None, spool_mib: int, command: tuple[str, ...],
) -> int:  # fmt: skip
    """Run an MCP server, and record what it is asked.

    Configure your client to start this command instead of the server. Every byte is passed on at once, in both
    directions. Each request becomes a step of a run, and each tool call an action: `read` if the server marks the tool
    with readOnlyHint, else `write`. While the log is slow or unavailable, recorded messages wait in a spool. The exit
    status is that of the server; if a signal ended the server, the same signal ends this command.

    A server over streamable HTTP is named with --url. Give your client the address that the command prints. It passes
    every request on, with its headers, which are not recorded, until SIGTERM or Ctrl-C ends it.

    With --replay the answers are from a recorded run, and no server is started or asked: over standard input, or with
    --listen over HTTP. A request that is not recorded gets an error, and the exit status is 1.

    \b
    Examples
      claude mcp add shop -- refold mcp-record --log file:/srv/agents/.refold -- python shop_server.py
      refold mcp-record --url https://mcp.example.com/mcp
      refold mcp-record --replay 8f2c
    """
    if run_id is not None:
        if command or url is not None:
            raise InputError("--replay answers from the recording alone: leave the server out")
        return _replay(target, run_id, redact, listen)
    if url is not None and command:
        raise InputError("--url names a server that runs: leave the server out after --")
    if url is not None:
        settings = {"upstream": capture_modules().shown(url)}
        given = capture_settings(target, agent or urlsplit(url).hostname or "", settings, redact, spool, spool_mib)
        return _pass_on(given, url, listen or LISTEN)
    if listen is not None:
        raise InputError("--listen is for a server over HTTP: name it with --url, or a recorded run with --replay")
    if not command:
        raise InputError("give the server's command after --, its address with --url, or a recorded run with --replay")
    capture_modules()
    from refold.agents.capture.mcp_tee import McpTee

    name = Path(command[0]).name
    given = capture_settings(target, agent or name, {"program": name}, redact, spool, spool_mib)
    tee = McpTee(given)
    try:
        ended = tee.run(command, os.environ)
    finally:
        print_stored(tee.close(CLOSING_S), given.log_url)
    return exit_as(ended)


def _pass_on(settings: CaptureSettings, url: str, listen: str) -> int:
    from refold.agents.capture.mcp_http import McpHttpTee

    host, port = address_of(listen)
    stop = Event()
    stop_by_signals(stop)
    tee = McpHttpTee(settings._replace(host=host, port=port), url)
    click.echo(f"refold mcp-record: {tee.url} passes on to {capture_modules().shown(url)}; Ctrl-C ends it")
    wait_for(stop)
    print_stored(tee.close(CLOSING_S), settings.log_url)
    return 0


def _replay(target: LogTarget, run_id: str, redact: str | None, listen: str | None) -> int:
    from refold.agents.capture.mcp_playback import RecordedSession

    with target.read() as log:
        run_id = known_run(log, run_id, log.point().cut)
        recording = log.recording(run_id)
        given = redactor_for(redact)
        session = RecordedSession(recording, None if given is None else log.capturing(given).redactor())
    if listen is None:
        for line in session.serve(_pieces()):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    else:
        _serve(session, run_id, listen)
    for each in session.unrecorded:
        click.echo(f"refold: not recorded: {each}", err=True)
    return 1 if session.unrecorded else 0


def _serve(session: RecordedSession, run_id: str, listen: str) -> None:
    capture_modules()
    from refold.agents.capture.mcp_http import McpReplayServer
    from refold.agents.capture.server import LoopbackServer

    host, port = address_of(listen)
    stop = Event()
    stop_by_signals(stop)
    serving = LoopbackServer(lambda: McpReplayServer(session), host, port)
    click.echo(f"refold mcp-record: {serving.url}/mcp answers from run {run_id}; Ctrl-C ends it")
    wait_for(stop)
    serving.close()


def _pieces() -> Iterator[bytes]:
    while data := os.read(sys.stdin.fileno(), 1 << 16):
        yield data
