"""Observations as an Avro container file: one schema for all types, so that any Avro reader opens it.

The patch is JSON text, as types differ in their fields; type definitions stand in the file's metadata, as
a JSON list of {"definition", "offset"} under `refold.definitions`.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from refold.avro.derive import IDS, LINK, MICROS, MILLIS, SOURCE, TEXT, record
from refold.avro.errors import InputError
from refold.avro.nodes import ID, emit, nullable
from refold.avro.observation import KINDS
from refold.avro.times import datetime_micros, millis_text, parse_time, time_text
from refold.streams.exchange import archive_form
from refold.streams.exchange.reading import Progress

METADATA = "refold.definitions"
CODEC = "deflate"
MAGIC = b"Obj\x01"
SUFFIX = ".avro"

ORIGIN = record("refold.Origin", log=TEXT, partition={"type": "int"}, offset={"type": "long"}, recorded_at=MILLIS)
SCHEMA = emit(
    record(
        "refold.exported.observation",
        id=ID,
        entity=TEXT,
        kind={"type": "enum", "name": "refold.Kind", "symbols": list(KINDS)},
        observed_at=MICROS,
        priority={"type": "int"},
        source=SOURCE,
        causes=IDS,
        patch=TEXT,
        cleared={"type": "array", "items": TEXT},
        retracts=IDS,
        link=nullable(LINK),
        subject=TEXT,
        origin=nullable(ORIGIN),
        blobs={"type": "map", "values": {"type": "bytes"}},
    )
)


def is_container(path: Path) -> bool:
    """Whether the file is to be read as a container: by its ending, or by its first bytes."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # whoever reads it next says why it cannot be read


def write_container(file: IO[bytes], lines: Iterable[Mapping[str, Any]], definitions: list[Mapping[str, Any]]) -> None:
    """Write lines as one container; `file` need not be seekable."""
    import fastavro

    metadata = {METADATA: json.dumps(definitions, ensure_ascii=False)} if definitions else {}
    fastavro.writer(file, fastavro.parse_schema(SCHEMA), map(_datum, lines), codec=CODEC, metadata=metadata)


def container_definitions(path: Path, shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The definitions in a container's metadata, each with its place."""
    with _Container(path, shown) as reader:
        stored = reader.metadata.get(METADATA, "[]")
        try:
            found = json.loads(stored)
            if not isinstance(found, list) or not all(
                isinstance(each, dict) and "definition" in each for each in found
            ):
                raise ValueError("not a list of definitions")
        except ValueError as error:
            raise InputError(f"{shown}: its metadata {METADATA} cannot be read: {error}") from None
        for number, each in enumerate(found, 1):
            yield f"{shown}: definition {number}", each


def container_lines(path: Path, shown: str, progress: Progress | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record as a line object, its place being FILE:RECORD, counted from 1."""
    size = path.stat().st_size if path.exists() else 0
    with _Container(path, shown) as reader:
        number = 0
        records = iter(reader)
        while True:
            number += 1
            place = f"{shown}:{number}"
            try:
                datum = next(records)
            except StopIteration:
                return
            except Exception as error:  # fastavro raises what its inside does: EOFError, ValueError, zlib.error, ...
                raise InputError(f"{place}: the Avro container is damaged or truncated ({error!r:.120})") from None
            if progress is not None:
                progress(reader.file.tell(), size)
            yield place, _line(datum, place)


class _Container:
    """An open container of ours, and its records; InputError where the file is another."""

    def __init__(self, path: Path, shown: str) -> None:
        import fastavro

        try:
            self.file = path.open("rb")
        except OSError as error:
            raise InputError(f"{shown}: cannot be read: {error.strerror or error}") from error
        try:
            self._records: Any = fastavro.reader(self.file)
        except Exception as error:
            self.file.close()
            raise InputError(f"{shown}: is not an Avro container ({error!r:.120})") from None
        self.metadata: Mapping[str, str] = self._records.metadata
        name = str(self._records.writer_schema.get("name", "")) if isinstance(self._records.writer_schema, dict) else ""
        if name != SCHEMA["name"]:
            self.file.close()
            if name == archive_form.NAME:
                raise InputError(f"{shown}: is the archive of a log; import it with --format archive")
            raise InputError(f"{shown}: is no export of refold: its schema is {name!r}, not {SCHEMA['name']!r}")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._records)

    def __enter__(self) -> _Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _datum(line: Mapping[str, Any]) -> dict[str, Any]:
    link, origin = line["link"], line.get("origin")
    return {
        **line,
        "id": bytes.fromhex(line["id"]),
        "observed_at": parse_time(line["observed_at"]),
        "causes": [bytes.fromhex(each) for each in line["causes"]],
        "patch": json.dumps(line["patch"], ensure_ascii=False, separators=(",", ":")),
        "retracts": [bytes.fromhex(each) for each in line["retracts"]],
        "link": None if link is None else {**link, **{key: _micros(link[key]) for key in ("valid_from", "valid_to")}},
        "origin": None if origin is None else {**origin, "recorded_at": parse_time(origin["recorded_at"]) // 1000},
        "blobs": {digest: base64.b64decode(content) for digest, content in line.get("blobs", {}).items()},
    }


def _micros(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _line(datum: Mapping[str, Any], place: str) -> dict[str, Any]:
    link, origin = datum["link"], datum["origin"]
    try:
        patch = json.loads(datum["patch"])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: its patch is not JSON: {error}") from None
    line = {
        **datum,
        "id": datum["id"].hex(),
        "observed_at": _text(datum["observed_at"]),
        "causes": [each.hex() for each in datum["causes"]],
        "patch": patch,
        "retracts": [each.hex() for each in datum["retracts"]],
        "link": None if link is None else {**link, **{key: _text(link[key]) for key in ("valid_from", "valid_to")}},
        "blobs": {digest: base64.b64encode(content).decode() for digest, content in datum["blobs"].items()},
    }
    if origin is not None:
        line["origin"] = {
            **origin,
            "recorded_at": millis_text(datetime_micros(origin["recorded_at"]) // 1000),
        }
    return line


def _text(moment: dt.datetime | None) -> str | None:
    return None if moment is None else time_text(datetime_micros(moment))
