"""The `file:` log: one folder, one owning process at a time, everyone else through it.

A process that opens the log to write
1. makes it if there is none;
2. owns it if nobody does: it holds the lock, answers other processes on the socket, and reads its own database;
3. otherwise sends what it appends to the owner, and reads beside it as a secondary instance.
When the owner ends, whoever asks next takes over or finds the next owner, and sends again what was not yet
acknowledged: the same observations have the same ids, so a repeat is never counted twice.

A process that opens it to read is always a secondary instance, and never makes or owns a log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import CorruptionError, InputError, LockedError, OwnerGone, OwnerSilent
from refold.avro.observation import Observation
from refold.avro.registry import Registry
from refold.streams.log.file import records
from refold.streams.log.file.blobs import BlobFolder
from refold.streams.log.file.check import check_indexes
from refold.streams.log.file.client import Client
from refold.streams.log.file.database import Database
from refold.streams.log.file.layout import is_log
from refold.streams.log.file.owner import Clock, Owner
from refold.streams.log.file.server import Server, serve
from refold.streams.log.port import ChangeRecord, LogPort, Marked, Mismatch, Record
from refold.streams.partition import PARTITIONS_DEFAULT, partition_of
from refold.streams.table import keys

APPENDED_AT_ONCE = 1000
APPENDED_BYTES = 8 << 20
UNSYNCED_MAX = 50_000
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
        self._owner_timeout_s = owner_timeout_s
        self._owner: Owner | None = None
        self._server: Server | None = None
        self._client: Client | None = None
        self._waiting: list[tuple[Observation, bytes, bytes]] = []
        self._waiting_bytes = 0
        self._sent: list[tuple[Observation, bytes, bytes]] = []
        self._closed = False
        if read_only and not is_log(path):
            raise InputError(f"{path}: no log is here yet; record into it first, or give its path with --log")
        self.database = self._open_to_read() if read_only else self._open_to_write(partitions or PARTITIONS_DEFAULT, new_id)
        self._read_only = read_only
        try:
            self._load(partitions)
        except BaseException:
            self.database.close()
            raise
        if not read_only:
            self._take_role()

    # Opening

    def _open_to_read(self) -> Database:
        """A secondary instance; a log that is being made right now is waited for."""
        deadline = time.monotonic() + self._owner_timeout_s
        while True:
            database = Database.read(self.path)
            if records.read_log_record(database) is not None:
                return database
            database.close()
            if time.monotonic() > deadline:
                raise InputError(f"{self.path}: the log has no identity yet; open it to write, which gives it one")
            time.sleep(TAKEOVER_WAIT_S)

    def _open_to_write(self, partitions: int, new_id: Callable[[], bytes]) -> Database:
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
                write.put("meta", records.LOG, records.log_record(new_id(), partitions))
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
            self._owner = Owner(self.database, self.registry, self.partitions, self._clock_ms)
            self._server = serve(self.path, self._answer)
        else:
            self._client = Client(self.path, self._owner_timeout_s)

    def _answer(self, op: str, payload: object) -> object:
        """What other processes may ask of the owner."""
        owner: Any = self._owner
        given: Any = payload
        if op == "append":
            owner.append_foreign([(observation_id, data) for observation_id, data in given], sync=False)
        elif op == "flush":
            owner.append((), sync=True)
        elif op == "register":
            owner.register(parse(given))
        elif op == "mark":
            owner.mark(Marked(*given["marked"]), replace=given["replace"])
        else:
            raise InputError(f"the log's owner knows no question {op!r}; use the same release in both processes")
        return None

    # Writing

    def register(self, definition: TypeDefinition) -> None:
        self.flush()
        if self._owner is not None:
            self._owner.register(definition)
        else:
            self._ask("register", definition.document, lambda owner: owner.register(definition))
            self.refresh()

    def append(self, observation: Observation, observation_id: bytes, data: bytes) -> None:
        self._waiting.append((observation, observation_id, data))
        self._waiting_bytes += len(data)
        if len(self._waiting) >= APPENDED_AT_ONCE or self._waiting_bytes >= APPENDED_BYTES:
            self._push(sync=len(self._sent) >= UNSYNCED_MAX)

    def flush(self) -> None:
        if self._waiting or self._sent:
            self._push(sync=True)

    def _push(self, *, sync: bool) -> None:
        """Write what waits, here or through the owner.

        1. What is sent is kept until a flush was answered.
        2. When the owner ended, the next one (this process, or another) is given all that was kept.
        """
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._owner is not None:
            self._owner.append(batch, sync=sync)
            return
        self._sent += batch
        self._through_owner(lambda client: _send(client, batch, sync), lambda client: _send(client, self._sent, sync),
                            lambda owner: owner.append(self._sent, sync=True))  # fmt: skip
        if sync or self._owner is not None:
            self._sent = []

    def mark(self, marked: Marked, *, replace: bool) -> None:
        if self._owner is not None:
            self._owner.mark(marked, replace=replace)
        else:
            payload = {"marked": list(marked), "replace": replace}
            self._ask("mark", payload, lambda owner: owner.mark(marked, replace=replace))

    def put_blob(self, digest: bytes, content: bytes) -> None:
        self.blobs.put(digest, content)

    def _through_owner(
        self, ask: Callable[[Client], None], ask_next: Callable[[Client], None], as_owner: Callable[[Owner], None]
    ) -> None:
        """Ask the owner; when it ended, take over and do it here, or ask the next one."""
        deadline = time.monotonic() + self._owner_timeout_s
        while True:
            assert self._client is not None
            try:
                ask(self._client)
                return
            except OwnerGone:
                if self._take_over():
                    assert self._owner is not None
                    as_owner(self._owner)
                    return
                if time.monotonic() > deadline:
                    raise OwnerSilent(
                        f"{self.path}: the log is locked, and its owner does not answer; end that process, then repeat"
                    ) from None
                time.sleep(TAKEOVER_WAIT_S)
                ask = ask_next

    def _ask(self, op: str, payload: object, as_owner: Callable[[Owner], None]) -> None:
        def ask(client: Client) -> None:
            client.call(op, payload)

        self._through_owner(ask, ask, as_owner)

    def _take_over(self) -> bool:
        """Own the log if nobody does."""
        try:
            database = Database.open(self.path)
        except LockedError:
            return False
        assert self._client is not None
        self._client.close()
        self._client = None
        self.database.close()
        self.database = database
        records.read_schemas(database, self.registry)
        self._take_role()
        return True

    def close(self) -> None:
        if self._closed:
            return
        try:
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
        records.read_schemas(self.database, self.registry)

    def ends(self) -> dict[int, int]:
        return records.read_progress(self.database, self.partitions).observations

    def changes_end(self, partition: int) -> int:
        return records.read_progress(self.database, self.partitions).changes[partition]

    def read(self, partition: int, start: int, end: int) -> Iterator[Record]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition, end)
        return (keys.record_of(*row) for row in self.database.scan("observations", first, stop))

    def read_changes(self, partition: int, start: int) -> Iterator[ChangeRecord]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition + 1, 0)
        for key, value in self.database.scan("changes", first, stop):
            number, offset = keys.POSITION.unpack(key)
            yield ChangeRecord(number, offset, value)

    def record_at(self, partition: int, offset: int) -> Record | None:
        key = keys.position_key(partition, offset)
        value = self.database.get("observations", key)
        return None if value is None else keys.record_of(key, value)

    def entity_records(self, entity: str, end: int) -> Iterator[Record]:
        partition, prefix = self.partition_of(entity), keys.entity_prefix(entity)
        rows = self.database.scan("arrivals", prefix, keys.arrival_key(prefix, end))
        while some := [keys.arrival_of(*row) for row in islice(rows, READ_AT_ONCE)]:
            packed = self.database.multi_get("timeline", [prefix + q for _, _, q in some])
            for (offset, recorded_at, q), value in zip(some, packed, strict=True):
                if value is None:
                    raise CorruptionError(f"the timeline of {entity} lacks offset {offset}; run refold verify")
                yield Record(partition, offset, recorded_at, entity, q[-32:], keys.timeline_of(value)[2])

    def find(self, observation_id: bytes) -> Record | None:
        prefix = observation_id[: keys.ID_PREFIX_BYTES]
        for key, _ in self.database.scan("ids", prefix, keys.after_id(prefix)):
            record = self.record_at(*keys.POSITION.unpack(key[keys.ID_PREFIX_BYTES :]))
            if record is not None and record.id == observation_id:
                return record
        return None

    def blob(self, digest: bytes) -> bytes | None:
        return self.blobs.get(digest)

    def markers(self) -> Sequence[Marked]:
        return sorted(records.read_markers(self.database), key=lambda marked: (marked.marked_at, marked.name))

    def partition_of(self, entity: str) -> int:
        return partition_of(entity, self.partitions)

    def stored_entities(self) -> Iterator[tuple[str, bytes]]:
        return ((key.decode(), packed) for key, packed in self.database.scan("state"))

    def check_indexes(self, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
        return check_indexes(self.database, self.registry, offsets)


def _send(client: Client, batch: Sequence[tuple[Observation, bytes, bytes]], sync: bool) -> None:
    """Append through the owner, in messages of a bounded size."""
    some: list[list[bytes]] = []
    size = 0
    for _, observation_id, data in batch:
        some.append([observation_id, data])
        size += len(data)
        if len(some) >= APPENDED_AT_ONCE or size >= APPENDED_BYTES:
            client.call("append", some)
            some, size = [], 0
    if some:
        client.call("append", some)
    if sync:
        client.call("flush", None)
