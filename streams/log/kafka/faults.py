"""What Kafka's client says, as refold's own errors."""

from __future__ import annotations

from collections.abc import Set

from confluent_kafka import KafkaError, KafkaException

from refold.avro.errors import CorruptionError, Denied, InputError, StorageError, Unanswered
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, VARIABLES

# Kafka's client goes on by itself after these: the broker is not there, or not yet the one to ask.
_PASSING = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.BROKER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR, KafkaError.NOT_CONTROLLER, KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.UNKNOWN_TOPIC_ID, KafkaError._MAX_POLL_EXCEEDED,
})  # fmt: skip
_DENIED = frozenset({
    KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError._SSL,
})  # fmt: skip

_UNLISTED = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
})  # fmt: skip

_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
# What a batch is that cannot be unpacked.
_UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
SILENT = "nothing is given out from here on, though what comes after it is: the length of a record may be damaged"
"""What is said of a batch in which the client finds neither a record nor an error (confluentinc/librdkafka#5581)."""
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def error_of(failed: KafkaException | KafkaError) -> KafkaError | None:
    """Kafka's own error in what the client raised."""
    if isinstance(failed, KafkaError):
        return failed
    first = failed.args[0] if failed.args else None
    return first if isinstance(first, KafkaError) else None


def is_passing(error: KafkaError) -> bool:
    """Whether asking again may go well."""
    return error.code() in _PASSING


def is_denied(error: KafkaError) -> bool:
    """Whether the broker does not let this client do it."""
    return error.code() in _DENIED


def may_pass(failed: KafkaException, other: Set[int]) -> bool:
    """Whether asking again may go well: after what passes anyway, and after other codes, where whoever asks waits for
    what they say."""
    error = error_of(failed)
    return error is not None and (is_passing(error) or error.code() in other)


def is_unlisted(error: KafkaError) -> bool:
    """Whether the broker knows who asks, and an access list lacks something."""
    return error.code() in _UNLISTED


def is_lasting(error: KafkaError, ending: Set[int]) -> bool:
    """Whether a client cannot go on from what it met: codes that end it, and those that end every client."""
    return error.fatal() or is_denied(error) or error.code() in ending


def is_unreadable(error: KafkaError) -> bool:
    """Whether a batch that came cannot be read: the consumer goes on fetching it, and never gets past it."""
    return error.code() in _UNREADABLE


def raise_lasting(error: KafkaError, where: str, start: int, needs: str) -> None:
    """Raise what a consumer met that was told to read a partition from an offset on, unless waiting mends it.

    CorruptionError where the records are gone, else StorageError.
    """
    if error.code() in _OUT_OF_RANGE:
        raise CorruptionError(
            f"{where}: the records from offset {start} on are missing; they were deleted on the broker, or "
            "it lost them: restore the brokers' data"
        )
    # Who is told what to read is in no group.
    if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and is_lasting(error, _GONE):
        raise storage_error(f"{where} cannot be read", error, needs=needs)


def text_of(failed: Exception | KafkaError) -> str:
    """What Kafka says, without its client's wrapping."""
    error = error_of(failed) if isinstance(failed, KafkaException | KafkaError) else None
    if error is None:
        return str(failed)
    said = error.str() or ""
    # Of some answers it says only which request they are to.
    return f"{said.rstrip()} {error.name()}" if said.endswith(": ") else (said or error.name())


def storage_error(doing: str, failed: KafkaException | KafkaError, last: str = "", needs: str = "") -> StorageError:
    """What could not be done and why; `last` is what the client last heard of its brokers, `needs` what is said where
    an access list lacks something (Clients.lacks). Unanswered where waiting may mend it."""
    error = error_of(failed)
    why = text_of(failed)
    if error is not None and needs and is_unlisted(error):
        return Denied(f"{doing}: {why}: {needs}")
    if error is not None and is_denied(error):
        return StorageError(f"{doing}: {why}; see the settings in the file that {CONFIG_ENVIRONMENT} names, and the "
                            "rights of that user on the broker")  # fmt: skip
    heard = f" ({last})" if last and last not in why else ""
    kind = Unanswered if error is not None and is_passing(error) else StorageError
    return kind(f"{doing}: {why}{heard}")


def settings_error(failed: Exception) -> InputError:
    """The client refused its settings."""
    return InputError(f"Kafka's client refuses its settings: {text_of(failed)}; see the file that "
                      f"{CONFIG_ENVIRONMENT} names, and {VARIABLES}*")  # fmt: skip


def closed_error(url: str) -> StorageError:
    """The log was closed by this process."""
    return StorageError(f"{url}: the log is closed")
