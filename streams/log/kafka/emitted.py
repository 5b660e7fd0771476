"""Up to where the changes of a log are made, as any client of it finds out (fold_position.py).

1. Read the point at the group's committed offset.
2. Wait until everything that was in `.changes` and `.deadletters` then is decided: with the offset a worker committed
   its changes, but these show a moment later.
3. Where committed offsets expired or may not be read, the last record that a worker wrote in either topic says how far
   emission is: the greatest of the three counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from refold.avro.errors import StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.fold_position import BEGIN, Reached, committed_of, emitted_of, is_emitted
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.topics import Topics

POLL_S = 0.02
BUSY_POLL_S = 0.1


def emitted(
    topics: Topics, committed: Sequence[tuple[int, str]], offsets: Offsets, reading: LogReaders, timeout_s: float
) -> dict[int, Reached]:
    """The point of each partition; committed: what step 1 read, just now."""
    found = [committed_of(*each) or BEGIN for each in committed]
    places = [TopicPlace(topic, each) for topic in (topics.changes, topics.deadletters) for each in range(len(found))]
    for place, end in _decided(places, offsets, timeout_s).items():
        last = reading.last(place, end, is_emitted)
        point = None if last is None else emitted_of(last)
        if point is not None:
            found[place.partition] = max(found[place.partition], point)
    return dict(enumerate(found))


def settled(ask: Callable[[], dict[int, Reached]], topic: str, timeout_s: float) -> dict[int, Reached]:
    """What is asked for, `emitted` as it is then, once no worker is in the midst of taking a definition up."""
    deadline = Deadline(timeout_s)
    found = ask()
    while busy := [partition for partition, at in found.items() if at.place]:
        if deadline.is_past:
            raise StorageError(
                f"{topic}/{busy[0]}: a worker is applying a definition, or ended while it did; start it again if it "
                "did, and ask again when it is done"
            )
        time.sleep(BUSY_POLL_S)
        found = ask()
    return found


def _decided(places: list[TopicPlace], offsets: Offsets, timeout_s: float) -> dict[TopicPlace, int]:
    """Ends below which everything is decided that stood there at this call."""
    written = offsets.ends(places, committed=False)
    deadline = Deadline(timeout_s)
    while any((ends := offsets.ends(places))[place] < written[place] for place in places):
        if deadline.is_past:
            open_at = min(place for place in places if ends[place] < written[place])
            raise StorageError(
                f"{open_at.topic}/{open_at.partition}: a transaction stays open; its worker may have been killed: it "
                "is aborted after its timeout, or when that worker starts again. Ask again then"
            )
        time.sleep(POLL_S)
    return ends
