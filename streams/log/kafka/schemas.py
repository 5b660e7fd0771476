"""`.schemas`: every type definition of a log, in the same order for every reader.

A record's value is the definition's JSON text. Its headers: `refold-id-space`, `embedded` or `registry`, says which ids
the log's bytes use to name schemas; the first record decides it for ever. `refold-ids`, with `registry` only, has the
ids that the Schema Registry assigned: deterministic CBOR {change, observation, state}. registered_at is the running
maximum of append times.

Every reader derives from the records before it, with the same result, what each record is:
a definition, if it may follow them (Registry.check);
pending, if it is a new version with custom code of a type that has one in effect (activations.py): a hole, until it is
activated; it is registered at the activation's position;
a hole, if it repeats a definition, is refused after those before it, has another id space than the first definition,
cannot be read as a definition (readable_definition), or is set aside;
a decision, if it has the token of one (quarantine_records.py): at its position a definition is set aside, or restored;
an activation, if it has the token of one: at its position a pending definition takes effect, or the rule starts by
which definitions are pending.
A hole has an offset, and nothing else. An offset without a readable record is a hole too.
What cannot be read is a hole for every release: docs/FORMAT.md fixes what a definition may contain. A release that
extends this first announces it where only those with an administrator's rights write. A record without a definition is
counted (foreign_records.py), so nothing that a producer writes here stops a reader.

Registering, by any number of processes at once:
1. read to the end; if the definition exists, finish; if it may not follow, refuse it;
2. let the Schema Registry assign ids, if the log is bound to one;
3. write the record and wait until it is durable: now it has an offset;
4. read on past that offset. Another record may have been written in between: then ours is a hole. Either the same
   definition was registered, which is as good, or ours may no longer follow, and is refused now.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import cbor2

from refold.avro.canonical import encode
from refold.avro.definition import TypeDefinition, document_text, parse
from refold.avro.errors import Denied, InputError, SchemaError
from refold.avro.quarantine import Ruling
from refold.avro.registry import Registry, TypeVersion, WireIds
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.activations import HEADER as ACTIVATED
from refold.streams.log.kafka.activations import Activation, Activator
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.quarantine_records import HEADER as QUARANTINE
from refold.streams.log.kafka.quarantine_records import Decision
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord

ID_SPACE, IDS = "refold-id-space", "refold-ids"
EMBEDDED, BOUND = b"embedded", b"registry"

VALUE_BYTES_MAX = 1 << 20
DEPTH_MAX = 64
IDS_BYTES_MAX = 64
DIGITS_MAX = 32
ACTIVATION_WAIT_S = 10.0
ACTIVATION_POLL_S = 0.1
_WIRE_ID_END = 1 << 32
# An unterminated text extends to the end of the value, so no byte is scanned twice.
_TEXT_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)

_log = logging.getLogger(__name__)

GiveIds = Callable[[TypeDefinition], WireIds]
"""Registers a definition's schemas with a Schema Registry."""


class Decisions(Protocol):
    """Looks up decisions in `.manifests` by token; None if there is none."""

    def decision_of(self, token: bytes) -> Decision | Ruling | None:
        """Return the decision to set something aside, or to restore it (quarantine_records.py)."""

    def activated(self, token: bytes) -> Activation | None:
        """Return the activation (activations.py)."""


class SchemaFollower:
    """Reads a log's `.schemas` into a registry.

    Args:
        give_ids: Registers a definition in the Schema Registry, and returns its ids; None without a Schema Registry.
    """

    def __init__(
        self, place: KafkaPartition, registry: Registry, offsets: Offsets, reading: LogReaders,
        foreign: ForeignRecords, decisions: Decisions, activator: Activator, give_ids: GiveIds | None = None,
    ) -> None:  # fmt: skip
        self._place = place
        self._foreign = foreign
        self._decisions = decisions
        self._has_begun = False
        self._activator = activator
        self._tokens: set[bytes] = set()
        self._registry = registry
        self._offsets = offsets
        self._reading = reading
        self._give_ids = give_ids
        self._time = 0
        self._space: bytes | None = None
        self._stopped = False

    @property
    def is_bound(self) -> bool:
        """Whether the log names schemas with a Schema Registry's ids."""
        return self._space == BOUND

    @property
    def has_begun(self) -> bool:
        """Whether new versions with code are pending until they are activated (activations.py)."""
        return self._has_begun

    def stop(self) -> None:
        """Make every later `read_new` do nothing."""
        self._stopped = True

    def read_new(self) -> None:
        """Register the definitions that were written since the last call.

        Raises:
            InputError: this process has a Schema Registry, but the log uses its own schema ids.
        """
        if self._stopped:
            return
        end = self._offsets.ends([self._place])[self._place]
        for raw in self._reading.records(self._place, len(self._registry), end):
            self._skip_to(raw.offset)
            self._apply(raw)
        self._skip_to(end)
        if self._give_ids is not None and self._space == EMBEDDED:
            raise InputError(
                f"{self._place.topic}: this log has used its own schema ids, not those of a Schema Registry, since "
                "it was created; open it without REFOLD_SCHEMA_REGISTRY"
            )

    def register(self, definition: TypeDefinition, outgoing: LogProducer) -> None:
        """Add a definition to the log; durable on return. Idempotent.

        Raises:
            SchemaError: evolution forbids it, it is set aside, or nobody activates it.
            InputError: the log is bound to a Schema Registry, and this process has none.
        """
        self.read_new()
        if self._registry.find(definition) is not None:
            return
        if self._give_ids is None and self._space == BOUND:
            raise InputError(
                f"{definition.name}: this log's schemas are registered with a Schema Registry; name it in "
                "REFOLD_SCHEMA_REGISTRY, to register this one"
            )
        if self._registry.is_aside(definition):
            raise SchemaError(
                f"{definition.name}: this definition was set aside by an administrator, who can undo that: "
                "refold quarantine list"
            )
        if self._registry.is_pending(definition):
            self._have_activated(definition)
            return
        _check_bounds(document_text(definition).encode(), definition.name)
        self._check(definition)
        ids = None if self._give_ids is None else self._give_ids(definition)
        if ids is not None:
            self._check(definition, ids)
        offset = outgoing.write(schema_record(self._place, definition, ids))
        self._offsets.wait_past(
            self._place, offset, "somebody has a transaction open on this topic: end it, then repeat"
        )  # fmt: skip
        self.read_new()
        if self._registry.is_pending(definition):
            self._have_activated(definition)
            return
        if self._registry.find(definition) is None:
            self._check(definition, ids)
            raise SchemaError(
                f"{definition.name}: it was not registered: the log's first definition was registered at the same "
                "time and uses another id space; open the log again"
            )

    def begin(self) -> None:
        """Start the rule by which new versions with code are pending. Idempotent.

        Raises:
            Denied: this process may not write `.manifests`.
        """
        self.read_new()
        if not self._has_begun:
            self._activator.begin()
            self.read_new()

    def activate(self) -> Sequence[TypeVersion]:
        """Activate the pending versions whose code is registered in this process, and return them.

        Raises:
            Denied: this process may not write `.manifests`.
        """
        found = self._activator.candidates()
        for version in found:
            self._activator.activate(version)
        if found:
            self.read_new()
        return found

    def activation_blocker(self, version: TypeVersion) -> SchemaError | None:
        """Return why this process cannot activate a pending version; None if only the right to write may be missing."""
        return self._activator.activation_blocker(version)

    def _have_activated(self, definition: TypeDefinition) -> None:
        """Activate a pending definition, or wait until a worker has activated it.

        Raises:
            SchemaError: this process cannot activate it, or no process does within ACTIVATION_WAIT_S.
        """
        version = next(
            each for each in self._registry.pending() if each.definition.fingerprint == definition.fingerprint
        )
        activation_blocker = self._activator.activation_blocker(version)
        if activation_blocker is not None:
            raise SchemaError(
                f"{definition.name}: this version is pending and cannot be activated: {activation_blocker}"
            )
        with contextlib.suppress(Denied):
            self._activator.activate(version)
        deadline = Deadline(ACTIVATION_WAIT_S)
        self.read_new()
        while self._registry.is_pending(definition):
            if deadline.is_past:
                raise SchemaError(
                    f"{definition.name}: this version is at {self._place.topic} 0={version.offset}, and is pending: a "
                    "new version with custom code takes effect once a worker that has its code registered activates "
                    "it. Start the workers with that code (--reducers, REFOLD_REDUCERS), then repeat"
                )
            time.sleep(ACTIVATION_POLL_S)
            self.read_new()

    def _check(self, definition: TypeDefinition, ids: WireIds | None = None) -> None:
        """As Registry.check, and the error names the conflicting definition and what an administrator can do."""
        try:
            self._registry.check(definition, ids)
        except SchemaError as error:
            hindering = next(
                (each for each in self._registry if self._registry.conflicts_with(each, definition, ids)), None
            )
            if hindering is None:
                raise
            raise SchemaError(
                f"{error}; the definition at {self._place.topic} 0={hindering.offset} prevents it. If that "
                f"definition is wrong and no observation needs it: refold quarantine add 0={hindering.offset}"
            ) from error

    def _skip_to(self, offset: int) -> None:
        while len(self._registry) < offset:
            self._registry.skip(self._time)

    def _apply(self, raw: RawRecord) -> None:
        self._time = max(self._time, raw.timestamp)
        token = raw.header(QUARANTINE)
        if token is not None:
            self._decide(raw, token)
            return
        token = raw.header(ACTIVATED)
        if token is not None:
            self._activate(raw, token)
            return
        try:
            space, definition, ids = readable_definition(raw)
        except SchemaError as error:
            _log.debug("%s %d is no definition, and is passed over: %s", self._place.topic, raw.offset, error)
            self._foreign.count_skipped(self._place, raw.offset)
            self._registry.skip(self._time)
            return
        registry = self._registry
        is_known = (
            registry.find(definition) is not None or registry.is_aside(definition) or registry.is_pending(definition)
        )
        if is_known or self._space not in {None, space} or not self._may_follow(definition, ids):
            self._registry.skip(self._time)
            return
        self._space = space
        if self._has_begun and definition.has_code and registry.in_effect(definition.name):
            registry.suspend(definition, self._time, ids)
        else:
            registry.add(definition, self._time, ids)

    def _decide(self, raw: RawRecord, token: bytes) -> None:
        """Apply an administrator's decision at this record; an unknown or repeated token is a hole."""
        decision = None if token in self._tokens else self._decisions.decision_of(token)
        if isinstance(decision, Ruling):
            self._tokens.add(token)
            self._registry.rulings.take(decision, len(self._registry))
            self._registry.skip(self._time)
            return
        version = self._registry.at(decision.offset) if decision and decision.offset < len(self._registry) else None
        if decision is None or version is None:
            self._foreign.count_skipped(self._place, raw.offset)
            self._registry.skip(self._time)
            return
        self._tokens.add(token)
        (self._registry.restore if decision.is_lifted else self._registry.set_aside)(version, self._time)

    def _activate(self, raw: RawRecord, token: bytes) -> None:
        """Apply an activation at this record; an unknown or repeated token is a hole."""
        activation = None if token in self._tokens else self._decisions.activated(token)
        if activation is None:
            self._foreign.count_skipped(self._place, raw.offset)
            self._registry.skip(self._time)
            return
        self._tokens.add(token)
        if activation.offset is None:
            self._has_begun = True
            self._registry.skip(self._time)
        else:
            self._registry.activate(activation.offset, self._time)

    def _may_follow(self, definition: TypeDefinition, ids: WireIds | None) -> bool:
        try:
            self._registry.check(definition, ids)
        except SchemaError:
            return False
        return True


def readable_definition(raw: RawRecord) -> tuple[bytes, TypeDefinition, WireIds | None]:
    """Parse a record of `.schemas`: its id space, its definition and the definition's ids.

    The result depends on the record alone. Bounds on size and depth limit the stack, memory and time that a record can
    cost a reader.

    Raises:
        SchemaError: the record is not a definition.
    """
    space, value = raw.header(ID_SPACE), raw.value or b""
    if space not in {EMBEDDED, BOUND}:
        raise SchemaError(f"its id space is {space!r:.40}")
    ids = _ids(raw.header(IDS) or b"") if space == BOUND else None
    _check_bounds(value, "it")
    try:
        tree = json.loads(value.decode(), parse_constant=_refused, parse_int=_int)
        definition = parse(tree, place="it")
        document_text(definition).encode()  # fails on an unpaired surrogate
    except (MemoryError, RecursionError):  # caused by this process: no record within the bounds above causes them
        raise
    except Exception as error:  # whatever the parser raises on an odd value, the value is not a definition
        raise SchemaError(str(error) or type(error).__name__) from error
    return space, definition, ids


def _check_bounds(value: bytes, what: str) -> None:
    if len(value) > VALUE_BYTES_MAX:
        raise SchemaError(f"{what} has {len(value):,} bytes; a definition has at most {VALUE_BYTES_MAX:,}")
    depth = 0
    for found in _TEXT_OR_BRACKET.finditer(value):
        depth += (found[0] in b"[{") - (found[0] in b"]}")
        if depth > DEPTH_MAX:
            raise SchemaError(f"{what} nests deeper than {DEPTH_MAX} brackets")


def _ids(given: bytes) -> WireIds:
    """Return the ids in `refold-ids`. Exactly one byte string is valid for three numbers: their deterministic CBOR."""
    try:
        if len(given) <= IDS_BYTES_MAX:
            ids = WireIds(**cbor2.loads(given))
            if all(type(each) is int and 0 <= each < _WIRE_ID_END for each in ids) and encode(ids._asdict()) == given:
                return ids
    except Exception as error:  # cbor2 raises arbitrary exceptions on malformed bytes
        raise SchemaError(f"its {IDS} cannot be read: {error}") from error
    raise SchemaError(f"its {IDS} is not from a Schema Registry")


def _int(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def schema_record(place: KafkaPartition, definition: TypeDefinition, ids: WireIds | None) -> OutgoingRecord:
    """Return a definition as it is written to `.schemas`.

    Args:
        place: The topic's only partition.
        definition: The definition.
        ids: Its wire ids from a Schema Registry; None if the log has none.
    """
    headers: list[tuple[str, str | bytes | None]] = [(ID_SPACE, EMBEDDED if ids is None else BOUND)]
    if ids is not None:
        headers.append((IDS, encode(ids._asdict())))
    value = document_text(definition).encode()
    return OutgoingRecord(place, None, value, headers, f"the definition of {definition.name}")
