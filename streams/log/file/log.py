"""The `file:` log: one folder with one owning process at a time, through which all others append.

A process that opens the log to write
1. creates it if there is none;
2. owns it if no other process does: it holds the lock, answers other processes on the socket, and reads its own
   database;
3. otherwise sends its appends to the owner, and reads from its own read-only instance. When the owner ends, the next
process with a request takes over or finds the next owner, and sends again everything that was not yet acknowledged
(streams/log/file/outbox.py).

A process that opens it to read also has its own read-only instance, and never creates or owns a log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import quote

from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, LockedError, OwnerGone, OwnerSilent
from refold.avro.registry import Registry
from refold.streams.blobs.folder import BlobFolder
from refold.streams.blobs.store import ContentStore, GuardedStore
from refold.streams.blobs.url import STORE_FOLDER, open_store, store_of_log
from refold.streams.deadline import Deadline
from refold.streams.defaults import OWNER_TIMEOUT_S
from refold.streams.log.file import records, requests
from refold.streams.log.file.client import Client
from refold.streams.log.file.limits import DEFAULT_LIMITS, FileLogLimits
from refold.streams.log.file.opening import TAKEOVER_WAIT_S, open_to_read, open_to_write
from refold.streams.log.file.outbox import Outbox
from refold.streams.log.file.owner import Clock, Owner
from refold.streams.log.file.reads import FileLogReads
from refold.streams.log.file.server import Server, serve
from refold.streams.log.file.snapshots import FileSnapshotReader, FileSnapshotStore
from refold.streams.log.port import (
    AppendedObservation,
    LogPort,
    Marked,
)
from refold.streams.partitioner import PARTITIONS_DEFAULT
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Memory
from refold.streams.rocks.faults import archived_error, closed_error
from refold.streams.rocks.layout import is_log, url_of
from refold.streams.snapshots.garbage import Collected, Collector, collected_of
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings

PATIENCE_S = 3600.0


class FileLog(FileLogReads, LogPort):
    """A `file:` log that is open in this process. For one thread, apart from the socket's threads."""

    def __init__(
        self,
        path: Path,
        *,
        clock_ms: Clock,
        new_id: Callable[[], bytes],
        partitions: int | None = None,
        read_only: bool = False,
        owner_timeout_s: float = OWNER_TIMEOUT_S,
        blobs: str | None = None,
        memory_bytes: int | None = None,
        settings: SnapshotSettings = DEFAULT_SETTINGS,
        limits: FileLogLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open a log in a folder; created on the first open for writing.

        Args:
            path: The folder.
            clock_ms: The time that records get, in milliseconds since 1970.
            new_id: Returns 16 bytes, the id of a new log.
            partitions: The number of partitions of a new log; checked against an existing one.
            read_only: Never owns the log, and writes nothing.
            owner_timeout_s: How long to wait for the process that owns the log, in seconds.
            blobs: The URL of the content store, if it is not the folder in the log (blobs/url.py).
            memory_bytes: RocksDB's memory if this process owns the log, in bytes; None for 192 MiB.
            settings: How snapshots are sealed if this process owns the log.
            limits: Of its server, its messages, and what is appended.

        Raises:
            InputError: `read_only`, and there is no log; it has other partitions; memory_bytes is below 1 MiB.
            LockedError: Another process is creating the log, and did not finish in time.
        """
        self.path = path
        self.url = url_of(path) + ("" if blobs is None else f"?blobs={quote(blobs, safe=':/')}")
        self.registry = Registry()
        self.snapshots = FileSnapshotReader(lambda: self._view)
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._owner_timeout_s = owner_timeout_s
        self._memory = None if memory_bytes is None else Memory.limited_to(memory_bytes)
        self._settings = settings
        self._limits = limits
        self._owner: Owner | None = None
        self._server: Server | None = None
        self._client: Client | None = None
        self.outbox = Outbox(limits)
        self._is_behind = False
        # Readers and non-owning writers refresh through the same reader.
        self._looking = RLock()
        self._closed = False
        if read_only and not is_log(path):
            raise InputError(f"{path}: there is no log here; record into it first, or give its path with --log")
        self.database = (
            open_to_read(path, owner_timeout_s)
            if read_only
            else open_to_write(path, partitions or PARTITIONS_DEFAULT, owner_timeout_s, new_id, self._memory)
        )
        try:
            self._load(partitions)
            self.blobs = GuardedStore(store_of_log(path, blobs, make=not read_only), self._require_not_archive)
            if not read_only:
                self._take_role()
        except BaseException:
            self.database.close()
            raise

    # Opening

    def _load(self, partitions: int | None) -> None:
        self._identify(self.database)
        if partitions is not None and partitions != self.partitions:
            raise InputError(
                f"{self.path}: this log has {self.partitions} partitions, fixed when it was created; "
                f"open it without ?partitions={partitions}"
            )
        records.read_schemas(self.database, self.registry)

    def _identify(self, database: Database) -> None:
        found = records.read_log_record(database)
        assert found is not None
        self.log_id, self.partitions, self.archived_at, self.forked_from = found

    def _take_role(self) -> None:
        if self.database.is_owner:
            self._become_owner(self.database)
        else:
            self._client = Client(self.path, self._owner_timeout_s, self._limits.message_bytes_max)

    def _become_owner(self, database: Database) -> None:
        owner = Owner(database, self.registry, self.partitions, self._clock_ms, self._settings, self._limits.table)
        owner.begin(self)
        self._owner = owner  # other processes send requests as soon as the socket exists
        try:
            self._server = serve(self.path, self._answer, self._limits)
        except BaseException:
            self._owner = None
            owner.stop()
            raise

    # Writing

    def register(self, definition: TypeDefinition) -> None:
        self._require_not_archive()
        self.flush()
        if self._ask_owner(lambda client: client.call("register", definition.document)):
            self.refresh()
        else:
            self._as_owner.register(definition)

    def append(self, observation: AppendedObservation) -> None:
        if self._owner is None or self._closed or self.archived_at is not None:  # spares most appends the call
            self._require_not_archive()
        self._keep(observation)

    def append_encoded(self, observations: Sequence[AppendedObservation]) -> None:
        self._require_not_archive()
        for each in observations:
            self._keep(each)

    def _keep(self, appended: AppendedObservation) -> None:
        if self.outbox.add(appended):
            self._push(sync=self.outbox.flush_due)

    def flush(self) -> None:
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        """Write as the owner, or flush through the owner. The returned function syncs; other threads may append
        meanwhile.
        """
        if not self.outbox.is_clean:
            self._push(sync=True)
        return partial(self._sync, self.outbox.written)

    def _sync(self, written: int) -> None:
        if self._owner is not None and written:
            self._owner.sync(written)

    def publish(self) -> None:
        if not self.outbox.is_clean:
            self._push(sync=False)

    def _push(self, *, sync: bool) -> None:
        """Write it as the owner, or send it to the owner, to be synced there."""
        if not self._ask_owner(lambda client: self.outbox.send(client, sync=sync)):
            self.outbox.write(self._as_owner)

    def mark(self, marked: Marked, *, replace: bool) -> None:
        if not self._ask_owner(lambda client: client.call("mark", {"marked": list(marked), "replace": replace})):
            self._as_owner.mark(marked, replace=replace)

    def snapshot(self, pinned_at: int | None = None) -> list[Epoch]:
        self.flush()
        answered = self._request_slow("snapshot", pinned_at)
        if answered is None:
            return self._as_owner.snapshot(pinned_at)
        return [Epoch(*epoch) for epoch in answered]

    def recover(self, *, wait: bool) -> Mapping[str, object]:
        self.flush()
        answered: Mapping[str, object] | None = self._request_slow("recover", wait)
        return self._as_owner.recover(self, wait=wait) if answered is None else answered

    def pin(self, epochs: Sequence[Epoch], pinned_at: int | None) -> None:
        asked = {"epochs": [list(epoch) for epoch in epochs], "pinned_at": pinned_at}
        if not self._ask_owner(lambda client: client.call("pin", asked)):
            self._as_owner.pin(epochs, pinned_at)

    def collect(self, *, dry_run: bool = False, damaged: bool = False) -> list[Collected]:
        asked = {"dry_run": dry_run, "damaged": damaged}
        if dry_run and self._is_reader:
            store = FileSnapshotStore(self._view, self.partitions)
            return Collector(store).collect(range(self.partitions), self._clock_ms(), **asked)
        answered = self._request_slow("collect", asked)
        if answered is None:
            return self._as_owner.collect(**asked)
        return [collected_of(each) for each in answered]

    def _request_slow(self, op: str, payload: object) -> Any:
        """The owner's answer to a slow request, over a separate connection; None if this process is the owner."""
        answers: list[object] = []

        def ask(_: Client) -> None:
            with closing(Client(self.path, PATIENCE_S, self._limits.message_bytes_max)) as client:
                answers.append(client.call(op, payload))

        return answers[-1] if self._ask_owner(ask) else None

    @contextmanager
    def other_store(self, url: str | None) -> Iterator[ContentStore]:
        yield BlobFolder(self.path / STORE_FOLDER) if url is None else open_store(url)

    def _require_writable(self) -> None:
        if self._closed:
            raise closed_error(self.path)
        if self._is_reader:
            raise InputError(f"{self.path}: opened for reading; open it to write, without read_only")

    @property
    def _is_reader(self) -> bool:
        return self._owner is None and self._client is None

    def _require_not_archive(self) -> None:
        """Refuse to append to another log's archive."""
        self._require_writable()
        if self.archived_at is not None and self._owner is None:
            self.refresh()  # it may have been forked meanwhile
        if self.archived_at is not None:
            raise archived_error(self.path)

    @property
    def _as_owner(self) -> Owner:
        assert self._owner is not None
        return self._owner

    def _ask_owner(self, ask: Callable[[Client], object]) -> bool:
        """Send a request to the owner, or to the next one if it ended. False if this process is the owner, or just
        became it.
        """
        self._require_writable()
        deadline = None
        while self._client is not None:
            self._is_behind = True  # even if this fails: it may have been carried out
            try:
                ask(self._client)
                return True
            except OwnerGone:
                if self._take_over():
                    return False
                deadline = deadline or Deadline(self._owner_timeout_s)
                if deadline.is_past:
                    raise OwnerSilent(
                        f"{self.path}: the log is locked, and its owner does not answer; end that process, then repeat"
                    ) from None
                time.sleep(TAKEOVER_WAIT_S)
        return False

    def _take_over(self) -> bool:
        """Own the log if no other process does."""
        try:
            database = Database.open(self.path, memory=self._memory)
        except LockedError:
            return False
        before, self.database = self.database, database  # the reader is closed when the last scan that uses it ends
        try:
            self._identify(database)
            records.read_schemas(database, self.registry)
            self._become_owner(database)
        except BaseException:
            self.database = before
            database.close()
            raise
        assert self._client is not None
        self._client.close()
        self._client = None
        return True

    def _answer(self, op: str, payload: object) -> object:
        """Answer a request of another process."""
        if op == "recover":
            return self._as_owner.recover(self, wait=requests.wait(payload))
        return self._as_owner.answer(op, payload)

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
            if self._owner is not None:
                self._owner.stop()
            if self._client is not None:
                self._client.close()
            self.database.close()

    # Reading

    def refresh(self) -> None:
        with self._looking:
            self._refresh()

    def _refresh(self) -> None:
        self.database.catch_up()
        self._is_behind = False
        # A log with an owner is not forked. An owner's registry is ahead of any other, because its server's threads add
        # to it.
        if self._owner is None:
            self._identify(self.database)
            records.read_schemas(self.database, self.registry)

    @contextmanager
    def frozen(self, *, is_verified: bool = False) -> Iterator[LogPort]:
        self.flush()
        if self._owner is None:
            self._refresh_to_rest()
            yield self  # it moves only on a refresh
            return
        with self._owner.at_rest():
            reader = FileLog(self.path, clock_ms=self._clock_ms, new_id=self._new_id, read_only=True)
        try:
            yield reader
        finally:
            reader.close()

    def _refresh_to_rest(self) -> None:
        """Refresh until no definition is being applied: meanwhile some of its entities are folded by it and some are
        not.
        """
        deadline = Deadline(self._owner_timeout_s)
        self.refresh()
        while records.is_redefining(self.database) and not deadline.is_past:
            time.sleep(TAKEOVER_WAIT_S)
            self.refresh()

    @property
    def _view(self) -> Database:
        """The database to read from: it has at least everything that this process flushed."""
        if self._is_behind:
            self.refresh()
        return self.database

    def ends(self) -> dict[int, int]:
        in_memory = None if self._owner is None or self._closed else self._owner.ends
        return records.read_progress(self._view, self.partitions).observations if in_memory is None else in_memory
