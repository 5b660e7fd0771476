"""recorded_at: the running maximum of the broker's append times in a partition, known at any offset without a scan.

A broker's clock, and so append times, may step back; recorded_at does not. Only records that readers get count: aborted
records and transaction markers have no recorded_at.

The greatest time below an offset:
1. Let t be the time of the last record below it.
2. Request the first offset with a time above t from the broker. If it is not below the offset, t is the answer.
3. Otherwise the clock stepped back. Find the greatest time below the offset by requests for times above t, with
   doubling steps and then binary search.
4. If the broker found a record that readers do not get, read from the first offset with a time above t on. If the
broker fails to search for a time, for example in a batch that it cannot unpack, every record is read instead.
"""

from __future__ import annotations

from refold.streams.log.kafka.offsets import KafkaPartition, NotSearchable, Offsets, TimedOffset
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord

# Maxima kept by where they hold, for who reads on where a read ended.
KEPT_MAX = 10_000


class Times:
    """The times of one partition's records. Results are cached, because they never change."""

    def __init__(self, place: KafkaPartition, offsets: Offsets, reading: LogReaders) -> None:
        self._place = place
        self._offsets = offsets
        self._reading = reading
        self._kept: dict[int, int] = {0: 0}

    def keep(self, offset: int, greatest: int) -> None:
        """Store the greatest time below an offset, found by reading."""
        if len(self._kept) >= KEPT_MAX:
            self._kept = {0: 0}
        self._kept[offset] = greatest

    def below(self, offset: int) -> int:
        """The greatest time of the records below an offset; 0 without any. It is at or below the partition's end."""
        found = self._kept.get(offset)
        if found is None:
            try:
                found = self._greatest_below(offset)
            except NotSearchable:
                every = self._reading.records(self._place, 0, offset)
                found = max((each.timestamp for each in every), default=0)
            self.keep(offset, found)
        return found

    def first_after(self, time_ms: int, end: int) -> int:
        """The offset of the first record below `end` with recorded_at above a time; `end` where there is none."""
        try:
            found = self._first_at(time_ms + 1, end)
        except NotSearchable:
            found = TimedOffset(0, 0)
        if found is None:
            return end
        record = self._reading.first(self._place, found.offset, end)
        if record is None:
            return end
        if record.timestamp > time_ms:
            return record.offset
        later = self._reading.records(self._place, record.offset, end)
        return next((each.offset for each in later if each.timestamp > time_ms), end)

    def _greatest_below(self, end: int) -> int:
        last = self._last_below(end)
        if last is None:
            return 0
        higher = self._first_at(last.timestamp + 1, end)
        if higher is None:
            return last.timestamp
        greatest = self._greatest_from(higher, end)
        record = self._reading.first(self._place, greatest.offset, end)
        if record is not None and record[:2] == greatest:
            return greatest.timestamp
        rest = self._reading.records(self._place, higher.offset, end)
        return max(last.timestamp, max((each.timestamp for each in rest), default=0))

    def _last_below(self, end: int) -> RawRecord | None:
        """The last record below an offset."""
        back = 1
        while end > 0:
            start = max(end - back, 0)
            found = None
            for found in self._reading.records(self._place, start, end, few=True):  # noqa: B007  # the last one counts
                pass
            if found is not None or start == 0:
                return found
            back *= 4
        return None

    def _greatest_from(self, low: TimedOffset, end: int) -> TimedOffset:
        """The first offset below `end` with the greatest time there is below it, which is at least that of `low`."""
        step = 1
        while (found := self._first_at(low.timestamp + step, end)) is not None:
            low, step = found, step * 2
        none_at = low.timestamp + step
        while none_at - low.timestamp > 1:
            middle = (low.timestamp + none_at) // 2
            found = self._first_at(middle, end)
            if found is None:
                none_at = middle
            else:
                low = found
        return low

    def _first_at(self, time_ms: int, end: int) -> TimedOffset | None:
        found = self._offsets.first_at(self._place, max(time_ms, 0))
        return found if found is not None and found.offset < end else None
