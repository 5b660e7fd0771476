"""Observations as an Avro container file: one schema for all types, so that any Avro reader opens it.

The patch is JSON text, because types differ in their fields. Type definitions are in the file's metadata, as
a JSON list of {"definition", "offset"} under `refold.definitions`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from refold.avro.derive import MILLIS, TEXT, observation_fields, record
from refold.avro.errors import InputError
from refold.avro.nodes import ID, emit, nullable
from refold.avro.times import millis_text, parse_time, time_text
from refold.streams.exchange import archive_form
from refold.streams.exchange.blocks import MAGIC, Blocks
from refold.streams.exchange.json_lines import Progress, json_value
from refold.streams.exchange.limits import FileLimits

METADATA = "refold.definitions"
CODEC = "deflate"
SUFFIX = ".avro"

ORIGIN = record("refold.Origin", log=TEXT, partition={"type": "int"}, offset={"type": "long"}, recorded_at=MILLIS)
_NODE = record(
    "refold.exported.observation",
    id=ID,
    **observation_fields(TEXT),
    origin=nullable(ORIGIN),
    blobs={"type": "map", "values": {"type": "bytes"}},
)
SCHEMA = emit(_NODE)
READ_SCHEMA = emit(_NODE, logical=False)
"""Times as plain numbers: a date that Python cannot represent is refused like any other value, and names its field."""


def is_container(path: Path) -> bool:
    """Return whether a file is a container, judged by its ending or by its first bytes."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # the next reader reports why it cannot be read


def write_container(file: IO[bytes], lines: Iterable[Mapping[str, Any]], definitions: list[Mapping[str, Any]]) -> None:
    """Write lines as one container.

    Args:
        file: A file that is open for writing bytes; it need not be seekable.
        lines: The observations, as line objects (export.py).
        definitions: What `RunningExport.definitions` returns; kept in the metadata.
    """
    import fastavro

    metadata = {METADATA: json.dumps(definitions, ensure_ascii=False)} if definitions else {}
    fastavro.writer(file, fastavro.parse_schema(SCHEMA), map(_datum, lines), codec=CODEC, metadata=metadata)


def container_definitions(path: Path, shown: str, limits: FileLimits) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the definitions in a container's metadata, each with its place.

    Args:
        path: The file.
        shown: Its name in errors.
        limits: Bounds on what is read into memory.

    Yields:
        (place, definition object).

    Raises:
        InputError: The file is no container, is above a bound, or its definitions are no list of definitions.
    """
    with _open_blocks(path, shown, limits) as blocks:
        place = f"{shown}: its metadata {METADATA}"
        found = json_value(_decoded(blocks.metadata.get(METADATA, b"[]"), place), place, limits)
        if not isinstance(found, list) or not all(isinstance(each, dict) and "definition" in each for each in found):
            raise InputError(f"{place} is not a list of definitions")
        for number, each in enumerate(found, 1):
            yield f"{shown}: definition {number}", each


def container_lines(
    path: Path, shown: str, limits: FileLimits, progress: Progress | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each record of a container.

    Args:
        path: The file.
        shown: Its name in errors and places.
        limits: Bounds on what is read into memory.
        progress: Gets (bytes read so far, the file's size).

    Yields:
        (place, line object). The place is FILE:RECORD, counted from 1.

    Raises:
        InputError: The file is no container, is damaged, or is above a bound.
    """
    import fastavro

    schema = fastavro.parse_schema(READ_SCHEMA)
    with _open_blocks(path, shown, limits) as blocks:
        for place, datum in blocks.records(lambda stream: fastavro.schemaless_reader(stream, schema, None), progress):
            yield place, _line(datum, place, limits)


@contextmanager
def _open_blocks(path: Path, shown: str, limits: FileLimits) -> Iterator[Blocks]:
    """Open a container with refold's schema; InputError if the file is not one."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror or error}") from error
    with file:
        blocks = Blocks(file, shown, limits)
        schema = schema_of(blocks, shown, limits)
        name = schema.get("name")
        if name == archive_form.NAME:
            raise InputError(f"{shown}: is the archive of a log; import it with --format archive")
        if name != SCHEMA["name"]:
            raise InputError(
                f"{shown}: is not an export of refold: its schema is {name!r:.120}, not {SCHEMA['name']!r}"
            )
        if not is_form(schema, SCHEMA):
            raise InputError(
                f"{shown}: its schema has the name of a refold export and other fields; export it again with this "
                "release, or install the newer refold that wrote it"
            )
        yield blocks


def schema_of(blocks: Blocks, shown: str, limits: FileLimits) -> dict[str, Any]:
    """Return the schema in a container's header; {} if it is not a record schema."""
    place = f"{shown}: its schema"
    tree = json_value(_decoded(blocks.metadata.get("avro.schema", b"null"), place), place, limits)
    return tree if isinstance(tree, dict) else {}


def is_form(schema: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether two schemas differ only in docs and logical types, so that `wanted` reads the data of `schema`."""
    from fastavro.schema import to_parsing_canonical_form as canonical

    try:
        return bool(canonical(schema) == canonical(wanted))
    except Exception:  # whatever fastavro raises for an invalid schema
        return False


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{place} is not UTF-8") from None


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


def _line(datum: Mapping[str, Any], place: str, limits: FileLimits) -> dict[str, Any]:
    link, origin = datum["link"], datum["origin"]
    for key in ("causes", "cleared", "retracts", "blobs"):
        if len(datum[key]) > limits.items:
            raise InputError(
                f"{place}: {key} holds more than {limits.items:,} items; if it is meant to, raise the bound with "
                "--max-items"
            )
    patch = json_value(datum["patch"], f"{place}: its patch", limits)
    line = {
        **datum,
        "id": datum["id"].hex(),
        "observed_at": time_text(datum["observed_at"]),
        "causes": [each.hex() for each in datum["causes"]],
        "patch": patch,
        "retracts": [each.hex() for each in datum["retracts"]],
        "link": None if link is None else {**link, **{key: _text(link[key]) for key in ("valid_from", "valid_to")}},
        "blobs": {digest: base64.b64encode(content).decode() for digest, content in datum["blobs"].items()},
    }
    if origin is not None:
        line["origin"] = {
            **origin,
            "recorded_at": millis_text(origin["recorded_at"]),
        }
    return line


def _text(micros: int | None) -> str | None:
    return None if micros is None else time_text(micros)
