"""Rebuild a partition's lost table with the code of a rebuild: the nearest snapshot and the records after it.

The steps are those of streams/table/recovery.py. The table is then at the emitted point, folding continues at once, and
the indexes are filled in the background.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from refold.streams.cut import Cut
from refold.streams.log.kafka.fold_position import Reached
from refold.streams.log.port import LogPort
from refold.streams.rebuild.result import Rebuilt
from refold.streams.rocks.batch import WriteSet
from refold.streams.table.recovery import recover
from refold.streams.worker.commit import StoredPosition
from refold.streams.worker.table import PartitionTable

_log = logging.getLogger(__name__)


def recover_table(table: PartitionTable, log: LogPort, stored: StoredPosition, go_on: Callable[[], None]) -> int:
    """Rebuild the table at the point of `stored`, with its totals counted; the database's content is removed.

    Returns how many records were folded for that.
    """
    at = Reached(stored.at.offset, stored.at.schemas)
    made = [stored]

    def put_totals(rebuilt: Rebuilt, write: WriteSet) -> None:
        part = rebuilt.parts[stored.partition]
        made[0] = replace(stored, at=at, entities=part.entities, distinct=part.observations)
        made[0].put(write)

    cut = Cut(log.log_id, {stored.partition: at.offset}, at.schemas, log.registry.digest(at.schemas))
    table.stop_filling()
    rebuilt = recover(table.database, log, cut, put_totals, lambda more, total: go_on())
    table.made_from = rebuilt.source()
    if at.offset:
        _log.info("%s: made again at %s: %s", table.database.path, at, table.made_from)
    table.stand(made[0])
    return rebuilt.parts[stored.partition].replayed
