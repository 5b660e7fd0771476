"""`refold mcp`: an agent queries its own history over the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from threading import Event
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.queries.log_target import LogTarget

if TYPE_CHECKING:
    from refold.explorer.mcp.server import HistoryServer

PORT = 6078
_FOR_HTTP = ("host", "port", "tls_cert", "tls_key", "allowed_hosts")


@click.command()
@click.option("--http", "is_http", is_flag=True, help="Serve streamable HTTP, at /mcp, instead of standard input.")
@click.option("--write", "writes", is_flag=True, help="Let agents record, with the tool `observe`.")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="With --http: the address. Any address but loopback needs a token, in REFOLD_TOKEN.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True,
              help="With --http: the port; 0: any free port.")  # fmt: skip
@click.option("--tls-cert", metavar="FILE", help="With --http: serve over TLS; a certificate in PEM, with its chain.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key in PEM, without a password.")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="A name that clients know this server by, as well as its addresses; may be repeated.")  # fmt: skip
@on_log
def mcp(
    target: LogTarget, is_http: bool, writes: bool, host: str, port: int, tls_cert: str | None, tls_key: str | None,
    allowed_hosts: tuple[str, ...],
) -> int:  # fmt: skip
    """Let an agent ask its own history, by MCP.

    MCP is the Model Context Protocol. Ten tools read: find, state, knew, why, diff, runs, show, compare, effects,
    verify. Each answer names its cut, and is bounded in size, with cursors. Entities are resources. A client starts
    this command and talks to it over standard input and output. With --http it serves until Ctrl-C. You may start it
    before the log exists: the tools then report that there is no log.

    \b
    Examples
      claude mcp add refold -- refold mcp --log file:/srv/agents/.refold
      codex mcp add refold -- refold mcp --log file:/srv/agents/.refold
      refold mcp --http --log kafka://127.0.0.1:9092/agents
    """
    try:
        from refold.explorer.mcp.server import HistoryServer, one_line_logs
    except ModuleNotFoundError as error:
        raise InputError(f"refold mcp needs {error.name}: install it with pip install 'refold[mcp]'") from error
    given = click.get_current_context().get_parameter_source
    if not is_http and any(given(name) is not ParameterSource.DEFAULT for name in _FOR_HTTP):
        raise InputError("--host, --port, --tls-cert, --tls-key and --allow-host are for --http: give --http as well")
    if not target.exists():
        from refold.streams.open import resolved_url

        print(
            f"refold: {resolved_url(target.url)}: there is no log here; the tools say so until one is", file=sys.stderr
        )
    one_line_logs()
    history = HistoryServer(target, writes=writes)
    try:
        if is_http:
            _serve_http(history, host, port, tls_cert, tls_key, allowed_hosts)
        else:
            from refold.explorer.mcp.stdio import serve

            serve(history)
    finally:
        history.close()
    return 0


def _serve_http(
    history: HistoryServer, host: str, port: int, tls_cert: str | None, tls_key: str | None, names: tuple[str, ...]
) -> None:
    from refold.explorer.mcp.http import PATH, McpSite
    from refold.streams.runtime import wait_for
    from refold.streams.web.guard import token_in
    from refold.streams.web.listening import Access
    from refold.streams.web.server import WebServer

    access = Access(token_in(os.environ), names, None, tls_cert, tls_key)
    server = WebServer(host, port, access, what="the MCP server")
    site = McpSite(history)
    try:
        server.serve(site)
        print(f"mcp {server.url}{PATH}", flush=True)
        wait_for(Event())
    finally:
        server.close()
        site.close()
