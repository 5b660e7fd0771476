"""Serves a process's /metrics and /health, for the commands that have --metrics-port."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from refold.avro.errors import InputError


def log_label(url: str) -> str:
    """Return the label `log` of a log's metrics: its prefix, or the folder's name."""
    return url.partition("?")[0].rstrip("/").rpartition("/")[2].removeprefix("file:")


@contextmanager
def needing_metrics(extra: str = "kafka") -> Iterator[None]:
    """Turn a missing library of metrics into an error that names the remedy.

    Args:
        extra: The extra that has it, and that the command needs.

    Raises:
        InputError: The libraries for metrics are not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("prometheus_client", "aiohttp"):
            raise
        needed = f"pip install 'refold[{extra}]'"
        raise InputError(f"--metrics-port needs more than is installed here; {needed}") from error


@contextmanager
def serving_metrics(port: int, page: Callable[[], bytes], whose: str) -> Iterator[None]:
    """Serve the metrics on a port of 127.0.0.1 until the end of the block.

    Args:
        port: The port; 0 is any free one.
        page: Returns Prometheus' text.
        whose: For the error of a port that is taken, such as "the supervisor's".

    Raises:
        InputError: The libraries for metrics are not installed, or the port cannot be used.
    """
    with needing_metrics():
        from refold.sinks.metrics import SinkPages
        from refold.streams.web.guard import token_in
        from refold.streams.web.listening import Access
        from refold.streams.web.server import WebServer
    server = WebServer("127.0.0.1", port, Access(token_in(os.environ)), what=f"{whose} pages")
    try:
        server.serve(SinkPages(page))
        click.echo(f"metrics on {server.url}/metrics", err=True)
        yield
    finally:
        server.close()
