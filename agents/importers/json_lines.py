"""Lines of JSON from a file, plain or gzip, each with its place, so that an error names file and line."""

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
    """One JSON value that obeys the number rules; `place` is FILE:LINE."""

    place: str
    value: Value


def json_lines(path: str | Path, progress: Progress | None = None, limits: FileLimits = DEFAULT) -> Iterator[Line]:
    """Yield each line's JSON value; blank lines are skipped. gzip is detected by its first bytes.

    Args:
        path: The file.
        progress: Called with the progress, if given.
        limits: The limits of lines and values.

    Raises:
        InputError: The file cannot be read or is empty, a gzip stream is damaged or truncated, the text is not UTF-8,
            a line is not JSON, or no observation can hold a number or a text. The message names file and line. Lines
            before the bad one have already been yielded.
    """
    for place, text in text_lines(Path(path), progress=progress, limits=limits):
        yield Line(place, parse_json(text, place, limits))


def parse_json(text: str, place: str, limits: FileLimits = DEFAULT) -> Value:
    """Return the JSON value in `text`, after the number rules.

    Args:
        text: JSON.
        place: FILE:LINE, for the error.
        limits: The limits of values.

    Raises:
        InputError: The text is not JSON, or no observation can hold the value; the message names `place`.
    """
    try:
        return json_tree(json_value(text, place, limits))
    except ValidationError as error:
        raise InputError(f"{place}: {error}") from None
