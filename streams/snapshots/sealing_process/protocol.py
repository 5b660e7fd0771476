"""What a process that seals epochs (child.py) and the one that it seals them for (sealer.py) tell each other.

Over a channel (channel.py), where every question costs time: of what is always asked the answers are told at once.
1. The child hears (log id, partitions).
2. For each epoch it hears a `Begin`. Until it is done it asks: (name, arguments, left) of what the store or the view
   has. The answer is (True, what that gives), or (False, an `ErrorThere`) for what it raises.
3. What has many rows is begun by ("rows", (number, name, arguments)) with a number of the child's, and gone on with by
   ("more", (number,)); the answer to both is (rows, whether they were the last). `left` are numbers of which no more
   rows are wanted.
4. At the end it says DONE with what `Desk.done` takes, or FAILED with an `ErrorThere`: the one that it was answered
   with, or one of its own, with number 0.
5. Before an answer it may hear a `Begin` of another partition. It seals that epoch first, by 2 to 4; then it hears the
   answer, or one more `Begin`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from refold.streams.snapshots.table import EpochState

DONE, FAILED = "done", "failed"
PART_BYTES = 2 << 20
"""About so much goes at once, of rows asked for and of records appended; less than a channel's memory."""

Asked: TypeAlias = tuple[str, tuple[Any, ...], list[int]]
Answer: TypeAlias = tuple[bool, Any]
Told: TypeAlias = dict[str, tuple[tuple[Any, ...], Any]]


class Begin(NamedTuple):
    """An epoch to seal. told: what will be asked first, by name: the arguments and what they give."""

    standing: EpochState
    told: Told


class ErrorThere(NamedTuple):
    """An error of the other process. is_storage: a StorageError; is_damage: a CorruptionError, which is one too."""

    number: int
    text: str
    is_storage: bool = False
    is_damage: bool = False


class SealingFailed(Exception):
    """The process that seals cannot; the message says why."""
