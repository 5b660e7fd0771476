"""One cut rebuilt in two ways, from whatever epochs there are and from the first record: the same, byte for byte."""

from __future__ import annotations

from refold.reducers.entity import stored_version
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.rebuild.result import Rebuilt
from refold.streams.rebuild.workers import rebuild


def assert_full_replay(
    log: LogPort, cut: Cut, *, parallel: bool | None = False, may_fall_back: bool = False
) -> Rebuilt:
    """A rebuild of the cut is its full replay; returns the rebuild.

    parallel: as `rebuild` takes it; the full replay is done in this process. may_fall_back: an epoch may be unusable.
    """
    found, full = rebuild(log, cut, parallel=parallel), rebuild(log, cut, full=True, parallel=False)
    rows = list(found.rows())
    assert dict(rows) == dict(full.rows()), cut.offsets
    assert len(rows) == found.entities == full.entities
    assert found.observations == full.observations == sum(stored_version(packed) for _, packed in rows)
    assert found.root() == full.root()
    assert (full.source()["snapshot_epochs"], full.source()["fallbacks"]) == ({}, [])
    assert may_fall_back or found.source()["fallbacks"] == [], found.source()
    return found


def epochs_used(rebuilt: Rebuilt) -> dict[str, int]:
    """The offset of the epoch that each partition began from, of those that began from one."""
    epochs = rebuilt.source()["snapshot_epochs"]
    assert isinstance(epochs, dict)
    return epochs
