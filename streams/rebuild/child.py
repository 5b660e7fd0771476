"""The child process that rebuilds partitions for its parent (processes.py), by the protocol of streams/job_process.py.

1. Open the log to read. It has to reach the cut.
2. Rebuild each requested partition, write its entities to the file, and report its counts.
"""

from __future__ import annotations

import os

from refold.avro.errors import StorageError
from refold.streams.cut import Cut
from refold.streams.job_process import NextRequest, Send, Tree, serve
from refold.streams.log.port import LogReader
from refold.streams.open import open_port
from refold.streams.partitioner import slots_of
from refold.streams.rebuild.partition import RecordsToRead, StartingEpoch, rebuild_partition
from refold.streams.rebuild.plan import plan_of_json
from refold.streams.rebuild.result import write_entities
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.folds import Folds


def main() -> None:
    """Serve until the input ends."""
    serve(_rebuild)


def _rebuild(setup: Tree, next_request: NextRequest, send: Send) -> None:
    plan = plan_of_json(setup["plan"])
    cut = plan.cut
    log = open_port(setup["url"], read_only=True, config=setup["config"])
    _require_reached(log, cut)
    folds = Folds(log.registry, cut.schemas)
    with os.fdopen(setup["file"], "wb") as file:
        while True:
            partition = next_request()["partition"]
            known = RecordsToRead(cut.offsets[partition], lambda more, total: send({"read": more, "total": total}))
            store = ChunkStore(setup["memory_bytes"], put_bytes=plan.memory.put_bytes)
            with RunningHashes() as hashes:
                epoch = StartingEpoch(log, plan, partition, folds, store, hashes)
                part = rebuild_partition(log, plan, epoch, folds, known)
            start = file.tell()
            digests = part.layers.rehash() if plan.limits is None else None
            write_entities(file, part.layers, digests, slots_of(partition, log.partitions))
            send(
                {
                    "part": {
                        "start": start,
                        "end": file.tell(),
                        "entities": part.entities,
                        "observations": part.observations,
                        "replayed": part.replayed,
                        "reopened": part.reopened,
                        "scanned": part.scanned,
                        "epoch": part.epoch,
                        "fallbacks": part.fallbacks,
                    }
                }
            )


def _require_reached(log: LogReader, cut: Cut) -> None:
    """Check that the log reaches the cut: the URL may lead to another log by now, or to a log that is not as far
    yet.
    """
    ends = log.ends()
    reached = log.log_id == cut.log_id and len(log.registry) >= cut.schemas
    if not reached or any(ends.get(partition, -1) < offset for partition, offset in cut.offsets.items()):
        raise StorageError(f"{log.url} does not reach the cut {cut.short} for another process")


if __name__ == "__main__":
    main()
