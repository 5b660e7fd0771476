"""What sealing needs of a table: each partition as it stands at one point, whatever is folded meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from refold.streams.snapshots.chunk import Group, Member
from refold.streams.snapshots.closed_entities import Closing
from refold.streams.snapshots.manifest import Epoch


@dataclass(frozen=True, slots=True)
class EpochState:
    """What is known of a partition's table at an epoch besides its entities; see Manifest.

    aside: every observation of the partition that is set aside, as the table knows it.
    """

    epoch: Epoch
    entities: int
    observations: int
    recorded_at: int
    deadletters: int
    types: Mapping[str, bytes]
    closing: Mapping[str, Closing]
    aside: tuple[int, ...] = ()


class TableView(ABC):
    """A partition's table as it was at an epoch, whatever is folded meanwhile."""

    standing: EpochState

    @abstractmethod
    def members(self, place: int) -> list[Member]:
        """The entities of a place in key order."""

    @abstractmethod
    def groups(self) -> Iterator[Group]:
        """(place, entities in key order) of all, by place."""

    def at(self, places: Sequence[int]) -> Iterator[Group]:
        """(place, entities in key order) of some places, in their order."""
        return ((place, self.members(place)) for place in places)

    @abstractmethod
    def touched(self, start: int) -> Mapping[bytes, bytes]:
        """The entities of the log's records from an offset to the epoch's, and maybe more, each `placed` and as it is
        stored.

        Empty in place of what is stored where that has to be read.
        """
