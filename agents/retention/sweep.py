"""Remove expired content. Observations do not change, and with them ids, order, hashes, roots and provenance.

1. Plan (plan.py): judge every run, and read all observations, because content that is stored once may have several
   names.
2. Judge again, by the current state of the runs: a run that was pinned, flagged, resumed or forked during the pass
   stays.
3. Destroy the runs' keys. From here on everything that was sealed under them reads as expired, in every copy of the
   log, for all of a run at one moment: so keys are first. In the other order a process killed in between would leave
   runs that are half there.
4. Remove the contents that only expired runs name (streams/blobs/): they are recorded as expired, then removed. For a
   run that was recorded in clear this is everything; content inside its records stays.
5. Have the storage below the key ring drop its remains of destroyed keys (keys/kafka.py), and that below the store of
   contents its remains of removed ones (streams/log/kafka/contents.py), also of earlier sweeps.

Each run is handled separately. A damaged key is destroyed with its run, as any other; a key that cannot be destroyed
leaves its run, with its contents, to the next sweep, and the others are processed.

A process killed at any moment leaves a log that answers and verifies; the next sweep does the rest, because it starts
with the same judgement: a run without a key whose contents still exist is judged as before. Two sweeps at once do the
same things twice, which is harmless.

Concurrent recording is safe: an open run is never judged, and its key and contents are its own. Contents in clear may
be shared with a run that has just put one, and whose observation is not in the log yet: a content that was put (again)
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
# No file is from later: for contents that no other process can have put.
_EVER_MS = 1 << 50


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep. keys: destroyed. left: contents that were put too recently; the next sweep removes them.

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


def sweep(log: Log, ring: KeyRing | None, days: Mapping[str, float], now_micros: int) -> SweepResult:
    """Remove content that has expired at a time; durable on return."""
    before = plan(log, ring, days, now_micros)  # step 1
    if not before.expiring:
        return SweepResult(before, [], 0, 0, 0, 0, {}, _settled(ring), _settled(log.port.blobs))
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
    return SweepResult(found, done, keys, contents, size, left, failed, _settled(ring), _settled(log.port.blobs))


def _settled(kept_in: KeyRing | ContentStore | None) -> int:
    """Return how much of the destroyed content the storage below still has, after asking it to drop that (step 5)."""
    remaining = 0 if kept_in is None else kept_in.remaining()
    if kept_in is not None and remaining:
        kept_in.settle()
    return remaining
