"""`refold explore`: the web explorer."""

from __future__ import annotations

import os
import sys
import webbrowser
from contextlib import closing
from importlib.util import find_spec
from threading import Event
from typing import TYPE_CHECKING

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.queries.log_target import LogTarget

if TYPE_CHECKING:
    from refold.streams.web.listening import Listener

PORT = 6077


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True,
              help="The address to serve on. Any address but loopback needs a token, in REFOLD_TOKEN.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free port.")
@click.option("--open", "is_opened", is_flag=True, help="Open the pages in a browser.")
@click.option("--write", "can_write", is_flag=True,
              help="Let readers mark, flag, pin, settle, approve and deny.")  # fmt: skip
@click.option("--tls-cert", metavar="FILE", help="Serve the pages over TLS: a certificate in PEM, with its chain.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key in PEM, without a password.")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="A name that browsers know this server by, as well as its addresses; may be repeated.")  # fmt: skip
@on_log
def explore(
    target: LogTarget, host: str, port: int, is_opened: bool, can_write: bool, tls_cert: str | None,
    tls_key: str | None, allowed_hosts: tuple[str, ...],
) -> int:  # fmt: skip
    """Explore a log in a browser.

    It shows runs step by step, entities at any moment, changes as they come, comparisons, and the health of the log.
    Every page shows one cut, and the page's address names the cut, so you can send the address to somebody. Below each
    page are the commands that give the same answers. Addresses below /api answer in JSON. It works offline: it loads
    nothing from the network. It only reads the log, unless --write adds actions. Ctrl-C ends it.

    \b
    Examples
      refold explore
      refold explore --log kafka://127.0.0.1:9092/agents --open
      refold explore --write
      REFOLD_TOKEN=$(openssl rand -hex 32) refold explore --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    for needed in ("aiohttp", "fast_sugiyama", "jinja2"):
        if find_spec(needed) is None:
            raise InputError(f"the explorer needs {needed}: install it with pip install 'refold[explore]'")
    from refold.streams.web.guard import token_in
    from refold.streams.web.listening import Access, Listener

    if not target.exists():
        from refold.streams.open import resolved_url

        raise InputError(f"{resolved_url(target.url)}: there is no log here; see `refold demo`, or name one with --log")
    token = token_in(os.environ)
    access = Access(token, allowed_hosts, None, tls_cert, tls_key)
    # From here on, connections are accepted: a request waits until the pages are imported.
    with closing(Listener(host, port, access, "the explorer's pages")) as listener:
        print(f"explore {listener.url}/", flush=True)
        if is_opened and not webbrowser.open(f"{listener.url}/"):
            print("refold: no browser could be opened; open the address above", file=sys.stderr)
        _serve(listener, target, is_secure=tls_cert is not None, can_write=can_write)
    return 0


def _serve(listener: Listener, target: LogTarget, *, is_secure: bool, can_write: bool) -> None:
    """Serve requests until Ctrl-C."""
    from refold.explorer.web.site import explorer, import_pages
    from refold.streams.runtime import wait_for
    from refold.streams.web.server import WebServer

    site = explorer(target, listener.token, is_secure=is_secure, can_write=can_write)
    server = WebServer.on(listener)
    try:
        server.serve(site, site.problem_page)
        import_pages()
        site.warm()
        wait_for(Event())
    finally:
        server.close()
        site.handles.close()
