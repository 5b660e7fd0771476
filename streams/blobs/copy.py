"""Copying a log's contents from one store to another.

1. What expired is noted as expired in the target, so that nothing which is missing there is taken for lost.
2. Each content that the target does not have is read, which compares it with its hash, and put. One that is damaged is
   left out, and named in the end; all others are copied.
A process that ends in between is repeated: what was copied is passed over. So is what was copied while others still
recorded: copy once, end what records, copy once more, and go on with the other store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from refold.avro.blob import EXPIRED
from refold.avro.errors import CorruptionError
from refold.streams.blobs.store import ContentStore

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class ContentsCopied:
    """What a copy did: contents and bytes that were copied, that were there already, and that were noted as expired.

    damaged: by SHA-256 in hex, why a content could not be copied.
    """

    contents: int = 0
    bytes: int = 0
    there: int = 0
    expired: int = 0
    damaged: dict[str, str] = field(default_factory=dict)


def copy_contents(source: ContentStore, target: ContentStore, progress: Progress | None = None) -> ContentsCopied:
    """Copy what a store has and another one lacks; durable on return.

    Args:
        source: where the contents are.
        target: where they go.
        progress: is told how many more contents were done, and how many there are.

    Returns:
        What was done.

    Raises:
        StorageError: A store failed; once more does the rest.
    """
    done = ContentsCopied()
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


def _copy(digest: bytes, source: ContentStore, target: ContentStore, done: ContentsCopied) -> None:
    try:
        content = source.get(digest)
    except CorruptionError as error:
        done.damaged[digest.hex()] = str(error)
        return
    if content is not None:  # else it was removed meanwhile
        target.put(digest, content)
        done.contents += 1
        done.bytes += len(content)
