"""Copies a log's contents from one store to another.

1. Expired contents are noted as expired in the target, so that a missing one is not taken for lost.
2. Each content that the target lacks is read, which checks its hash, and put. A damaged one is skipped and reported at
   the end; all others are copied.
The copy can be repeated: contents that were copied are skipped. To move a log in use: copy once, stop the recording
processes, copy again, and continue with the other store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from refold.avro.blob import EXPIRED
from refold.avro.errors import CorruptionError
from refold.streams.blobs.store import ContentStore

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class CopyResult:
    """The result of a copy: contents and bytes that were copied, that already existed, and that were noted as expired.

    Attributes:
        damaged: The reason why a content could not be copied, by SHA-256 in hex.
    """

    contents: int = 0
    bytes: int = 0
    there: int = 0
    expired: int = 0
    damaged: dict[str, str] = field(default_factory=dict)


def copy_contents(source: ContentStore, target: ContentStore, progress: Progress | None = None) -> CopyResult:
    """Copy the contents that the target lacks; durable on return.

    Args:
        source: where the contents are.
        target: where they go.
        progress: called with the number of further contents done, and their total.

    Returns:
        What was done.

    Raises:
        StorageError: A store failed; a repeated call copies the rest.
    """
    done = CopyResult()
    for digest in source.expired():
        if source.size(digest) is None and not target.has(digest):
            target.put(digest, EXPIRED)
            done.expired += 1
    stored = [*source.stored()]
    for each in stored:
        if target.size(each.digest) is not None:
            done.there += 1
        else:
            _copy(each.digest, source, target, done)
        if progress is not None:
            progress(1, len(stored))
    return done


def _copy(digest: bytes, source: ContentStore, target: ContentStore, done: CopyResult) -> None:
    try:
        content = source.get(digest)
    except CorruptionError as error:
        done.damaged[digest.hex()] = str(error)
        return
    if content is not None:  # None: it was removed meanwhile
        target.put(digest, content)
        done.contents += 1
        done.bytes += len(content)
