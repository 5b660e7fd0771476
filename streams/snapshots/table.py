"""The interface of a table for sealing: a consistent view of each partition at one point, independent of later
folds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from refold.streams.partitioner import PLACE_BYTES
from refold.streams.snapshots.chunk import Group, Member
from refold.streams.snapshots.closed_entities import ClosingRule
from refold.streams.snapshots.manifest import Epoch

Row = tuple[bytes, bytes]
"""An entity's key (`placed`) and its stored form."""


@dataclass(frozen=True, slots=True)
class EpochState:
    """The state of a partition's table at an epoch apart from its entities; see Manifest.

    Attributes:
        aside: Each observation of the partition that is set aside in the table.
    """

    epoch: Epoch
    entities: int
    observations: int
    recorded_at: int
    deadletters: int
    types: Mapping[str, bytes]
    closing: Mapping[str, ClosingRule]
    aside: tuple[int, ...] = ()


class TableView(ABC):
    """A partition's table at an epoch, independent of later folds."""

    epoch_state: EpochState

    @abstractmethod
    def members(self, place: int) -> list[Member]:
        """The entities of a place in key order."""

    @abstractmethod
    def groups(self) -> Iterator[Group]:
        """Yield (place, entities in key order) for all places, in order."""

    def rows(self) -> Iterator[Sequence[Row]]:
        """Yield all entities in the order of their keys (`placed`), in batches."""
        for place, members in self.groups():
            yield [(place.to_bytes(PLACE_BYTES, "big") + key, body) for key, body in members]

    def at(self, places: Sequence[int]) -> Iterator[Group]:
        """Yield (place, entities in key order) for some places, in their order."""
        return ((place, self.members(place)) for place in places)

    @abstractmethod
    def touched(self, start: int) -> Mapping[bytes, bytes]:
        """The entities of the log's records from an offset to the epoch's, and maybe others: key (`placed`) to stored
        form.

        The stored form is empty if it has to be read.
        """
