"""Remove expired content. Observations do not change, and so neither do ids, order, hashes, roots and provenance.

1. Plan (plan.py): judge every run, and read all observations, because content that is stored once may have several
   names.
2. Judge again, by the current state of the runs: a run that was pinned, flagged, resumed or forked during the pass
   is kept.
3. Destroy the runs' keys. From then on, everything that was sealed with them reads as expired, in every copy of the
   log, for all of a run at the same moment. That is why keys come first: in the other order, a process killed in
   between would leave runs with half of their content.
4. Remove the contents that only expired runs name (streams/blobs/): they are recorded as expired, then removed. For a
   run that was recorded in clear this is everything; content inside its records stays.
5. Tell the storage below the key ring to drop what remains of destroyed keys (keys/kafka.py), and the storage below the
   content store to drop what remains of removed contents (streams/log/kafka/contents.py). Both include earlier sweeps.

Each run is handled separately. A damaged key is destroyed with its run like any other. If a key cannot be destroyed,
its run keeps its contents until the next sweep, and the other runs are processed.

A process killed at any moment leaves a log that answers and verifies. The next sweep does the rest, because it starts
with the same judgement: a run without a key whose contents still exist is judged as before. Two concurrent sweeps do
the same things twice, which is harmless.

Concurrent recording is safe: an open run is never removed, and its key and sealed contents are its own. Contents in
clear may be shared with a run that has just stored one and whose observation is not in the log yet. So a content that
was stored (again) within GRACE_S stays until the next sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from refold.agents.keys.ring import KeyRing
from refold.agents.retention.plan import Plan, plan
from refold.agents.vault import run_key
from refold.avro.errors import StorageError
from refold.streams.blobs.store import ContentStore
from refold.streams.client import Log

GRACE_S = 600
# Later than any file. Used for contents that no other process can have stored.
_EVER_MS = 1 << 50


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        keys: How many keys were destroyed.
        left: How many contents were stored too recently; a later sweep removes them.
        failed: By run, why its key could not be destroyed; its contents are kept too.
        remaining, remaining_contents: How many destroyed keys and removed contents, of this sweep and earlier ones, the
            storage below has not dropped yet.
    """

    plan: Plan
    runs: list[str]
    keys: int
    contents: int
    bytes: int
    left: int
    failed: dict[str, str] = field(default_factory=dict)
    remaining: int = 0
    remaining_contents: int = 0


def sweep(log: Log, ring: KeyRing | None, days: Mapping[str, float], now_micros: int) -> SweepResult:
    """Remove the content that has expired at a time; durable on return.

    Args:
        log: The log.
        ring: The key ring; None if there is none.
        days: The days of each class.
        now_micros: The time, microseconds.

    Raises:
        InputError: Content is sealed, and there is no ring in which to destroy its key.
    """
    before = plan(log, ring, days, now_micros)  # step 1
    if not before.expiring:
        return SweepResult(before, [], 0, 0, 0, 0, {}, _drop_removed(ring), _drop_removed(log.port.blobs))
    found = plan(log, ring, days, now_micros, before)  # step 2
    keys, failed, done = 0, dict[str, str](), list[str]()
    for each in found.expiring:  # step 3
        if each.has_key and ring is not None:
            try:
                ring.destroy(run_key(each.run))
            except StorageError as error:
                failed[each.run] = str(error)
                continue
            keys += 1
        done.append(each.run)
    kept = {run for run, each in found.runs.items() if each.kept}
    free = found.free if not failed else found.seen.free(found.runs.keys() - kept - failed.keys())
    sealed = [digest for digest, (_, is_sealed) in free.items() if is_sealed]
    clear = [digest for digest, (_, is_sealed) in free.items() if not is_sealed]
    contents = size = left = 0
    for digests, before_ms in ((sealed, _EVER_MS), (clear, now_micros // 1000 - GRACE_S * 1000)):  # step 4
        if digests:
            removed = log.port.blobs.remove(digests, before_ms)
            contents, size, left = contents + removed.contents, size + removed.bytes, left + removed.left
    return SweepResult(
        found, done, keys, contents, size, left, failed, _drop_removed(ring), _drop_removed(log.port.blobs)
    )


def _drop_removed(kept_in: KeyRing | ContentStore | None) -> int:
    """Return how many removed items the storage below still has, and tell it to drop them (step 5)."""
    remaining = 0 if kept_in is None else kept_in.remaining()
    if kept_in is not None and remaining:
        kept_in.erase_removed()
    return remaining
