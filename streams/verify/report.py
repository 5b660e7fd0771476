"""The result of verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from refold.avro.errors import StorageError
from refold.streams.cut import Cut
from refold.streams.log.port import Foreign, Mismatch, SetAside

MISMATCHES_MAX = 1000


@dataclass(slots=True)
class VerifyReport:
    """The result: the root of the full fold (hex), the compared parts, and at most MISMATCHES_MAX mismatches.

    Attributes:
        unchecked: The parts that could not be checked, and what to do about it.
        foreign: The records in the log's topics that refold did not write, which every reader skips; not mismatches.
        set_aside: The damaged records that an administrator set aside.
        passed_over: The records in unreadable batches that are not required.
    """

    cut: Cut
    root: str = ""
    observations: int = 0
    entities: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    foreign: Sequence[Foreign] = ()
    set_aside: Sequence[SetAside] = ()
    passed_over: Sequence[SetAside] = ()

    @property
    def ok(self) -> bool:
        """Whether everything that was checked is right."""
        return not self.mismatches

    def add(self, found: Iterator[Mismatch]) -> None:
        """As `add_mismatches`."""
        add_mismatches(self.mismatches, found)


def add_mismatches(mismatches: list[Mismatch], found: Iterator[Mismatch]) -> None:
    """Add mismatches up to MISMATCHES_MAX; a storage error is added as one more and ends this part of the check."""
    try:
        for each in found:
            if len(mismatches) >= MISMATCHES_MAX:
                return
            mismatches.append(each)
    except StorageError as error:
        mismatches.append(Mismatch("storage", str(error)))
