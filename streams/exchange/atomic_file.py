"""Writes a file atomically: it is complete, or does not exist."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from refold.avro.errors import InputError
from refold.streams.durable import sync_file


@contextmanager
def whole_file(path: Path, *, replace: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that gets its name if the block succeeds, and is removed if it fails.

    A device or a pipe is written directly.

    Args:
        path: the file's name.
        replace: whether to replace an existing file.

    Raises:
        InputError: the name exists and `replace` is False, is a folder, or cannot be written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as device:
            yield device
        return
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file's name in it")
    if path.exists() and not replace:
        raise InputError(f"{path}: exists; choose another name, or replace it with --force")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        try:
            file = unfinished.open("wb")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error
        with file:
            yield file
            sync_file(file)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


# Some readers, such as str.splitlines, treat these as line ends. In JSON they occur only inside texts.
_SEPARATORS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}


def json_line(tree: object, *, ascii_only: bool = False) -> str:
    """Encode a JSON value as one line, with its line end; no reader finds another line end in it."""
    text = json.dumps(tree, ensure_ascii=ascii_only, separators=(",", ":"))
    return (text if text.isascii() else text.translate(_SEPARATORS)) + "\n"


def write_json_lines(file: IO[bytes], lines: Iterable[Mapping[str, Any]], *, zipped: bool) -> None:
    """Write one JSON object per line, in UTF-8. gzip has no name and no time, so equal lines give equal bytes."""
    stream: IO[bytes] = gzip.GzipFile("", "wb", 6, file, mtime=0) if zipped else file  # type: ignore[assignment]
    for line in lines:
        stream.write(json_line(line).encode())
    if zipped:
        stream.close()
