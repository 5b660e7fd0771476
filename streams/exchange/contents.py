"""The contents of an observation's Blobs, which are exported with it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

from refold.avro.blob import EXPIRED, references
from refold.avro.errors import CorruptionError, InputError
from refold.avro.observation import Observation
from refold.streams.log.port import LogReader


def exported_blobs(observation: Observation, log: LogReader, place: str) -> dict[str, str]:
    """Return an exported line's `blobs`.

    Args:
        observation: What is exported.
        log: The log that holds its contents.
        place: The record's place, for the error.

    Returns:
        Contents in base64 by their SHA-256 in hex. Empty if the observation names none.

    Raises:
        CorruptionError: A content is missing, and has not expired.
    """
    found: dict[str, str] = {}
    for blob in references(observation.patch.values(), log.blobs.get):
        content = content_or_expired(log, blob.hash)
        if content is None:
            raise CorruptionError(
                f"{place}: the content {blob.hash.hex()} of {observation.entity} is not in the store; "
                "put it back into blobs/, or export up to a point before it with --at"
            )
        found[blob.hash.hex()] = base64.b64encode(content).decode()
    return found


def content_or_expired(log: LogReader, digest: bytes) -> bytes | None:
    """Return a content of a log; EXPIRED if it was removed because it had expired, None if it is missing."""
    content = log.blobs.get(digest)
    return EXPIRED if content is None and log.blobs.has_expired(digest) else content


def needed(
    observation: Observation, given: Mapping[bytes, bytes], is_stored: Callable[[bytes], bool]
) -> dict[bytes, bytes]:
    """Return the given contents that an observation names.

    Args:
        observation: What is imported.
        given: The contents that came with it, by SHA-256.
        is_stored: Whether the log's store already has a content.

    Raises:
        InputError: A content is in neither of the two.
    """
    found: dict[bytes, bytes] = {}
    for blob in references(observation.patch.values(), given.get):
        content = given.get(blob.hash)
        if content is None:
            if not is_stored(blob.hash):
                raise InputError(
                    f"the content {blob.hash.hex()} is neither among the line's blobs nor in the log; "
                    "export again from the log that holds it"
                )
        else:
            found[blob.hash] = content
    return found
