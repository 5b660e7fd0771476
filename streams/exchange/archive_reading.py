"""Reading an archive: its items one by one, and at the end the certainty that they are all of them, as written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from refold.avro.errors import InputError
from refold.streams.exchange.archive_form import FORMAT, NAME, SCHEMA, End, Header, Item, Tally, item_of
from refold.streams.exchange.blocks import Blocks
from refold.streams.exchange.container import is_form, schema_of
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.reading import Progress


def read_items(file: ExchangeFile, progress: Progress | None = None) -> Iterator[tuple[str, Item]]:
    """Every item with its place, FILE:ITEM counted from 1; ends only behind an archive's end, else InputError."""
    try:
        stream = file.path.open("rb")
    except OSError as error:
        raise InputError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    with stream:
        tally = Tally()
        end: End | None = None
        for number, (place, datum) in enumerate(_data(stream, file, progress), 1):
            if end is not None:
                raise InputError(f"{file.shown}: something stands behind the archive's end; {_AGAIN}")
            item = item_of(datum)
            if isinstance(item, End):
                end = item
                continue
            _require_header(item, number, file.shown)
            tally.take(item)
            yield place, item
        if end is None:
            raise InputError(f"{file.shown}: the archive has no end: it was cut short; {_AGAIN}")
        if end != tally.end():
            raise InputError(
                f"{file.shown}: the archive is damaged: its items are not those it was closed over; {_AGAIN}"
            )


_AGAIN = "copy it again, or export it again"


def _data(stream: IO[bytes], file: ExchangeFile, progress: Progress | None) -> Iterator[tuple[str, Any]]:
    import fastavro

    shown = file.shown
    blocks = Blocks(stream, shown, file.limits)
    schema = schema_of(blocks, shown, file.limits)
    if schema.get("name") != NAME:
        raise InputError(f"{shown}: is no archive of refold: its schema is {schema.get('name')!r:.120}, not {NAME!r}")
    if not is_form(schema, SCHEMA):
        raise InputError(
            f"{shown}: its schema is not that of archive format {FORMAT}; install the newer refold that wrote it"
        )
    mine = fastavro.parse_schema(SCHEMA)
    yield from blocks.records(
        lambda stream: fastavro.schemaless_reader(stream, mine, None, return_record_name=True), progress
    )


def _require_header(item: Item, number: int, shown: str) -> None:
    if (number == 1) != isinstance(item, Header):
        raise InputError(f"{shown}: an archive has one header, at its begin; {_AGAIN}")
    if isinstance(item, Header) and item.format != FORMAT:
        raise InputError(
            f"{shown}: archive format {item.format}; this release reads up to {FORMAT}: "
            "install the newer refold that wrote it"
        )
