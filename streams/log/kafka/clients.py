"""Kafka's clients with the settings that the promises rest on; what connects them comes from outside.

What the client logs goes to the logger of this module, and nowhere where nobody asked for it.

Calls of Kafka's client that may never come back, whatever time they were given.
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
from refold.streams.log.kafka.access import Grant, lacking
from refold.streams.log.kafka.faults import settings_error
from refold.streams.log.kafka.settings import Settings


def within(timeout_s: float, call: Callable[[], None]) -> None:
    """Make a call, in a thread of its own; raises what it raises, and TimeoutError where it is not over by then.

    Nobody can end such a call: it keeps its thread, and what it was made on, until it comes back or the process ends.
    """
    answer: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as problem:
            answer.set_exception(problem)
        else:
            answer.set_result(None)

    Thread(target=run, name="refold-call", daemon=True).start()
    answer.result(timeout_s)


# Above the largest inline value, and a state or a chunk of entities with it.
MESSAGE_BYTES_MAX = 8 << 20
READ_AHEAD_KB = 16 << 10

_COMMON = {
    # A broker that is back is found again within a second, not within ten.
    "reconnect.backoff.max.ms": 1_000,
    # A broker that hangs is given up, and another leader looked for, before whoever reads gives up.
    "socket.timeout.ms": 20_000,
    # A client that hears of no broker, as of one that is fenced itself, begins anew with those that were named. Without
    # this it has nobody to ask, ever.
    "metadata.recovery.strategy": "rebootstrap",
    # Each of many clients would keep a quarter of a megabyte of histograms a broker, for who asks for them.
    "enable.metrics.push": False,
}
_TRANSACTIONAL = {
    # Begun anew, a transaction that sends its offsets waits for a broker that was forgotten until it times out
    # (confluentinc/librdkafka#5511; seen with 2.16). One that has nobody to ask fails likewise, and is made again.
    "metadata.recovery.strategy": "none",
}

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


class Clients:
    """Makes clients of one cluster; `said` is what the last of them heard of a broker that it could not reach, and
    `refused` what one said that does not know who connects: waiting does not mend that.
    """

    def __init__(self, config: Mapping[str, str], prefix: str) -> None:
        self._config = Settings(config)
        self._prefix = prefix
        self.said = ""
        self.refused: KafkaError | None = None

    @property
    def servers(self) -> str:
        """The brokers that were named."""
        return self._config["bootstrap.servers"]

    @property
    def principal(self) -> str:
        """Whom the brokers take these clients for, as far as the settings say."""
        return self._config.principal

    def lacks(self, grant: Grant) -> str:
        """What is said where the brokers deny something."""
        return lacking(grant, self.principal, self.servers)

    def admin(self) -> AdminClient:
        """For topics and offsets."""
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
            # Retried until it is there or this is over: a rolling restart of the brokers is no failure.
            "message.timeout.ms": 120_000,
        }
        common = self._common()
        with self._refusals():
            if "transaction.timeout.ms" in more:  # the client refuses a longer one
                limits = common["socket.timeout.ms"], more["transaction.timeout.ms"]
                settings["socket.timeout.ms"] = min(map(int, limits))
            if "transactional.id" in more:
                settings.update(_TRANSACTIONAL)
            return Producer({**common, **settings, **more}, logger=_log)

    def reader(self, **more: Any) -> Consumer:
        """A consumer that is told what to read: no group moves, nothing is committed, only what is committed is seen.

        Its group.id is a name that the client insists on.
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
            # At the end of a partition the answer "nothing more" is waited for so long.
            "fetch.wait.max.ms": 10,
            # Once the client's queue was full, it would wait a second before it fetches again.
            "fetch.queue.backoff.ms": 5,
            "fetch.error.backoff.ms": 50,
        }
        with self._refusals():
            return Consumer({**self._common(), **settings, **more}, logger=_log)

    def _common(self) -> dict[str, Any]:
        return {**_COMMON, **self._config, "client.id": "refold", "error_cb": self._hear}

    def _hear(self, error: KafkaError) -> None:
        self.said = error.str() or error.name()
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
            self.refused = error

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (KafkaException, ValueError, TypeError) as error:
            # Not chained: what the client says of a setting may hold its value.
            raise InputError(self._config.hidden(str(settings_error(error)))) from None
