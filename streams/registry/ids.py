"""Wire ids from a Confluent-compatible Schema Registry, over confluent-kafka's own client.

Registering a definition:
1. check whether each of its three schemas is compatible with those of its subject;
2. register them, incompatible ones first, to get the registry's message: a refusal then leaves nothing registered;
3. read the schema of each assigned id: a registry that confuses two schemas would mislead every reader.

A refusal is final, and so is the answer that an id is unassigned or belongs to another schema. Any other error is
RegistryUnavailable: the registry is down, faulty, or denies access, which says nothing about a schema.

The subjects of a type's schemas: TopicRecordNameStrategy, so a topic may hold many types.

<prefix>.observations-refold.observation.<type>
<prefix>.changes-refold.change.<type>
<prefix>.states-refold.state.<type>       the log has no such topic; the subject is for programs that publish states
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Self, TypeVar

from refold.avro.definition import TypeDefinition
from refold.avro.derive import TypeSchemas, schemas_of
from refold.avro.errors import InputError, RegistryUnavailable, SchemaError
from refold.avro.registry import WireIds
from refold.streams.registry.settings import ENVIRONMENT, USER_INFO_ENVIRONMENT, RegistrySettings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryError


def subjects_of(prefix: str, definition: TypeDefinition) -> TypeSchemas:
    """The subject of each of the type's schemas, in the log whose topics begin with `prefix`."""
    name = definition.name
    return TypeSchemas(
        observation=f"{prefix}.observations-refold.observation.{name}",
        change=f"{prefix}.changes-refold.change.{name}",
        state=f"{prefix}.states-refold.state.{name}",
    )


TIMEOUT_S = 5.0
RETRIES = 2
RETRY_WAIT_MS = 200
RETRY_WAIT_MAX_MS = 2_000
WIRE_ID_MAX = 2**31 - 1  # Java reads it as an int

# The registry's own error codes.
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA, _NO_LEVEL = 40401, 40402, 40403, 40408
_REFUSED = (409, 422)
_NOT_LET_IN = (401, 403)

Answer = TypeVar("Answer")


class UnknownId(Enum):
    """The registry's answer for an id that is not in the log."""

    MISSING = "the Schema Registry has no such id"
    FOREIGN = "the Schema Registry has it, and it is no type of this log"


class SchemaIds:
    """A Schema Registry. Thread-safe.

    Args:
        timeout_s: The timeout of one request.
        retries: The number of further attempts after errors that may be temporary, with growing delays.
    """

    def __init__(self, settings: RegistrySettings, *, timeout_s: float = TIMEOUT_S, retries: int = RETRIES) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise InputError(
                f"{ENVIRONMENT} names a Schema Registry, and its client is not installed ({error}): "
                "pip install 'refold[registry]'"
            ) from error
        options: dict[str, object] = {
            "url": ",".join(settings.urls),
            "timeout": timeout_s,
            "max.retries": retries,
            "retries.wait.ms": RETRY_WAIT_MS,
            "retries.max.wait.ms": RETRY_WAIT_MAX_MS,
        }
        if settings.user_info is not None:
            options["basic.auth.user.info"] = settings.user_info
        self._settings = settings
        try:
            self._client = SchemaRegistryClient({**options, **settings.tls})
        except (OSError, ValueError) as error:  # certificates and keys that cannot be read, or are none
            raise InputError(f"the Schema Registry's client refuses its settings: {error}; see {ENVIRONMENT}_SSL_*, "
                             "or schema.registry.ssl.* in the file") from None  # fmt: skip

    def register(self, prefix: str, definition: TypeDefinition) -> WireIds:
        """Register a definition's schemas for the log whose topics begin with `prefix`; return their ids. Idempotent.

        Raises:
            SchemaError: They are refused; nothing is registered then.
            RegistryUnavailable: The registry does not answer.
        """
        self._client.clear_caches()
        schemas, subjects = schemas_of(definition), subjects_of(prefix, definition)
        fits = [self._fits(subject, text) for subject, text in zip(subjects, schemas, strict=True)]
        given: dict[str, int] = {}
        for kind in sorted(TypeSchemas._fields, key=lambda kind: fits[TypeSchemas._fields.index(kind)]):
            place = f"{definition.name}: its {kind} schema"
            given[kind] = self._register(place, getattr(subjects, kind), getattr(schemas, kind))
        return WireIds(**given)

    def unknown(self, wire_id: int) -> UnknownId:
        """Look up an id that is not in `.schemas`, read to its end.

        Raises:
            RegistryUnavailable: The registry does not answer.
        """
        self._client.clear_caches()
        held = self._ask(lambda: self._client.get_schema(wire_id), unless=(_NO_SCHEMA,))
        return UnknownId.MISSING if held is None else UnknownId.FOREIGN

    def level(self) -> str:
        """Return the registry's compatibility level, to check access. Raises RegistryUnavailable, which says why it
        fails.
        """
        return str(self._ask(self._client.get_compatibility))

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fits(self, subject: str, text: str) -> bool:
        """Whether the subject accepts the schema. If the registry cannot tell, True: registering will tell."""
        from confluent_kafka.schema_registry import Schema

        def ask() -> bool:
            return bool(self._client.test_compatibility_all_versions(subject, Schema(text, "AVRO")))

        try:
            found = self._ask(ask, unless=(_NO_SUBJECT, _NO_VERSION), refusable=True)
        except _Refusal:
            return False
        return found is not False

    def _register(self, place: str, subject: str, text: str) -> int:
        from confluent_kafka.schema_registry import Schema

        try:
            wire_id = self._ask(lambda: self._client.register_schema(subject, Schema(text, "AVRO")), refusable=True)
        except _Refusal as refusal:
            raise SchemaError(
                f"{place} is refused by the Schema Registry under the subject {subject}, with the compatibility level "
                f"{self._level(subject)}: {refusal}. Nothing is registered. Change the definition so that it fits "
                "those before it, or let the subject's level allow it (docs/REGISTRY.md)"
            ) from None
        if wire_id is None or not 0 <= wire_id <= WIRE_ID_MAX:
            raise SchemaError(f"{place} got the id {wire_id} from the Schema Registry, which a message cannot carry")
        held = self._ask(lambda: self._client.get_schema(wire_id))
        if held is None or not _reads_alike(held.schema_str or "", text):
            raise SchemaError(
                f"{place} got the id {wire_id} from the Schema Registry, under which another schema is registered: "
                "readers "
                "would misread it. Does the registry treat schemas as equal when only the order of fields differs? "
                "Let it compare them as they are"
            )
        return wire_id

    def _level(self, subject: str) -> str:
        """The compatibility level of a subject, for a message: its own, or else the registry's."""
        try:
            own = self._ask(lambda: self._client.get_compatibility(subject), unless=(_NO_SUBJECT, _NO_LEVEL))
            return own or str(self._ask(self._client.get_compatibility))
        except RegistryUnavailable:
            return "not known"

    def _ask(
        self, question: Callable[[], Answer], *, unless: tuple[int, ...] = (), refusable: bool = False
    ) -> Answer | None:
        """Return the answer; None for one of the registry's 404 codes in `unless`. Raises _Refusal if `refusable`."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return question()
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in unless:
                return None
            if refusable and error.http_status_code in _REFUSED:
                raise _Refusal(" ".join(str(error.error_message).split())) from None
            raise RegistryUnavailable(self._trouble(error)) from None
        except Exception as error:  # whatever keeps the client from an answer: the network's errors, TLS's, no JSON
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise RegistryUnavailable(
                f"the Schema Registry at {self._settings} gives no answer ({reason}); no record is decided meanwhile. "
                f"Start it, or correct {ENVIRONMENT}"
            ) from None

    def _trouble(self, error: SchemaRegistryError) -> str:
        reason = f"the Schema Registry at {self._settings} answers {error.http_status_code}"
        if error.http_status_code in _NOT_LET_IN:
            return f"{reason}: it does not let this user in; correct {USER_INFO_ENVIRONMENT} (user:password)"
        if error.http_status_code == 404:
            return f"{reason}, as no Schema Registry does; correct the path in {ENVIRONMENT}"
        return f"{reason}; nothing is decided meanwhile. Its own log says what it lacks"


class _Refusal(Exception):
    """The registry refused a schema; its message."""


def _reads_alike(held: str, mine: str) -> bool:
    """Whether two schemas read the same bytes alike: equal names, types and order. Registries may change the rest."""
    import fastavro

    form = fastavro.schema.to_parsing_canonical_form
    wanted = form(json.loads(mine))
    try:
        return bool(form(json.loads(held)) == wanted)
    except Exception:  # an invalid schema reads nothing
        return False
