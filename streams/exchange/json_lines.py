"""Reads lines of text from a plain or gzip file, and the JSON in them; an error names file and line."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from refold.avro import strict_json
from refold.avro.errors import InputError
from refold.streams.exchange.limits import FileLimits

GZIP_MAGIC = b"\x1f\x8b"
DEFAULT = FileLimits()

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of bytes read so far, and the file's size; for gzip both count compressed bytes."""


class TextLine(NamedTuple):
    """One line that is not blank; `place` is FILE:LINE."""

    place: str
    text: str


def text_lines(
    path: Path, name: str = "", progress: Progress | None = None, limits: FileLimits = DEFAULT
) -> Iterator[TextLine]:
    """Yield each line that is not blank. Gzip is recognised by its first bytes.

    Args:
        path: The file.
        name: Its name in places and errors; its path if empty.
        progress: Gets (bytes read so far, the file's size).
        limits: Bounds on what is read into memory.

    Raises:
        InputError: The file cannot be read or is empty, a gzip stream is damaged or truncated, a line or the file is
            above its bound, or the text is not UTF-8. It names file and line; the lines before were yielded.
    """
    shown = name or str(path)
    try:
        with path.open("rb") as raw:
            yield from _lines(raw, path, shown, progress, limits)
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror or error}") from error


def _lines(
    raw: io.BufferedReader, path: Path, shown: str, progress: Progress | None, limits: FileLimits
) -> Iterator[TextLine]:
    size = os.fstat(raw.fileno()).st_size
    zipped = raw.peek(2)[:2] == GZIP_MAGIC
    if path.suffix == ".gz" and not zipped:
        raise InputError(f"{shown}: is named .gz but is not gzip")
    stream = gzip.GzipFile(fileobj=raw) if zipped else raw
    number, expanded, empty, unread = 0, 0, True, True
    while unread:
        number += 1
        place = f"{shown}:{number}"
        data = _read(stream, place, limits.line_bytes)
        unread = bool(data)
        expanded += len(data)
        if zipped:
            limits.check_expansion(raw.tell(), expanded, place)
        if progress is not None:
            progress(raw.tell(), size)
        if data.strip():
            empty = False
            yield TextLine(place, _text(data, number, place))
        elif data:
            blank = _pass_blank(stream)
            number += blank
            expanded += blank
    if empty:
        raise InputError(f"{shown}: holds no lines")


def _read(stream: io.BufferedReader | gzip.GzipFile, place: str, bytes_max: int) -> bytes:
    try:
        data = stream.readline(bytes_max + 1)
    except EOFError:
        raise InputError(f"{place}: the gzip stream ends early: the file is truncated; copy it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{place}: the gzip stream is damaged: {error}") from None
    if len(data) > bytes_max:
        raise InputError(
            f"{place}: the line is longer than {bytes_max:,} bytes; if it is meant to be, raise the bound with "
            "--max-line-bytes"
        )
    return data


def _pass_blank(stream: io.BufferedReader | gzip.GzipFile) -> int:
    """Skip the empty lines in the read buffer at once, and return their number."""
    try:
        ahead = stream.peek(1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return 0  # reading the next line raises the error
    blank = len(ahead) - len(ahead.lstrip(b"\n"))
    return len(stream.read(blank))


def _text(data: bytes, number: int, place: str) -> str:
    try:
        # Some editors write a byte order mark; it is not part of the first line.
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: is not UTF-8 (byte {error.start + 1} of the line)") from None


def json_value(text: str, place: str, limits: FileLimits = DEFAULT) -> Any:
    """Parse the JSON value in a text. Its numbers are not checked.

    Args:
        text: The JSON text.
        place: Its place, for the error.
        limits: Bounds on nesting and on the number of values.

    Raises:
        InputError: It is no JSON, or is above a bound.
    """
    try:
        return strict_json.loads(text, depth_max=limits.depth, items_max=limits.items)
    except json.JSONDecodeError as error:
        hint = "; each line holds one whole JSON value" if text.strip() in ("[", "{") else ""
        raise InputError(f"{place}: is not JSON: {error.msg} at character {error.pos + 1}{hint}") from None
    except strict_json.TooDeep as error:
        raise InputError(f"{place}: is not usable JSON: {error} (--max-depth)") from None
    except strict_json.TooMany as error:
        raise InputError(f"{place}: {error}; if it is meant to, raise the bound with --max-items") from None
    except strict_json.JsonRefused as error:
        raise InputError(f"{place}: is not JSON that can be used: {error}") from None
