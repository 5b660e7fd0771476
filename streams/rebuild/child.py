"""The child process that rebuilds partitions for its parent (processes.py describes the protocol).

1. Take over standard input and output for the protocol; a user's reducer reads and prints elsewhere.
2. Open the log to read. It has to reach the cut.
3. Rebuild each requested partition, write its entities to the file, and report its counts.
4. Leave an interrupt from the keyboard to the parent. When the input ends, the parent is done or gone: remove its
   temporary folder and end at once, whatever is in progress.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
from collections.abc import Callable, Mapping
from threading import Thread
from typing import IO, Any

from refold.avro.errors import RefoldError, StorageError
from refold.streams.cut import Cut
from refold.streams.log.port import LogReader
from refold.streams.open import open_port
from refold.streams.partitioner import slots_of
from refold.streams.rebuild.partition import RecordsToRead, StartingEpoch, rebuild_partition
from refold.streams.rebuild.plan import plan_of_json
from refold.streams.rebuild.result import write_entities
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.folds import Folds

Send = Callable[[Mapping[str, object]], None]


def main() -> None:
    """Serve until the input ends."""
    request, answers = _own_streams()

    def send(tree: Mapping[str, object]) -> None:
        answers.write(json.dumps(tree).encode() + b"\n")

    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    setup = json.loads(request.readline())
    Thread(target=_read_requests, args=(request, lines, setup["folder"]), daemon=True).start()
    try:
        _serve(setup, lines, send)
    except RefoldError as error:
        send({"failed": str(error)})
        signal.pause()  # the other thread ends this process


def _own_streams() -> tuple[IO[bytes], IO[bytes]]:
    request, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return request, answers


def _read_requests(request: IO[bytes], lines: queue.SimpleQueue[Any], folder: str) -> None:
    for line in request:
        lines.put(json.loads(line))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _serve(setup: Mapping[str, Any], lines: queue.SimpleQueue[Any], send: Send) -> None:
    plan = plan_of_json(setup["plan"])
    cut = plan.cut
    log = open_port(setup["url"], read_only=True, config=setup["config"])
    _require_reached(log, cut)
    folds = Folds(log.registry, cut.schemas)
    with os.fdopen(setup["file"], "wb") as file:
        while True:
            request = lines.get()
            partition = request["partition"]
            known = RecordsToRead(cut.offsets[partition], lambda more, total: send({"read": more, "total": total}))
            store = ChunkStore(setup["memory_bytes"])
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
