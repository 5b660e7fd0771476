"""`refold deck`: the explorer in a terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.queries.log_target import LogTarget


@click.command()
@on_log
def deck(target: LogTarget) -> int:
    """Explore a log in the terminal.

    It shows runs step by step, entities at any moment, why a value is there, comparisons, and changes as they come. It
    works over ssh, from 80x24 on. It only reads the log. Below each screen is the command that gives the same answer;
    `y` copies it. Press `?` for the keys, `:` to go to a screen, `/` to find, `q` to leave.

    \b
    Examples
      refold deck
      refold deck --log kafka://127.0.0.1:9092/agents
      ssh -t host refold deck --log file:/var/lib/agents/log
    """
    if find_spec("textual") is None:
        raise InputError("the deck needs textual: install it with pip install 'refold[deck]'")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("the deck needs a terminal (over ssh: ssh -t); `refold explore` opens a log in a browser")
    from refold.streams.open import resolved_url

    if not target.exists():
        raise InputError(f"{resolved_url(target.url)}: there is no log here; see `refold demo`, or name one with --log")
    from refold.explorer.deck.app import DeckApp

    app = DeckApp(target)
    app.run()
    return 70 if app.return_code else 0
