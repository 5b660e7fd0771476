"""Lines of JSON from a file, plain or gzip, each with its place, so that a refusal names file and line."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from refold.avro.canonical import json_tree
from refold.avro.errors import InputError, ValidationError
from refold.avro.observation import Value

GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 256 * 1024 * 1024

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes of the file read so far, and the bytes it has; of gzip, compressed ones."""


@dataclass(frozen=True, slots=True)
class Line:
    """One JSON value under the number rules; `place` is FILE:LINE."""

    place: str
    value: Value


def json_lines(path: str | Path, progress: Progress | None = None) -> Iterator[Line]:
    """Each line's JSON value; blank lines are passed over. Whether it is gzip is told by its first bytes.

    Raises InputError, naming file and line, for a file that cannot be read or holds nothing, a damaged or
    truncated gzip stream, text that is not UTF-8, a line that is not JSON, and numbers or texts no
    observation can hold. Lines before the bad one have been given by then.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            yield from _lines(raw, path, progress)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _lines(raw: io.BufferedReader, path: Path, progress: Progress | None) -> Iterator[Line]:
    size = os.fstat(raw.fileno()).st_size
    zipped = raw.peek(2)[:2] == GZIP_MAGIC
    if path.suffix == ".gz" and not zipped:
        raise InputError(f"{path}: is named .gz but is not gzip")
    stream = gzip.GzipFile(fileobj=raw) if zipped else raw
    number, empty, unread = 0, True, True
    while unread:
        number += 1
        place = f"{path}:{number}"
        data = _read(stream, place)
        unread = bool(data)
        if progress is not None and raw.seekable():
            progress(raw.tell(), size)
        if data.strip():
            empty = False
            yield Line(place, parse_json(_text(data, number, place), place))
    if empty:
        raise InputError(f"{path}: holds no lines")


def _read(stream: io.BufferedReader | gzip.GzipFile, place: str) -> bytes:
    try:
        data = stream.readline(LINE_BYTES_MAX + 1)
    except EOFError:
        raise InputError(f"{place}: the gzip stream ends early: the file is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{place}: the gzip stream is damaged: {error}") from None
    if len(data) > LINE_BYTES_MAX:
        raise InputError(f"{place}: the line is longer than {LINE_BYTES_MAX} bytes")
    return data


def _text(data: bytes, number: int, place: str) -> str:
    try:
        # A byte order mark is some editors' greeting, and no part of the first line.
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: is not UTF-8 (byte {error.start + 1} of the line)") from None


def parse_json(text: str, place: str) -> Value:
    """The JSON value in `text`, under the number rules; InputError names `place`."""
    try:
        return json_tree(json.loads(text, parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        hint = "; each line holds one whole JSON value" if text.strip() in ("[", "{") else ""
        raise InputError(f"{place}: is not JSON: {error.msg} at character {error.pos + 1}{hint}") from None
    except ValidationError as error:
        raise InputError(f"{place}: {error}") from None
    except RecursionError:
        raise InputError(f"{place}: is not usable JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place}: is not JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
