"""Lines of JSON from a file, plain or gzip, each with its place, so that a refusal names file and line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from refold.avro.canonical import json_tree
from refold.avro.errors import InputError, ValidationError
from refold.avro.observation import Value
from refold.streams.exchange.json_lines import DEFAULT, Progress, json_value, text_lines
from refold.streams.exchange.limits import FileLimits

__all__ = ["DEFAULT", "FileLimits", "Line", "Progress", "json_lines", "parse_json"]


@dataclass(frozen=True, slots=True)
class Line:
    """One JSON value under the number rules; `place` is FILE:LINE."""

    place: str
    value: Value


def json_lines(path: str | Path, progress: Progress | None = None, limits: FileLimits = DEFAULT) -> Iterator[Line]:
    """Yield each line's JSON value; blank lines are skipped. gzip is detected by its first bytes.

    Raises InputError, naming file and line, for a file that cannot be read or is empty, a damaged or truncated gzip
    stream, text that is not UTF-8, a line that is not JSON, and numbers or texts that no observation can hold. Lines
    before the bad one have been yielded by then.
    """
    for place, text in text_lines(Path(path), progress=progress, limits=limits):
        yield Line(place, parse_json(text, place, limits))


def parse_json(text: str, place: str, limits: FileLimits = DEFAULT) -> Value:
    """The JSON value in `text`, under the number rules; InputError names `place`."""
    try:
        return json_tree(json_value(text, place, limits))
    except ValidationError as error:
        raise InputError(f"{place}: {error}") from None
