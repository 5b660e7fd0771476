"""Sinks by name, for `refold sink NAME --to URL`. A sink's libraries are imported when it is opened.

A user's own sink is named MODULE:FUNCTION; the function has the same signature as `Opener`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from refold.avro.errors import InputError
from refold.sinks.port import Sink, SnapshotSink

Opener: TypeAlias = Callable[[str], Sink | SnapshotSink]
"""Opens a sink at the URL that --to names, with options in its query. Raises InputError for a URL of another kind."""


def _otlp() -> Opener:
    return _installed("otlp", "opentelemetry", "refold.sinks.otlp.sink")


def _postgres() -> Opener:
    return _installed("postgres", "psycopg", "refold.sinks.postgres.sink")


def _parquet() -> Opener:
    return _installed("parquet", "pyarrow", "refold.sinks.parquet.sink")


def _search() -> Opener:
    opener: Opener = import_module("refold.sinks.search.sink").open_sink
    return opener


def _installed(name: str, library: str, module: str) -> Opener:
    """The opener in a module that needs an extra. Raises InputError, which names the extra, if it is not installed."""
    try:
        opener: Opener = import_module(module).open_sink
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise InputError(f"the sink {name} needs more than is installed here; pip install 'refold[{name}]'") from error
    return opener


SINKS: dict[str, Callable[[], Opener]] = {
    "otlp": _otlp, "parquet": _parquet, "postgres": _postgres, "search": _search,
}  # fmt: skip


def open_sink(name: str, url: str) -> Sink | SnapshotSink:
    """Open a sink.

    Args:
        name: A shipped sink's name, or `MODULE:FUNCTION` of your own.
        url: The store's URL.

    Returns:
        The sink.

    Raises:
        InputError: There is no such sink, or its extra is not installed. The message says what to do.
    """
    if ":" in name:
        return _user_sink(name)(url)
    if name not in SINKS:
        known = ", ".join(sorted(SINKS)) or "none"
        raise InputError(f"no sink is called {name!r}; there are {known}, and your own as MODULE:FUNCTION")
    return SINKS[name]()(url)


def _user_sink(name: str) -> Opener:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: cannot be imported: {error}; its folder has to be on PYTHONPATH") from error
    if not callable(found):
        raise InputError(f"{name}: give a function that takes the URL and returns a sink")
    opener: Opener = found
    return opener
