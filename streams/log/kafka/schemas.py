"""`.schemas`: every type definition of a log, in order, for everyone the same.

A record's value is the definition's JSON text. Its headers: `refold-id-space`, `embedded` or `registry`, which says by
what ids the log's bytes name schemas, and is the first record's for ever; `refold-ids`, in the second case, what the
Schema Registry gave: deterministic CBOR {change, observation, state}. registered_at is the running maximum of append
times.

Everyone who reads decides alike what each record is, from those before it:
a definition, where it may follow them (Registry.check);
a hole, where it repeats one, is refused given them, is of another id space than the first, or is no record of refold's
(it has no `refold-id-space`). A hole has an offset, and nothing else. So has a place where no record is given out.
What is refold's and cannot be read is an error: a newer release may have written it, and answers would differ.

Registering, by any number of processes at once:
1. read to the end; if the definition is there, nothing is to be done; if it may not follow, it is refused;
2. have the Schema Registry give ids, where the log is bound to one;
3. write the record and wait until it is durable: now it has an offset;
4. read on past that offset. Another may have come between: then ours is a hole, either because the same was registered,
   which is as good, or because ours may not follow, which is refused now.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import cbor2

from refold.avro.canonical import encode
from refold.avro.definition import TypeDefinition, document_text, parse
from refold.avro.errors import CorruptionError, InputError, SchemaError
from refold.avro.registry import Registry, WireIds
from refold.streams.log.kafka.offsets import Offsets, Place
from refold.streams.log.kafka.producer import Outgoing, Sent
from refold.streams.log.kafka.reading import Raw, Reading

ID_SPACE, IDS = "refold-id-space", "refold-ids"
EMBEDDED, BOUND = b"embedded", b"registry"

GiveIds = Callable[[TypeDefinition], WireIds]
"""Registers a definition's schemas with a Schema Registry."""


class Schemas:
    """Follows a log's `.schemas` into a registry. give_ids: where this process has a Schema Registry."""

    def __init__(
        self, place: Place, registry: Registry, offsets: Offsets, reading: Reading,
        give_ids: GiveIds | None = None,
    ) -> None:  # fmt: skip
        self._place = place
        self._registry = registry
        self._offsets = offsets
        self._reading = reading
        self._give_ids = give_ids
        self._time = 0
        self._space: bytes | None = None
        self._stopped = False

    @property
    def is_bound(self) -> bool:
        """Whether the log names schemas by a Schema Registry's ids."""
        return self._space == BOUND

    def stop(self) -> None:
        """From now on `read_on` takes up nothing."""
        self._stopped = True

    def read_on(self) -> None:
        """Take up what was registered by now."""
        if self._stopped:
            return
        end = self._offsets.ends([self._place])[self._place]
        for raw in self._reading.records(self._place, len(self._registry), end):
            self._skip_to(raw.offset)
            self._take(raw)
        self._skip_to(end)
        if self._give_ids is not None and self._space == EMBEDDED:
            raise InputError(
                f"{self._place.topic}: this log names schemas by ids of its own, and not by a Schema Registry's, since "
                "it was made; open it without REFOLD_SCHEMA_REGISTRY"
            )

    def register(self, definition: TypeDefinition, outgoing: Outgoing) -> None:
        """Make a definition part of the log, durable on return; SchemaError where evolution forbids it."""
        self.read_on()
        if self._registry.find(definition) is not None:
            return
        if self._give_ids is None and self._space == BOUND:
            raise InputError(
                f"{definition.name}: this log's schemas are registered with a Schema Registry; name it in "
                "REFOLD_SCHEMA_REGISTRY, to register this one"
            )
        self._registry.check(definition)
        ids = None if self._give_ids is None else self._give_ids(definition)
        if ids is not None:
            self._registry.check(definition, ids)
        offset = outgoing.write(schema_record(self._place, definition, ids))
        self._offsets.wait_past(
            self._place, offset, "somebody has a transaction open on this topic: end it, then repeat"
        )  # fmt: skip
        self.read_on()
        if self._registry.find(definition) is None:
            self._registry.check(definition, ids)
            raise SchemaError(
                f"{definition.name}: it was not registered, for the log's first definition came at the same time and "
                "is of another id space; open the log again"
            )

    def _skip_to(self, offset: int) -> None:
        while len(self._registry) < offset:
            self._registry.skip(self._time)

    def _take(self, raw: Raw) -> None:
        self._time = max(self._time, raw.timestamp)
        space = raw.header(ID_SPACE)
        if space is not None and self._space is None:
            self._space = space
        if space is None or space != self._space:
            self._registry.skip(self._time)
            return
        definition, ids = self._read(raw, space)
        if self._registry.find(definition) is not None or not self._may_follow(definition, ids):
            self._registry.skip(self._time)
            return
        self._registry.add(definition, self._time, ids)

    def _may_follow(self, definition: TypeDefinition, ids: WireIds | None) -> bool:
        try:
            self._registry.check(definition, ids)
        except SchemaError:
            return False
        return True

    def _read(self, raw: Raw, space: bytes) -> tuple[TypeDefinition, WireIds | None]:
        place = f"the definition at {self._place.topic} {raw.offset}"
        try:
            if space not in {EMBEDDED, BOUND}:
                raise ValueError(f"the id space {space!r:.40} is unknown")
            definition = parse(json.loads(raw.value or b""), place=place)
            return definition, WireIds(**cbor2.loads(raw.header(IDS) or b"")) if space == BOUND else None
        except (ValueError, TypeError, cbor2.CBORDecodeError) as error:
            raise CorruptionError(
                f"{place} cannot be read: {error}; was it written by a newer refold? Then use that one"
            ) from error


def schema_record(place: Place, definition: TypeDefinition, ids: WireIds | None) -> Sent:
    """A definition as it stands in `.schemas`."""
    headers: list[tuple[str, str | bytes | None]] = [(ID_SPACE, EMBEDDED if ids is None else BOUND)]
    if ids is not None:
        headers.append((IDS, encode(ids._asdict())))
    value = document_text(definition).encode()
    return Sent(place, None, value, headers, f"the definition of {definition.name}")
