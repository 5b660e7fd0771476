"""Makes a lost or stale table again, by the code of rebuild: from the nearest snapshot and the records after it.

1. Remove the record `table` (streams/table/index_gaps.py), synced. From here on there is no valid table until step 4.
2. Remove the rows of the table's families.
3. Rebuild the log's end, by the definitions that are applied; put every entity.
4. In one synced write, put the counts of folded entities and observations, and the record `table`, whose gaps cover all
   records. The table is caught up: folding continues, while the indexes are filled in the background.
A crash before 4 leaves no table, and the next owner begins at 1.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from refold.streams.cut import Cut
from refold.streams.log.port import LogReader
from refold.streams.partitioner import placed
from refold.streams.rebuild.partition import Progress
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.rebuild.result import Rebuilt
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Family
from refold.streams.snapshots.spill import MEMORY_BYTES
from refold.streams.table.index_gaps import TABLE, Gap, table_record

FAMILIES: tuple[Family, ...] = ("state", "timeline", "arrivals", "ids", "checkpoints")
PUT_AT_ONCE = 500


def recover(
    database: Database, log: LogReader, cut: Cut, put_totals: Callable[[Rebuilt, WriteSet], None],
    progress: Progress = lambda more, total: None,
) -> Rebuilt:  # fmt: skip
    """Make the table at a log's end again, for the cut's partitions.

    Args:
        database: The table.
        log: The log, at `cut`.
        cut: The log's end.
        put_totals: Adds the counts of entities and observations to the write of step 4.
        progress: Gets (records done since its last call, all records). An error that it raises ends the recovery
            before step 4.

    Returns:
        What the rebuild found.
    """
    write = database.batch()
    write.delete("meta", TABLE)
    database.write(write, sync=True)
    for family in FAMILIES:
        database.clear(family)
    rebuilt = rebuild(log, cut, progress, memory_bytes=MEMORY_BYTES)
    rows = rebuilt.rows()
    while some := list(islice(rows, PUT_AT_ONCE)):
        progress(0, cut.records)
        write = database.batch()
        for name, packed in some:
            write.put("state", placed(name), packed)
        database.write(write, sync=False)
    write = database.batch()
    put_totals(rebuilt, write)
    gaps = {partition: Gap(0, end) for partition, end in cut.offsets.items() if end}
    write.put("meta", TABLE, table_record(gaps))
    database.write(write, sync=True)
    return rebuilt
