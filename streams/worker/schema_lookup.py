"""Look up a schema id that a record names and this process does not know.

1. Read `.schemas` to its end.
2. If the id is a pending version's, hold the record until that version takes effect.
3. If the log is bound to a Schema Registry, ask the registry.
"""

from __future__ import annotations

from refold.avro.errors import RegistryUnavailable, Unanswered
from refold.avro.registry import TypeVersion
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.registry.ids import UnknownId
from refold.streams.worker.start import Starter
from refold.streams.worker.verdicts import MissingSchema

_REASONS = {UnknownId.MISSING: "no_such_id", UnknownId.FOREIGN: "foreign_schema"}


class SchemaLookup:
    """Looks unknown ids up, for the deciders of one worker (verdicts.Resolve)."""

    def __init__(self, log: KafkaLog, starter: Starter) -> None:
        """Create a look-up in a worker's log.

        Args:
            log: The log.
            starter: Reads the rest of `.schemas`, and activates what may be activated.
        """
        self._log = log
        self._starter = starter

    def __call__(self, wire_id: int) -> MissingSchema | None:
        """Look an id up.

        Returns:
            None where the log holds the schema by now; else why it does not.

        Raises:
            RegistryUnavailable: Nothing is known of it yet; ask again later.
        """
        try:
            self._starter.refresh_and_activate()
        except Unanswered as error:  # as if the registry did not answer: nothing is known of the schema
            raise RegistryUnavailable(str(error)) from error
        if self._log.registry.writer(b"\0" + wire_id.to_bytes(4, "big")) is not None:
            return None
        pending = self._log.registry.pending_writer(wire_id)
        if pending is not None:
            return self._of_pending(pending)
        unknown = self._log.unknown_id(wire_id)
        if unknown is None:
            return MissingSchema("no_such_id", f"the log has no schema with id {wire_id}")
        return MissingSchema(_REASONS[unknown], f"the log has no schema with id {wire_id}; {unknown.value}")

    def _of_pending(self, version: TypeVersion) -> MissingSchema:
        """A record by a pending version is held; if only a missing right keeps it from effect, the record waits."""
        activation_blocker = self._log.schemas.activation_blocker(version)
        if activation_blocker is None:
            raise RegistryUnavailable(
                f"the version of {version.definition.name} at offset {version.offset} of `.schemas` is not activated: "
                f"{self._starter.refused or 'another worker does it'}"
            )
        name = version.definition.name
        return MissingSchema("held", f"{name} is held: the version it was written by is pending: {activation_blocker}")
