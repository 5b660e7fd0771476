"""Imports files of observations in two passes: nothing is written before every line has been checked.

1. `check`: collect the definitions in the files, wherever they are; build every observation, compare its id, and
   store it in a spool.
2. `record`: register the definitions in their order, and record the observations of the spool (spool.py) in the log.
If the second pass stops, a prefix of the files is in the log; importing again adds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError
from refold.avro.json_line import check_keys
from refold.streams.client import Log
from refold.streams.exchange.contents import needed
from refold.streams.exchange.files import ExchangeFile, FileObservation
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Intake
from refold.streams.exchange.json_lines import Progress
from refold.streams.exchange.spool import BYTES_MAX, ObservationSpool
from refold.streams.writer_types import EncodedObservation

IsStored: TypeAlias = Callable[[bytes], bool]
"""Returns whether a log's store has a content, by its SHA-256."""
Put: TypeAlias = Callable[[EncodedObservation], None]


class IncomingFiles:
    """Files that are imported into a log."""

    def __init__(
        self, files: Sequence[ExchangeFile], vocabulary: TypeCatalog, spool_bytes_max: int = BYTES_MAX
    ) -> None:
        """Begin an import.

        Args:
            files: The files.
            vocabulary: The types that the files may use; it adopts those in the files.
            spool_bytes_max: A spool that would exceed this size is given up.
        """
        self._files = files
        self._spool = ObservationSpool(spool_bytes_max)
        self._vocabulary = vocabulary
        self._new: list[TypeDefinition] = []
        self._codecs: dict[bytes, ObservationCodec] = {}

    def check(self, is_stored: IsStored, progress: Sequence[Progress | None] = ()) -> int:
        """Run pass 1; returns the number of observations. One `progress` per file; InputError names file and line."""
        carried = [each for file in self._files for each in file.definitions()]
        self._new = self._vocabulary.adopt(carried)
        self._pass_over(self._spool.put, is_stored, progress)
        return self._spool.count

    def record(self, log: Log, intake: Intake) -> None:
        """Run pass 2; durable on return.

        Args:
            log: A log that is open for writing.
            intake: Records the observations in it, and counts them.

        Raises:
            InputError: The spool was given up, and a line is invalid: its file changed since `check`.
        """
        for definition in self._new:
            log.register(definition)
        if self._spool.is_whole:
            intake.take_all(self._spool)
        else:
            self._pass_over(intake.take, lambda digest: log.port.blobs.get(digest) is not None)
        intake.flush()

    def _pass_over(self, put: Put, is_stored: IsStored, progress: Sequence[Progress | None] = ()) -> None:
        for number, file in enumerate(self._files):
            for given in file.lines(progress[number] if progress else None):
                put(self._built(given, is_stored))

    def _built(self, given: FileObservation, is_stored: IsStored) -> EncodedObservation:
        blobs: dict[bytes, bytes] = {}
        try:
            observation, observation_id, definition = self._vocabulary.read(check_keys(given.line), blobs)
            data = self._codec_of(definition).encode_observation(observation)
            contents = needed(observation, blobs, is_stored)
            return EncodedObservation(observation.entity, observation_id, definition, data, contents)
        except InputError as error:
            raise InputError(f"{given.place}: {error}") from None

    def _codec_of(self, definition: TypeDefinition) -> ObservationCodec:
        found = self._codecs.get(definition.fingerprint)
        if found is None:
            found = self._codecs[definition.fingerprint] = ObservationCodec(definition)
        return found
