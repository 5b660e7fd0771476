"""Translates errors of Kafka's client to refold's errors."""

from __future__ import annotations

from collections.abc import Set

from confluent_kafka import KafkaError, KafkaException

from refold.avro.errors import CorruptionError, Denied, InputError, StorageError, Unanswered
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, VARIABLES

# Kafka's client recovers from these: the broker is unavailable, or not yet the leader.
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

_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
# The errors of a batch that cannot be unpacked.
_UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
SILENT = "nothing is given out from here on, though what comes after it is: the length of a record may be damaged"
"""The reason for a batch in which the client finds neither a record nor an error (confluentinc/librdkafka#5581)."""
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def error_of(failed: KafkaException | KafkaError) -> KafkaError | None:
    """The Kafka error in an exception of the client."""
    if isinstance(failed, KafkaError):
        return failed
    first = failed.args[0] if failed.args else None
    return first if isinstance(first, KafkaError) else None


def is_passing(error: KafkaError) -> bool:
    """Whether a retry may succeed."""
    return error.code() in _PASSING


def is_denied(error: KafkaError) -> bool:
    """Whether the broker denied the operation."""
    return error.code() in _DENIED


def may_pass(failed: KafkaException, other: Set[int]) -> bool:
    """Whether a retry may succeed: after a temporary error, or one of the other codes that the caller waits for."""
    error = error_of(failed)
    return error is not None and (is_passing(error) or error.code() in other)


def is_unlisted(error: KafkaError) -> bool:
    """Whether the user is authenticated, but an access control entry is missing."""
    return error.code() in _UNLISTED


def is_lasting(error: KafkaError, ending: Set[int]) -> bool:
    """Whether a client cannot recover from an error.

    Args:
        ending: The codes that the client cannot recover from, in addition to those that are fatal for every client.
    """
    return error.fatal() or is_denied(error) or error.code() in ending


def is_unreadable(error: KafkaError) -> bool:
    """Whether a fetched batch cannot be read: the consumer fetches it again and again, and never gets past it."""
    return error.code() in _UNREADABLE


def raise_lasting(error: KafkaError, where: str, start: int, needs: str) -> None:
    """Raise the error of a consumer that reads a partition, unless it is temporary.

    Args:
        error: What the consumer reported.
        where: `TOPIC/PARTITION`.
        start: The offset that it reads from.
        needs: What the records are needed for, for the error.

    Raises:
        CorruptionError: The records are missing.
        StorageError: Any other lasting error.
    """
    if error.code() in _OUT_OF_RANGE:
        raise CorruptionError(
            f"{where}: the records from offset {start} on are missing; they were deleted on the broker, or "
            "it lost them: restore the brokers' data"
        )
    # A consumer with assigned partitions is in no group.
    if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and is_lasting(error, _NO_TOPIC):
        raise storage_error(f"{where} cannot be read", error, needs=needs)


def text_of(failed: Exception | KafkaError) -> str:
    """Kafka's message, without the client's prefix."""
    error = error_of(failed) if isinstance(failed, KafkaException | KafkaError) else None
    if error is None:
        return str(failed)
    text = error.str() or ""
    # For some responses the message only names the request.
    return f"{text.rstrip()} {error.name()}" if text.endswith(": ") else (text or error.name())


def storage_error(doing: str, failed: KafkaException | KafkaError, last: str = "", needs: str = "") -> StorageError:
    """Return the error for a failed operation.

    Args:
        last: The client's last error about its brokers.
        needs: The message for a missing access right (Clients.lacks). It is an Unanswered if waiting may help.
    """
    error = error_of(failed)
    why = text_of(failed)
    if error is not None and needs and is_unlisted(error):
        return Denied(f"{doing}: {why}: {needs}")
    if error is not None and is_denied(error):
        return StorageError(f"{doing}: {why}; see the settings in the file that {CONFIG_ENVIRONMENT} names, and the "
                            "rights of that user on the broker")  # fmt: skip
    last_error = f" ({last})" if last and last not in why else ""
    kind = Unanswered if error is not None and is_passing(error) else StorageError
    return kind(f"{doing}: {why}{last_error}")


def settings_error(failed: Exception) -> InputError:
    """The error for settings that the client refuses."""
    return InputError(f"Kafka's client refuses its settings: {text_of(failed)}; see the file that "
                      f"{CONFIG_ENVIRONMENT} names, and {VARIABLES}*")  # fmt: skip


def closed_error(url: str) -> StorageError:
    """The error for a log that this process closed."""
    return StorageError(f"{url}: the log is closed")
