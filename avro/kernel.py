"""The native kernel, where there is one to use: refold_kernel, a distribution of its own (kernel/).

It gives the bytes that Python gives, and is never needed. It is used when it is installed, has this release's FORMAT,
and REFOLD_KERNEL is not 0.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from refold.avro.observation import Observation

FORMAT = 3
"""What the kernel's own FORMAT has to be: it changes with what crosses, and with the stored forms that it writes."""
SWITCH = "REFOLD_KERNEL"
MODULE = "refold_kernel"

NodeLayout = tuple[Any, ...]
"""What stands at one place of a schema: the name of its kind first, then what the kind needs (kernel/src/given.rs)."""
FieldLayout = tuple[str, str, int, int, NodeLayout, NodeLayout]
"""A field's first name, its reducer, the limit of append, how many bytes a value may have before it has to be a Blob,
and what stands in patches and in mutations, or null."""
EntityRecords = tuple[str, bytes | None, int, Sequence[Any]]
"""An entity's name, its stored state, the next offset of its partition's batch, and its records in log order."""
StoredRecords = tuple[str, bytes | None, Sequence[Any]]
"""An entity's name, its stored state, and its records in log order."""
Replayed = tuple[bytes | None, int]
"""An entity's new state, None where nothing is new, and how many of its records were."""
Folded = tuple[bytes, bytes, int, int, int]
"""An entity's new state, its framed change, its version before, how many steps it has, and how many of them late."""
FoldedBatch = tuple[list[Folded | tuple[()] | None], list[bytes], list[bytes], list[bytes], list[bytes]]
"""What became of each entity: None where it is left to Python, and () where nothing is new. Then the rows of the
timeline, the arrivals, the ids and the checkpoints, as keys and values in turn; ids are keys alone."""
ReadParts = tuple[str, int, int, tuple[str, str, str, str, int], tuple[bytes, ...], dict[str, Any], str, bytes]
"""An assert's entity, observed_at, priority, source, causes, patch, subject and id."""


class ObservationReader(Protocol):
    """Reads the observations of one type version."""

    def read(self, data: bytes) -> ReadParts | None:
        """The observation in framed bytes; None where Python decides what they are."""

    def is_canonical(self, patch: dict[str, Any]) -> bool:
        """Whether each value of a patch is canonical as it is, by its field's first name; False where Python looks."""

    def encode(self, observation: Observation) -> tuple[bytes, bytes] | None:
        """The framed bytes of a checked observation, and its id; None where Python writes it."""

    def id_of(self, data: bytes) -> bytes | None:
        """The id of the observation in framed bytes, which were made of a checked one; None where Python finds it."""


class RecordDecider(Protocol):
    """Decides the records of one partition as streams/worker/verdicts.py does."""

    def decide(self, raws: Iterable[Any], recorded_at: int) -> tuple[list[tuple[Any, ...] | None], int]:
        """What each record is, up to the first of an unusual form; the GIL is released meanwhile.

        Args:
            raws: The records as they were fetched: offset, timestamp, key, value, headers.
            recorded_at: The running maximum of the timestamps before them, in milliseconds.

        Returns:
            Of each record the parts of a `Record` where it is a plain observation, None where Python decides; and how
            many bytes the observations have.
        """


class TypeFolder(Protocol):
    """Folds entities of one type version."""

    fields_folded: int

    def fold(self, entities: Sequence[EntityRecords]) -> FoldedBatch:
        """Fold the records of some entities; the GIL is released meanwhile."""

    def replay(self, entities: Sequence[StoredRecords]) -> list[Replayed | None]:
        """As `fold`, onto the states alone; None where the entity is left to Python."""


Reader = ObservationReader
"""Under a name that no method of the kernel has."""


class Kernel(Protocol):
    """What the module offers. A frame is what framed messages begin with."""

    def panics(self) -> int:
        """How often it panicked in this process, each time leaving the work to Python. Any is a defect."""

    def ObservationReader(  # noqa: N802
        self, type_name: str, frame: bytes, fields: Sequence[FieldLayout]
    ) -> ObservationReader:
        """The reader of a type version."""

    def RecordDecider(  # noqa: N802
        self, readers: Sequence[Reader], partition: int, partitions: int
    ) -> RecordDecider:
        """What decides the records of a partition that these readers read."""

    def placed(self, entities: Sequence[str]) -> list[bytes]:
        """What the state of each entity is stored under: `placed` of streams/partition.py."""

    def TypeFolder(  # noqa: N802
        self, type_name: str, frame: bytes, fields: Sequence[FieldLayout], fingerprint: bytes, change_frame: bytes,
        offset: int,
    ) -> TypeFolder:  # fmt: skip
        """The folder of a type version, whose definition is at this offset of `.schemas`."""


class KernelStatus(NamedTuple):
    """The kernel to use, if there is one.

    text: which it is, or why there is none, in a few words. is_unusable: whether one is installed that cannot be used.
    """

    kernel: Kernel | None
    text: str
    is_unusable: bool = False


def find_kernel() -> KernelStatus:
    """The kernel to use, by the environment as it is now."""
    if os.environ.get(SWITCH, "") == "0":
        return KernelStatus(None, f"plain Python, for {SWITCH} is 0")
    return _installed()


@cache
def _installed() -> KernelStatus:
    try:
        found: Any = importlib.import_module(MODULE)
        version, format_number = str(found.__version__), found.FORMAT
    except ModuleNotFoundError as error:
        if error.name == MODULE:
            return KernelStatus(None, "plain Python, for refold-kernel is not installed")
        return _unusable(f"cannot be loaded: {error}")
    except (ImportError, AttributeError) as error:
        return _unusable(f"cannot be loaded: {error}")
    if format_number != FORMAT:
        return _unusable(f"{version} has format {format_number}, not {FORMAT}")
    return KernelStatus(found, f"kernel {version}")


def _unusable(problem: str) -> KernelStatus:
    return KernelStatus(None, f"plain Python, for refold-kernel {problem}", is_unusable=True)
