"""Creates a `file:` log from an archive: the same records at the same positions and times, folded again.

1. `check`: read the file to its end and check every item by the rules (archive_check.py). Nothing is written.
2. `restore`: prepare the folder as a log that does not exist yet (streams/rocks/layout.py), read the file again with
   the same checks, and write contents, definitions, records, dead letters and markers. Records are folded as they are
   written, and a definition takes effect at its position. The log's identity is written last: the archive's, or that
   of a fork.
3. Close the database, then turn the folder into a log with one rename.
An error in step 2 removes everything it wrote, and the folders it created. A kill leaves a folder that is not a log,
and the next import starts over in it.

Reading an archive yields its items one by one, and at the end verifies that the file is complete and unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

from refold.avro.blob import references
from refold.avro.errors import InputError
from refold.avro.observation import Observation
from refold.avro.registry import Hole, TypeVersion
from refold.streams.blobs.store import ContentStore
from refold.streams.blobs.url import store_of_log
from refold.streams.cut import Cut
from refold.streams.exchange.archive_check import ArchiveCheck, runnable
from refold.streams.exchange.archive_form import (
    FORMAT,
    NAME,
    SCHEMA,
    Content,
    Definition,
    End,
    Header,
    Item,
    Tally,
    item_of,
)
from refold.streams.exchange.blocks import Blocks
from refold.streams.exchange.container import is_form, schema_of
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.json_lines import Progress
from refold.streams.log.file.records import Identity
from refold.streams.log.file.restore import Restorer, forked
from refold.streams.log.port import DeadLetter, Marked, Record
from refold.streams.rocks.database import Database
from refold.streams.table.checked import CheckedRecord


def read_items(file: ExchangeFile, progress: Progress | None = None) -> Iterator[tuple[str, Item]]:
    """Yield every item with its place, FILE:ITEM counted from 1.

    Raises:
        InputError: the file is not an archive, is truncated, or does not match its checksum.
    """
    try:
        stream = file.path.open("rb")
    except OSError as error:
        raise InputError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    with stream:
        tally = Tally()
        end: End | None = None
        for number, (place, datum) in enumerate(_data(stream, file, progress), 1):
            if end is not None:
                raise InputError(f"{file.shown}: there is data after the archive's end; {_AGAIN}")
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
            raise InputError(f"{file.shown}: the archive is damaged: its items do not match its checksum; {_AGAIN}")


_AGAIN = "copy it again, or export it again"


def _data(stream: IO[bytes], file: ExchangeFile, progress: Progress | None) -> Iterator[tuple[str, Any]]:
    import fastavro

    shown = file.shown
    blocks = Blocks(stream, shown, file.limits)
    schema = schema_of(blocks, shown, file.limits)
    if schema.get("name") != NAME:
        raise InputError(
            f"{shown}: is not an archive of refold: its schema is {schema.get('name')!r:.120}, not {NAME!r}"
        )
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
        raise InputError(f"{shown}: an archive has one header, at its start; {_AGAIN}")
    if isinstance(item, Header) and item.format != FORMAT:
        raise InputError(
            f"{shown}: archive format {item.format}; this release reads up to {FORMAT}: "
            "install the newer refold that wrote it"
        )


BATCH_RECORDS = 1000
BATCH_BYTES = 8 << 20

Places: TypeAlias = list[TypeVersion | Hole]


class Archive:
    """A checked archive file; `cut` is its end."""

    def __init__(self, file: ExchangeFile, progress: Progress | None = None) -> None:
        """Check the file (step 1).

        Raises:
            InputError: names file and item.
        """
        self._file = file
        check = ArchiveCheck()
        observed = {observation.type for _, observation in _checked(file, check, progress) if observation is not None}
        self.header: Header = check.header
        self.cut: Cut = check.cut
        self._places = list(check.registry.entries())
        self._through = _taken_up(file, self._places, observed)

    def restore(
        self, path: Path, fork_id: bytes | None = None, progress: Progress | None = None, blobs: str | None = None,
        *, batch_records: int = BATCH_RECORDS,
    ) -> Identity:  # fmt: skip
        """Create the log (steps 2 and 3); durable on return.

        Args:
            path: the new log's folder.
            fork_id: 16 bytes, the id of a new log that continues from the archive; None restores the archived log.
            progress: called as the file is read.
            blobs: the URL of the store for its contents, instead of the log's own folder.
            batch_records: how many records are folded and written at once.

        Returns:
            The new log's identity.

        Raises:
            InputError: the file changed since it was checked, or lacks a content.
        """
        with Database.building(path) as database:
            partitions = len(self.cut.offsets)
            found = Identity(self.cut.log_id, partitions, self.header.archived_at, self.header.forked_from)
            identity = found if fork_id is None else forked(found, fork_id)
            restorer = Restorer(database, partitions, identity.id)
            writer = _Writer(restorer, store_of_log(path, blobs, make=True), self._places, self._through, batch_records)
            check = ArchiveCheck()
            for item, observation in _checked(self._file, check, progress):
                writer.take(item, observation)
            if check.header != self.header or check.cut != self.cut:
                raise InputError(f"{self._file.shown}: it changed while it was read; import it again")
            writer.flush()
            restorer.become(identity)
        return identity


class _Writer:
    """Writes items to the log in batches."""

    def __init__(
        self, restorer: Restorer, blobs: ContentStore, places: Places, through: list[int], batch_records: int
    ) -> None:
        self._batch_records = batch_records
        self._restorer = restorer
        self._blobs = blobs
        self._places = places
        self._through = through
        self._taken_up = 0
        self._waiting: list[Record] = []
        self._arrived: list[CheckedRecord] = []
        self._waiting_bytes = 0

    def take(self, item: Item, observation: Observation | None) -> None:
        match item:
            case Record():
                if observation is not None:
                    self._require_contents(item, observation)
                    self._arrived.append(CheckedRecord(item, observation))
                self._waiting.append(item)
                self._waiting_bytes += len(item.data)
                if len(self._waiting) >= self._batch_records or self._waiting_bytes >= BATCH_BYTES:
                    self.flush()
            case Definition() if item.offset >= self._taken_up:
                self.flush()
                end = self._through[item.offset]
                self._restorer.register_definitions(self._places[self._taken_up : end])
                self._taken_up = end
            case Content():
                self._blobs.put(item.sha256, item.content)
            case DeadLetter():
                self._restorer.put_deadletter(item)
            case Marked():
                self._restorer.put_marker(item)

    def flush(self) -> None:
        if self._waiting:
            self._restorer.restore(self._waiting, self._arrived)
            self._waiting, self._arrived, self._waiting_bytes = [], [], 0

    def _require_contents(self, record: Record, observation: Observation) -> None:
        for blob in references(observation.patch.values(), self._blobs.get):
            if not self._blobs.has(blob.hash):
                raise InputError(f"the archive lacks the content {blob.hash.hex()} of {record.entity}; export it again")


def _checked(
    file: ExchangeFile, check: ArchiveCheck, progress: Progress | None
) -> Iterator[tuple[Item, Observation | None]]:
    """Yield every item, checked by the rules, with its observation. InputError names file and item."""
    for place, item in read_items(file, progress):
        try:
            observation = check.take(item)
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        yield item, observation
    try:
        check.finish()
    except InputError as error:
        raise InputError(f"{file.shown}: {error}") from error


def _taken_up(file: ExchangeFile, places: Places, observed: Collection[str]) -> list[int]:
    """Return, for each definition, the offset up to which definitions are applied at its position.

    A definition whose custom code is missing cannot fold. The next definition of its type that can is applied in its
    place, together with all definitions in between. The newest definition of each observed type must be able to fold. A
    definition of any other type is applied at its own position, because nothing is folded by it.
    """
    next_runnable: dict[str, int] = {}
    through = [place.offset + 1 for place in places]
    for version in reversed([place for place in places if isinstance(place, TypeVersion)]):
        name = version.definition.name
        problem = runnable(version.definition)
        if problem is None:
            next_runnable[name] = version.offset
        elif name not in observed:
            continue
        elif name not in next_runnable:
            raise InputError(f"{file.shown}: definition {version.offset}: {problem}") from problem
        through[version.offset] = next_runnable[name] + 1
    for offset in reversed(range(len(through))):
        through[offset] = max(through[offset : through[offset]])
    return through
