"""What verify found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from refold.avro.errors import StorageError
from refold.streams.cut import Cut
from refold.streams.log.port import Foreign, Mismatch, SetAside

MISMATCHES_MAX = 1000


@dataclass(slots=True)
class VerifyReport:
    """The outcome: the root of the replay (hex), what was compared, and at most MISMATCHES_MAX mismatches.

    unchecked: what could not be looked at, and what to do about it. foreign: records in the log's topics that refold
    did not write, which every reader passes over: no mismatches. set_aside: damaged ones that an
    administrator ruled on. passed_over: those in batches that cannot be read and that nobody needs.
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
        """Whether all that was looked at is as it should be."""
        return not self.mismatches

    def add(self, found: Iterator[Mismatch]) -> None:
        """Take up mismatches; a storage error ends this part of the check as one more."""
        try:
            for each in found:
                if len(self.mismatches) >= MISMATCHES_MAX:
                    return
                self.mismatches.append(each)
        except StorageError as error:
            self.mismatches.append(Mismatch("storage", str(error)))
