"""Observations that this process appended, until they are written here or acknowledged by the owner.

1. An owner writes the kept observations in batches and drops them; a flush syncs everything written.
2. Another process sends the kept observations, and keeps them until a flush was answered on the connection that all of
   them were sent on. A new connection may lead to another owner, and a broken one may have lost messages, so all of
   them are sent again. The same observations have the same ids, so a repeat is never counted twice.
3. A batch is accepted as a whole or not at all. If a batch is refused, each half is tried separately, so that a refused
   observation does not affect others. The refusal is raised when all others are accepted, even after several attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from refold.avro.errors import InputError, RefoldError, StorageError
from refold.streams.log.file.client import Client
from refold.streams.log.file.limits import FileLogLimits
from refold.streams.log.file.owner import Owner
from refold.streams.log.port import AppendedObservation


class Outbox:
    """Appended observations in order; those before `_sent` were sent on the connection `_session`.

    Attributes:
        written: The owner's write that must be synced to make everything written durable.
    """

    def __init__(self, limits: FileLogLimits) -> None:
        self._limits = limits
        self._kept: list[AppendedObservation] = []
        self.kept_bytes = 0
        self._set_sent(0, 0)
        self._session = 0
        self.written = 0
        self._refusals: list[RefoldError] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, appended: AppendedObservation) -> bool:
        """Keep one more. Returns whether enough of them wait for a write or a send."""
        kept = self._kept
        kept.append(appended)
        self.kept_bytes = size = self.kept_bytes + len(appended.data)
        return len(kept) >= self._due or size >= self._due_bytes

    @property
    def flush_due(self) -> bool:
        """Whether so many observations are kept that a flush is needed to drop them."""
        return len(self._kept) >= self._limits.kept_records or self.kept_bytes >= self._limits.kept_bytes

    @property
    def is_clean(self) -> bool:
        """Whether every appended observation is written (durable, if through another owner) or reported as refused."""
        return not self._kept and not self._refusals

    def write(self, owner: Owner) -> None:
        """As the owner, write all kept observations.

        Raises:
            RefoldError: An observation was refused. It is dropped, and the refusal is raised after all others are
                written.
        """
        self._set_sent(0, 0)
        while self._kept:
            batch, size = self._batch()
            refused: list[RefoldError] = []
            _take(batch, owner.append, refused)
            del self._kept[: len(batch)]
            self._refusals += refused
            self.kept_bytes -= size
            self.written = owner.written
        self._raise_refusals()

    def send(self, client: Client, *, sync: bool) -> None:
        """Through the owner: send all kept observations; with sync, drop them when they are durable. Refusals as in
        `write`.
        """
        while not self._sent_all(client) or (sync and not self._flushed(client)):
            self._set_sent(0, 0)
        self._raise_refusals()

    def _sent_all(self, client: Client) -> bool:
        """Returns False if earlier observations were sent on another connection."""
        sessions = {self._session} if self._sent else set()

        def take(some: Sequence[AppendedObservation]) -> None:
            client.call("append", [[each.id, each.data] for each in some])
            sessions.add(client.session)

        while self._sent < len(self._kept):
            batch, batch_bytes = self._batch()
            refused: list[RefoldError] = []
            taken = _take(batch, take, refused)
            self._kept[self._sent : self._sent + len(batch)] = taken
            self._refusals += refused
            size = sum(len(each.data) for each in taken)
            self.kept_bytes -= batch_bytes - size
            self._session = client.session
            if len(sessions) > 1:
                return False
            self._set_sent(self._sent + len(taken), self._sent_bytes + size)
        return True

    def _flushed(self, client: Client) -> bool:
        """Returns False if the flush used another connection than the observations."""
        client.call("flush", None)
        if self._sent and client.session != self._session:
            return False
        self._kept.clear()
        self.kept_bytes = 0
        self._set_sent(0, 0)
        return True

    def _set_sent(self, count: int, size: int) -> None:
        """Note how many of the kept observations were sent, and their size in bytes.

        It also computes when the next batch is due, so that `add` need not do so for each observation.
        """
        self._due, self._due_bytes = count + self._limits.batch_records, size + self._limits.batch_bytes
        self._sent, self._sent_bytes = count, size

    def _raise_refusals(self) -> None:
        refusals, self._refusals = self._refusals, []
        if len(refusals) > 1:
            raise InputError(f"{refusals[0]}; {len(refusals) - 1} more observations were refused") from refusals[0]
        if refusals:
            raise refusals[0]

    def _batch(self) -> tuple[list[AppendedObservation], int]:
        """The next batch, of a bounded size, and its bytes."""
        batch: list[AppendedObservation] = []
        size = 0
        for each in self._kept[self._sent : self._sent + self._limits.batch_records]:
            batch.append(each)
            size += len(each.data)
            if size >= self._limits.batch_bytes:
                break
        return batch, size


def _take(
    batch: Sequence[AppendedObservation],
    take: Callable[[Sequence[AppendedObservation]], object],
    refusals: list[RefoldError],
) -> list[AppendedObservation]:
    """Pass a batch to `take`, in halves if it is refused; returns the accepted observations."""
    try:
        take(batch)
    except StorageError:
        raise
    except RefoldError as refusal:
        if len(batch) == 1:
            refusals.append(refusal)
            return []
        half = len(batch) // 2
        return [*_take(batch[:half], take, refusals), *_take(batch[half:], take, refusals)]
    return list(batch)
