"""Removing what has expired. Observations stay as they are, and with them ids, order, hashes, roots and provenance.

1. Plan (plan.py): judge every run, and pass over all observations, for what is stored once may be named by others.
2. Judge again, by the runs as they are now: whatever was pinned, flagged, resumed or forked during the pass stays.
3. Destroy the runs' keys. From here on everything that was sealed under them reads as expired, in every copy of the
   log, all of a run at one moment: so keys go first. The other way around a process killed in between would leave runs
   that are there by half.
4. Remove the contents that only expired runs name (streams/blobs/): they are noted as expired, then go. Of
   a run that was recorded in the clear this is all there is; what stood in its records stays.

5. Let the storage below the key ring drop what it still has of destroyed keys (keys/kafka.py), and that below the store
   of contents what it still has of removed ones (streams/log/kafka/contents.py), also of earlier sweeps.

Each run is handled by itself. A key that is damaged is destroyed with its run, as any other; one that cannot be
destroyed leaves its run, contents and all, to the next sweep, and the others go.

A process killed at any moment leaves a log that answers and verifies; the next sweep does what is left, for it begins
with the same judgement: a run without a key whose contents are still there is judged as ever. Two sweeps at once do
the same things twice, which is nothing.

Whoever records meanwhile: an open run is never judged, and its key and contents are its own. Contents in the clear may
be shared with a run that has just put one, and of which no observation stands in the log yet: what was put (again)
within GRACE_S stays until the next sweep.
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
# No file is from later: for contents that nobody else can have put.
_EVER_MS = 1 << 50


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did. keys: destroyed. left: contents that were put too lately; they go with the next sweep.

    failed: by run, why its key could not be destroyed; its contents are left with it. remaining, remaining_contents:
    destroyed keys and removed contents, of this sweep and of earlier ones, that the storage below has not dropped yet.
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


def sweep(log: Log, ring: KeyRing | None, days: Mapping[str, float], now_micros: int) -> Swept:
    """Remove what has expired at a time; durable on return."""
    before = plan(log, ring, days, now_micros)  # step 1
    if not before.expiring:
        return Swept(before, [], 0, 0, 0, 0, {}, _settled(ring), _settled(log.port.blobs))
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
    return Swept(found, done, keys, contents, size, left, failed, _settled(ring), _settled(log.port.blobs))


def _settled(kept_in: KeyRing | ContentStore | None) -> int:
    """How much of what was destroyed the storage below still has; it is told to drop that (step 5)."""
    remaining = 0 if kept_in is None else kept_in.remaining()
    if kept_in is not None and remaining:
        kept_in.settle()
    return remaining
