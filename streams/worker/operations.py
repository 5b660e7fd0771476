"""Operations of workers: each worker runs them for the partitions that it folds, and names these partitions.

    flush     {offsets: {partition: offset}, schemas}  return when that much is folded
    snapshot  {pinned_at: milliseconds or null}        seal an epoch at the fold's position
    pin       {epochs: [[partition, offset, schemas]], pinned_at}
    unpin     {epochs}
    collect   {dry_run, damaged}                       remove old epochs
    recover   {wait}                                   delete the tables, and rebuild them
    verify    {}                                       compare the tables with a full replay

An answer is a list with one {partition, ...} for each of them. The caller needs all that are `wanted`; a partition in
nobody's answer was moving.

Other arguments are refused: numbers are whole, from 0 and below 2^63; true and false are not numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from refold.avro.errors import InputError, StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.snapshots.manifest import Epoch
from refold.streams.worker.config import FoldConfig
from refold.streams.worker.service import FoldService
from refold.streams.worker.table_check import check_partition

Given = Mapping[str, Any]
Items = list[dict[str, Any]]
POLL_S = 0.02
FLUSH_S = 10.0
RECOVER_S = 3_600.0
OWNER_ABSENT_S = 2.0
NUMBER_END = 2**63


class Operations:
    """Runs operations with one fold service; from any thread. InputError for arguments in another form."""

    def __init__(self, service: FoldService, config: FoldConfig) -> None:
        self._service = service
        self._config = config
        self._does: Mapping[str, Callable[[Given], Items]] = {
            "flush": self._flush, "snapshot": self._snapshot, "pin": self._pin, "unpin": self._pin,
            "collect": self._collect, "recover": self._recover, "verify": self._verify,
        }  # fmt: skip

    @property
    def names(self) -> list[str]:
        """The names of the operations."""
        return [*self._does]

    def wanted(self, name: str, given: Given) -> set[int]:
        """The partitions that all answers together must have."""
        with _form(name):
            if name == "flush":
                return set(self._offsets(given))
            if name in ("pin", "unpin"):
                return {each.partition for each in self._epochs(given)}
        return set(range(self._service.log.partitions))

    def do(self, name: str, given: Given) -> Items:
        """Do it for the partitions here."""
        return self._does[name](given)

    def _own_partitions(self) -> list[int]:
        return [each for each in range(self._service.log.partitions) if self._service.table(each) is not None]

    def _flush(self, given: Given) -> Items:
        with _form("flush"):
            offsets = self._offsets(given)
            schemas = _whole_number(given["schemas"])
        deadline = Deadline(FLUSH_S)
        while True:
            found: Items = []
            waits = False
            for partition, offset in offsets.items():
                table = self._service.table(partition)
                at = None if table is None else table.position.at
                if at is not None and at.offset >= offset and at.schemas >= schemas:
                    found.append({"partition": partition, "offset": at.offset, "schemas": at.schemas})
                elif self._service.owns(partition):
                    waits = True
            if not waits or deadline.is_past:
                return found
            time.sleep(POLL_S)

    def _snapshot(self, given: Given) -> Items:
        with _form("snapshot"):
            pinned_at = _pinned_at(given)
        sealed = self._service.sealing.seal(pinned_at)
        return [{"partition": each, "epoch": None if epoch is None else list(epoch)} for each, epoch in sealed.items()]

    def _pin(self, given: Given) -> Items:
        with _form("pin"):
            epochs = self._epochs(given)
            pinned_at = _pinned_at(given)
        own = self._service.sealing.pin(epochs, pinned_at)
        return [{"partition": epoch.partition, "epoch": list(epoch)} for epoch in own]

    def _collect(self, given: Given) -> Items:
        with _form("collect"):
            flags = {name: _flag(given, name) for name in ("dry_run", "damaged")}
        found = self._service.sealing.collect(**flags)
        return [{"partition": each.partition, "collected": list(each)} for each in found]

    def _recover(self, given: Given) -> Items:
        with _form("recover"):
            wait = _flag(given, "wait")
        numbers = self._service.recover()
        deadline = Deadline(RECOVER_S)
        return [self._recovered(each, deadline, wait=wait) for each in numbers]

    def _offsets(self, given: Given) -> dict[int, int]:
        return {self._partition(each): _whole_number(offset) for each, offset in given["offsets"].items()}

    def _epochs(self, given: Given) -> list[Epoch]:
        epochs = [Epoch(*map(_whole_number, each)) for each in given["epochs"]]
        for each in epochs:
            self._partition(str(each.partition))
        return epochs

    def _partition(self, name: str) -> int:
        """A partition's number, which is a text as a key in JSON."""
        count = self._service.log.partitions
        if not (name.isascii() and name.isdecimal() and len(name) <= 9 and int(name) < count):
            raise ValueError(f"partition {name:.40}: this log has the partitions 0 to {count - 1}")
        return int(name)

    def _recovered(self, partition: int, deadline: Deadline, *, wait: bool) -> dict[str, Any]:
        had_at = time.monotonic()
        while not deadline.is_past:
            now = time.monotonic()
            table = self._service.table(partition)
            if table is not None and not (wait and table.lacking):
                return {"partition": partition, "source": table.made_from}
            if self._service.owns(partition):
                had_at = now
            elif now - had_at > OWNER_ABSENT_S:
                raise StorageError(f"partition {partition} went to another worker while its table was rebuilt; "
                                   "that worker has its own table: verify again")  # fmt: skip
            time.sleep(POLL_S)
        raise StorageError(f"the table of partition {partition} is still being built; /status shows its progress")

    def _verify(self, given: Given) -> Items:
        address = parse_url(self._config.url)
        with closing(KafkaLog(address, config=self._config.kafka, read_only=True)) as log:
            found = [check_partition(log, self._config.folder, each) for each in self._own_partitions()]
        return [
            {"partition": each.partition, "offset": each.offset, "mismatches": [list(one) for one in each.mismatches]}
            for each in found
        ]


def _pinned_at(given: Given) -> int | None:
    found = given.get("pinned_at")
    return None if found is None else _whole_number(found)


def _whole_number(found: object) -> int:
    if type(found) is not int or not 0 <= found < NUMBER_END:
        raise ValueError(f"{found!r:.40} is not a whole number from 0, below 2^63")
    return found


def _flag(given: Given, name: str) -> bool:
    found = given.get(name, False)
    if not isinstance(found, bool):
        raise ValueError(f"{name} is {found!r:.40}; give true or false")
    return found


@contextmanager
def _form(name: str) -> Iterator[None]:
    """Turn the errors of an invalid form into an InputError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"/{name}: the request is not in the form of docs/OPERATIONS.md ({type(error).__name__}: {error})"
        ) from error
