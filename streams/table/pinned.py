"""A consistent snapshot of a table, for sealing epochs while the fold continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from refold.streams.partitioner import PLACE_BYTES, place_in, slots_of
from refold.streams.rocks.scan import FamilySnapshot
from refold.streams.snapshots.chunk import Group, Member
from refold.streams.snapshots.table import EpochState, Row, TableView
from refold.streams.table import keys


class PinnedTable(TableView):
    """One partition of a table; several may share one `states`.

    Attributes:
        touched: Returns the entities of the latest records; see TableView.touched.
    """

    def __init__(
        self,
        states: FamilySnapshot,
        epoch_state: EpochState,
        partitions: int,
        touched: Callable[[int], Mapping[bytes, bytes]],
    ) -> None:
        self.epoch_state = epoch_state
        self._states = states
        self._partitions = partitions
        self._touched = touched

    def members(self, place: int) -> list[Member]:
        rows = self._states.scan(keys.place_key(place), keys.place_key(place + 1))
        return [(key[PLACE_BYTES:], packed) for key, packed in rows]

    def at(self, places: Sequence[int]) -> Iterator[Group]:
        for place, rows in zip(places, self._states.prefixed(map(keys.place_key, places)), strict=True):
            yield place, [(key[PLACE_BYTES:], packed) for key, packed in rows]

    def rows(self) -> Iterator[Sequence[Row]]:
        for slot in slots_of(self.epoch_state.epoch.partition, self._partitions):
            yield from self._states.batches(keys.place_key(slot << 8), keys.place_key((slot + 1) << 8))

    def groups(self) -> Iterator[Group]:
        for slot in slots_of(self.epoch_state.epoch.partition, self._partitions):
            rows = self._states.scan(keys.place_key(slot << 8), keys.place_key((slot + 1) << 8))
            place = b""
            members: list[Member] = []
            for key, packed in rows:
                if not key.startswith(place) or not members:
                    if members:
                        yield place_in(place), members
                    place, members = key[:PLACE_BYTES], []
                members.append((key[PLACE_BYTES:], packed))
            if members:
                yield place_in(place), members

    def touched(self, start: int) -> Mapping[bytes, bytes]:
        return self._touched(start)
