"""Reading an archive: its items one by one, and at the end the certainty that they are all of them, as written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Any

from refold.avro.errors import InputError
from refold.streams.exchange.archive_form import FORMAT, NAME, SCHEMA, End, Header, Item, Tally, item_of
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.reading import Progress


def read_items(file: ExchangeFile, progress: Progress | None = None) -> Iterator[tuple[str, Item]]:
    """Every item with its place, FILE:ITEM counted from 1; ends only behind an archive's end, else InputError."""
    try:
        stream = file.path.open("rb")
    except OSError as error:
        raise InputError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        tally = Tally()
        end: End | None = None
        for number, datum in enumerate(_data(stream, file.shown), 1):
            place = f"{file.shown}:{number}"
            if end is not None:
                raise InputError(f"{file.shown}: something stands behind the archive's end; {_AGAIN}")
            if progress is not None:
                progress(stream.tell(), size)
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


def _data(stream: IO[bytes], shown: str) -> Iterator[Any]:
    import fastavro

    canonical = fastavro.schema.to_parsing_canonical_form
    try:
        reader: Any = fastavro.reader(stream, return_record_name=True)
        schema = reader.writer_schema
    except Exception as error:
        raise InputError(f"{shown}: is not an Avro container ({error!r:.120})") from None
    name = schema.get("name") if isinstance(schema, dict) else None
    if name != NAME:
        raise InputError(f"{shown}: is no archive of refold: its schema is {name!r}, not {NAME!r}")
    if canonical(schema) != canonical(SCHEMA):
        raise InputError(
            f"{shown}: its schema is not that of archive format {FORMAT}; install the newer refold that wrote it"
        )
    records = iter(reader)
    number = 0
    while True:
        number += 1
        try:
            datum = next(records)
        except StopIteration:
            return
        except Exception as error:  # fastavro raises what its inside does: EOFError, ValueError, zlib.error, ...
            raise InputError(
                f"{shown}:{number}: the archive is damaged or cut short ({error!r:.120}); {_AGAIN}"
            ) from None
        yield datum


def _require_header(item: Item, number: int, shown: str) -> None:
    if (number == 1) != isinstance(item, Header):
        raise InputError(f"{shown}: an archive has one header, at its begin; {_AGAIN}")
    if isinstance(item, Header) and item.format != FORMAT:
        raise InputError(
            f"{shown}: archive format {item.format}; this release reads up to {FORMAT}: "
            "install the newer refold that wrote it"
        )
