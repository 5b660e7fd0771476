"""The observations of an import between its two passes, in a temporary file without a name.

Building observations takes most of an import's time. So the first pass stores what it built, and the second pass reads
that instead of the files. A spool that would exceed BYTES_MAX, or for which there is no space, is given up: then the
second pass reads the files again.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from refold.avro.definition import TypeDefinition
from refold.reducers.cells import new_tuple
from refold.streams.writer_types import EncodedObservation

BATCH = 1000
BATCH_BYTES = 8 << 20
BYTES_MAX = 1 << 30

_Stored: TypeAlias = tuple[str, bytes, int, bytes, Mapping[bytes, bytes]]
"""An observation's entity, its id, the number of its definition, its framed bytes, and the contents that it names."""

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[_Stored]).decode


class ObservationSpool:
    """Checked observations in order. For one thread.

    Attributes:
        count: How many were put.
        is_whole: Whether it has all of them.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.count = 0
        self.is_whole = True
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ends: list[int] = []
        self._waiting: list[_Stored] = []
        self._waiting_bytes = 0
        self._numbers: dict[bytes, int] = {}
        self._definitions: list[TypeDefinition] = []
        self._file = tempfile.TemporaryFile(prefix="refold-import-", buffering=0)  # noqa: SIM115  # closed below
        weakref.finalize(self, self._file.close)

    def put(self, observation: EncodedObservation) -> None:
        """Add an observation."""
        self.count += 1
        if not self.is_whole:
            return
        entity, observation_id, definition, data, blobs = observation
        number = self._numbers.setdefault(definition.fingerprint, len(self._numbers))
        if number == len(self._definitions):
            self._definitions.append(definition)
        self._waiting.append((entity, observation_id, number, data, blobs))
        self._waiting_bytes += len(data) + sum(map(len, blobs.values())) if blobs else len(data)
        if len(self._waiting) >= BATCH or self._waiting_bytes >= BATCH_BYTES:
            self._write()

    def batches(self) -> Iterator[list[EncodedObservation]]:
        """Yield the observations in order. `is_whole` must be true."""
        definitions = self._definitions
        for batch in self._stored():
            yield [
                new_tuple(EncodedObservation, (entity, observation_id, definitions[number], data, blobs))
                for entity, observation_id, number, data, blobs in batch
            ]

    def _stored(self) -> Iterator[Sequence[_Stored]]:
        for begin, end in zip([0, *self._ends], self._ends, strict=False):
            yield _decode(os.pread(self._file.fileno(), end - begin, begin))
        yield self._waiting

    def _write(self) -> None:
        data = _encode(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        try:
            written = 0 if self._bytes + len(data) > self._bytes_max else self._file.write(data)
        except OSError:
            written = 0
        if written < len(data):  # no space
            self.is_whole = False
            self._file.truncate(0)
            return
        self._bytes += written
        self._ends.append(self._bytes)
