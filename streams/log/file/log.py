"""The `file:` log: one folder, one owning process at a time, everyone else through it.

A process that opens the log to write
1. makes it if there is none;
2. owns it if nobody does: it holds the lock, answers other processes on the socket, and reads its own database;
3. otherwise sends what it appends to the owner, and reads beside it from an instance of its own.
When the owner ends, whoever asks next takes over or finds the next owner, and sends again what was not yet
acknowledged (streams/log/file/outbox.py).

A process that opens it to read reads beside the owner too, and never makes or owns a log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from refold.avro.definition import TypeDefinition
from refold.avro.errors import CorruptionError, InputError, LockedError, OwnerGone, OwnerSilent
from refold.avro.observation import Observation
from refold.avro.registry import Registry
from refold.streams.log.file import records
from refold.streams.log.file.blobs import BlobFolder
from refold.streams.log.file.check import check_indexes
from refold.streams.log.file.client import Client
from refold.streams.log.file.database import Database
from refold.streams.log.file.faults import closed_error
from refold.streams.log.file.layout import is_log
from refold.streams.log.file.outbox import Appended, Outbox
from refold.streams.log.file.owner import Clock, Owner
from refold.streams.log.file.server import Server, serve
from refold.streams.log.port import ChangeRecord, LogPort, Marked, Mismatch, Record
from refold.streams.partition import PARTITIONS_DEFAULT, partition_of
from refold.streams.table import keys

READ_AT_ONCE = 256
OWNER_TIMEOUT_S = 30.0
TAKEOVER_WAIT_S = 0.05


class FileLog(LogPort):
    """A `file:` log as this process has it open. For one thread, but for the socket's own."""

    def __init__(
        self,
        path: Path,
        *,
        clock_ms: Clock,
        new_id: Callable[[], bytes],
        partitions: int | None = None,
        read_only: bool = False,
        owner_timeout_s: float = OWNER_TIMEOUT_S,
    ) -> None:
        self.path = path
        self.url = f"file:{path}"
        self.blobs = BlobFolder(path / "blobs")
        self.registry = Registry()
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._owner_timeout_s = owner_timeout_s
        self._owner: Owner | None = None
        self._server: Server | None = None
        self._client: Client | None = None
        self._outbox = Outbox()
        self._is_behind = False
        self._closed = False
        if read_only and not is_log(path):
            raise InputError(f"{path}: no log is here yet; record into it first, or give its path with --log")
        self.database = self._open_to_read() if read_only else self._open_to_write(partitions or PARTITIONS_DEFAULT)
        try:
            self._load(partitions)
            if not read_only:
                self._take_role()
        except BaseException:
            self.database.close()
            raise

    # Opening

    def _open_to_read(self) -> Database:
        """A reader; a log that is being made right now is waited for."""
        deadline = time.monotonic() + self._owner_timeout_s
        while True:
            database = Database.read(self.path)
            if records.read_log_record(database) is not None:
                return database
            database.close()
            if time.monotonic() > deadline:
                raise InputError(f"{self.path}: the log has no identity yet; open it to write, which gives it one")
            time.sleep(TAKEOVER_WAIT_S)

    def _open_to_write(self, partitions: int) -> Database:
        """The database as its owner, or as a reader beside the owner."""
        deadline = time.monotonic() + self._owner_timeout_s
        while True:
            try:
                database = Database.open(self.path) if is_log(self.path) else Database.create(self.path)
            except LockedError:
                if is_log(self.path):
                    return self._open_to_read()
                if time.monotonic() > deadline:
                    raise
                time.sleep(TAKEOVER_WAIT_S)
                continue
            except InputError:
                if not is_log(self.path):
                    raise
                continue  # another process finished making it between the two looks
            if records.read_log_record(database) is None:
                write = database.batch()
                write.put("meta", records.LOG, records.log_record(self._new_id(), partitions))
                database.write(write, sync=True)
            return database

    def _load(self, partitions: int | None) -> None:
        found = records.read_log_record(self.database)
        assert found is not None
        self.log_id, self.partitions = found
        if partitions is not None and partitions != self.partitions:
            raise InputError(
                f"{self.path}: this log has {self.partitions} partitions, fixed when it was made; "
                f"open it without ?partitions={partitions}"
            )
        records.read_schemas(self.database, self.registry)

    def _take_role(self) -> None:
        if self.database.is_owner:
            self._own(self.database)
        else:
            self._client = Client(self.path, self._owner_timeout_s)

    def _own(self, database: Database) -> None:
        owner = Owner(database, self.registry, self.partitions, self._clock_ms)
        self._server = serve(self.path, owner.answer)
        self._owner = owner

    # Writing

    def register(self, definition: TypeDefinition) -> None:
        self.flush()
        if self._asked(lambda client: client.call("register", definition.document)):
            self.refresh()
        else:
            self._as_owner.register(definition)

    def append(self, observation: Observation, observation_id: bytes, data: bytes) -> None:
        self._require_writable()
        self._outbox.add(Appended(observation, observation_id, data))
        if self._outbox.batch_due:
            self._push(sync=self._outbox.flush_due)

    def flush(self) -> None:
        if not self._outbox.is_clean:
            self._push(sync=True)

    def _push(self, *, sync: bool) -> None:
        if not self._asked(lambda client: self._outbox.send(client, sync=sync)):
            self._outbox.write(self._as_owner, sync=sync)

    def mark(self, marked: Marked, *, replace: bool) -> None:
        if not self._asked(lambda client: client.call("mark", {"marked": list(marked), "replace": replace})):
            self._as_owner.mark(marked, replace=replace)

    def put_blob(self, digest: bytes, content: bytes) -> None:
        self._require_writable()
        self.blobs.put(digest, content)

    def _require_writable(self) -> None:
        if self._closed:
            raise closed_error(self.path)
        if self._owner is None and self._client is None:
            raise InputError(f"{self.path}: opened for reading; open it to write, without read_only")

    @property
    def _as_owner(self) -> Owner:
        assert self._owner is not None
        return self._owner

    def _asked(self, ask: Callable[[Client], object]) -> bool:
        """Ask the owner, or the next one when it ended; False when this process is the owner, perhaps as of now."""
        self._require_writable()
        deadline = None
        while self._client is not None:
            self._is_behind = True  # also where this fails: it may have been done
            try:
                ask(self._client)
                return True
            except OwnerGone:
                if self._take_over():
                    return False
                now = time.monotonic()
                deadline = deadline or now + self._owner_timeout_s
                if now > deadline:
                    raise OwnerSilent(
                        f"{self.path}: the log is locked, and its owner does not answer; end that process, then repeat"
                    ) from None
                time.sleep(TAKEOVER_WAIT_S)
        return False

    def _take_over(self) -> bool:
        """Own the log if nobody does."""
        try:
            database = Database.open(self.path)
        except LockedError:
            return False
        try:
            records.read_schemas(database, self.registry)
            self._own(database)
        except BaseException:
            database.close()
            raise
        assert self._client is not None
        self._client.close()
        self._client = None
        # The reader before it goes when the last scan that uses it ends.
        self.database = database
        return True

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self._owner is not None or self._client is not None:
                self.flush()
        finally:
            self._closed = True
            if self._server is not None:
                self._server.stop()
            if self._client is not None:
                self._client.close()
            self.database.close()

    # Reading

    def refresh(self) -> None:
        self.database.catch_up()
        self._is_behind = False
        if self._owner is None:  # an owner's registry is ahead of any other, and its server's threads add to it
            records.read_schemas(self.database, self.registry)

    @contextmanager
    def still(self) -> Iterator[LogPort]:
        self.flush()
        self.refresh()
        if self._owner is None:
            yield self  # it moves when it is asked to
            return
        reader = FileLog(self.path, clock_ms=self._clock_ms, new_id=self._new_id, read_only=True)
        try:
            yield reader
        finally:
            reader.close()

    @property
    def _view(self) -> Database:
        """What to read from: it holds at least what this process flushed."""
        if self._is_behind:
            self.refresh()
        return self.database

    def ends(self) -> dict[int, int]:
        return records.read_progress(self._view, self.partitions).observations

    def changes_end(self, partition: int) -> int:
        return records.read_progress(self._view, self.partitions).changes[partition]

    def read(self, partition: int, start: int, end: int) -> Iterator[Record]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition, end)
        return (keys.record_of(*row) for row in self._view.scan("observations", first, stop))

    def read_changes(self, partition: int, start: int) -> Iterator[ChangeRecord]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition + 1, 0)
        for key, value in self._view.scan("changes", first, stop):
            yield ChangeRecord(*keys.change_position(key), value)

    def record_at(self, partition: int, offset: int) -> Record | None:
        key = keys.position_key(partition, offset)
        value = self._view.get("observations", key)
        return None if value is None else keys.record_of(key, value)

    def entity_records(self, entity: str, end: int) -> Iterator[Record]:
        partition, prefix = self.partition_of(entity), keys.entity_prefix(entity)
        rows = self._view.scan("arrivals", prefix, keys.arrival_key(prefix, end))
        while some := [keys.arrival_of(*row) for row in islice(rows, READ_AT_ONCE)]:
            packed = self._view.multi_get("timeline", [prefix + q for _, _, q in some])
            for (offset, recorded_at, q), value in zip(some, packed, strict=True):
                if value is None:
                    raise CorruptionError(f"the timeline of {entity} lacks offset {offset}; run refold verify")
                yield Record(partition, offset, recorded_at, entity, q[-32:], keys.timeline_of(value)[2])

    def find(self, observation_id: bytes) -> Record | None:
        prefix = observation_id[: keys.ID_PREFIX_BYTES]
        for key, _ in self._view.scan("ids", prefix, keys.after_id(prefix)):
            record = self.record_at(*keys.id_position(key))
            if record is not None and record.id == observation_id:
                return record
        return None

    def blob(self, digest: bytes) -> bytes | None:
        return self.blobs.get(digest)

    def markers(self) -> Sequence[Marked]:
        return sorted(records.read_markers(self._view), key=lambda marked: (marked.marked_at, marked.name))

    def partition_of(self, entity: str) -> int:
        return partition_of(entity, self.partitions)

    def stored_entities(self) -> Iterator[tuple[str, bytes]]:
        return ((keys.entity_of(key), packed) for key, packed in self._view.scan("state"))

    def check_indexes(self, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
        return check_indexes(self._view, self.registry, offsets)
