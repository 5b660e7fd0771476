"""Creates Kafka clients with the settings that refold's guarantees need. Connection settings come from the caller.

The client's log messages go to the logger of this module.

`call_within` bounds calls of Kafka's client that may never return, whatever their timeout.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from refold.avro.errors import InputError
from refold.streams.log.kafka.access import Grant, denial_message
from refold.streams.log.kafka.faults import settings_error
from refold.streams.log.kafka.settings import Settings


def call_within(timeout_s: float, call: Callable[[], None]) -> None:
    """Make a call in a separate thread. Raises the call's error, or TimeoutError if it takes longer.

    Such a call cannot be ended: it keeps its thread and its client until it returns or the process ends.
    """
    answer: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as problem:  # raised again in the thread that waits
            answer.set_exception(problem)
        else:
            answer.set_result(None)

    Thread(target=run, name="refold-call", daemon=True).start()
    answer.result(timeout_s)


# Larger than a record with the largest inline value, a state, or a chunk of entities.
MESSAGE_BYTES_MAX = 8 << 20
READ_AHEAD_KB = 16 << 10

_COMMON = {
    # Reconnect to a broker within one second after it is back, not ten.
    "reconnect.backoff.max.ms": 1_000,
    # A hanging broker is abandoned, and another leader looked up, before the reader times out.
    "socket.timeout.ms": 20_000,
    # A client that lost all brokers, for example after a broker was fenced, starts again with the configured ones.
    # Otherwise it could never make another request.
    "metadata.recovery.strategy": "rebootstrap",
    # Otherwise each client keeps 0.25 MB of unused histograms for each broker.
    "enable.metrics.push": False,
}
_TRANSACTIONAL = {
    # Begun again, a transaction that sends its offsets waits for a broker that was forgotten until it times out
    # (confluentinc/librdkafka#5511; seen with 2.16). One that has nobody to ask fails likewise, and is made again.
    "metadata.recovery.strategy": "none",
}

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


class Clients:
    """Creates clients of one cluster. `last_error`: the last error about an unreachable broker. `refused`: the last
    authentication error, which waiting does not fix.
    """

    def __init__(self, config: Mapping[str, str], prefix: str) -> None:
        self._config = Settings(config)
        self._prefix = prefix
        self.last_error = ""
        self.refused: KafkaError | None = None

    @property
    def servers(self) -> str:
        """The configured brokers."""
        return self._config["bootstrap.servers"]

    @property
    def principal(self) -> str:
        """The principal of these clients, as far as the settings name it."""
        return self._config.principal

    def denial_message(self, grant: Grant) -> str:
        """The message for an operation that the brokers deny."""
        return denial_message(grant, self.principal, self.servers)

    def admin(self) -> AdminClient:
        """A client for topics and offsets."""
        with self._refusals():
            return AdminClient(self._common(), logger=_log)

    def producer(self, **more: Any) -> Producer:
        """Idempotent, acknowledged by all replicas in sync."""
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 5,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            # Retried until acknowledged or until this timeout: a rolling restart of the brokers is not a failure.
            "message.timeout.ms": 120_000,
        }
        common = self._common()
        with self._refusals():
            if "transaction.timeout.ms" in more:  # the client refuses a longer one than this
                limits = common["socket.timeout.ms"], more["transaction.timeout.ms"]
                settings["socket.timeout.ms"] = min(map(int, limits))
            if "transactional.id" in more:
                settings.update(_TRANSACTIONAL)
            return Producer({**common, **settings, **more}, logger=_log)

    def reader(self, **more: Any) -> Consumer:
        """A consumer with assigned partitions: it joins no group, commits nothing, and reads committed records only.

        The client requires a group.id; it is not used.
        """
        settings = {
            "group.id": f"refold.{self._prefix}.reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "queued.max.messages.kbytes": READ_AHEAD_KB,
            # The time to wait for the end of a partition.
            "fetch.wait.max.ms": 10,
            # Otherwise the client waits one second before it fetches again after its queue was full.
            "fetch.queue.backoff.ms": 5,
            "fetch.error.backoff.ms": 50,
        }
        with self._refusals():
            return Consumer({**self._common(), **settings, **more}, logger=_log)

    def _common(self) -> dict[str, Any]:
        return {**_COMMON, **self._config, "client.id": "refold", "error_cb": self._on_error}

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error.str() or error.name()
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
            self.refused = error

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (KafkaException, ValueError, TypeError) as error:
            # Not chained: the client's message about a setting may contain its value.
            raise InputError(self._config.hidden(str(settings_error(error)))) from None
