"""One cut rebuilt in two ways, from any epochs and from the first record. Both results must be identical."""

from __future__ import annotations

from refold.reducers.entity import stored_version
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.rebuild.memory import DEFAULT_MEMORY, RebuildMemory
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.rebuild.result import Rebuilt


def assert_full_replay(
    log: LogPort, cut: Cut, *, parallel: bool | None = False, may_fall_back: bool = False,
    memory_bytes: int | None = None, memory: RebuildMemory = DEFAULT_MEMORY,
) -> Rebuilt:  # fmt: skip
    """Check that a rebuild of the cut equals its full replay; return the rebuild.

    parallel: passed to `rebuild`; the full replay runs in this process. may_fall_back: whether an epoch may be
    unusable. memory_bytes, memory: passed to `rebuild`.
    """
    found = rebuild(log, cut, parallel=parallel, memory_bytes=memory_bytes, memory=memory)
    full = rebuild(log, cut, full=True, parallel=False)
    rows = list(found.rows())
    assert dict(rows) == dict(full.rows()), cut.offsets
    assert len(rows) == found.entities == full.entities
    assert found.observations == full.observations == sum(stored_version(packed) for _, packed in rows)
    assert found.root() == full.root()
    assert (full.source()["snapshot_epochs"], full.source()["fallbacks"]) == ({}, [])
    assert may_fall_back or found.source()["fallbacks"] == [], found.source()
    return found


def epochs_used(rebuilt: Rebuilt) -> dict[str, int]:
    """Return the offset of the epoch that each partition started from; partitions without one are left out."""
    epochs = rebuilt.source()["snapshot_epochs"]
    assert isinstance(epochs, dict)
    return epochs
