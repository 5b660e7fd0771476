"""Watch the brokers from a worker. A separate thread asks, so an outage shows even while the fold hangs in a call.

1. Every EVERY_S: one request for the log's topic. A broker is connected if it answers within ANSWER_S.
2. Every LAG_EVERY_S: the group's committed offsets and the ends of `.observations`, which give the group's lag of all
   partitions.
3. Every settings_every_s: the settings of the log's topics, compared with what a log needs (log/kafka/topics.py).
If a request has no answer, its last answer is kept. After ANOTHER_AFTER_S without an answer another client asks: a
client that was connected when its broker was fenced may have no broker to ask, permanently
(confluentinc/librdkafka#5301).

Unforeseen failures are logged, each kind once, and asking continues. If request 1 fails so, it counts as not answered,
so no page shows an old answer permanently.

The watch only reads. A missing right is no outage: a broker that denies has answered.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import NamedTuple

from confluent_kafka import KafkaException

from refold.avro.errors import RefoldError
from refold.streams.events import log_event
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.committed import CommittedOffsets, group_lag
from refold.streams.log.kafka.faults import error_of, is_denied, text_of
from refold.streams.log.kafka.topic_problems import TopicProblem
from refold.streams.log.kafka.topics import TopicAdmin, Topics
from refold.streams.log.kafka.url import Address
from refold.streams.worker.condition import Condition, CurrentCondition

EVERY_S = 1.0
ANSWER_S = 3.0
LAG_EVERY_S = 5.0
SETTINGS_EVERY_S = 15.0
ANOTHER_AFTER_S = 10.0
_ASKED_S = 3.0

_log = logging.getLogger(__name__)


class BrokerSighting(NamedTuple):
    """The last observations.

    Attributes:
        brokers: How many the cluster has, 0 while none answers.
        group_lag: The offsets that are recorded and not committed by the group, by partition.
        unfit: The topics that are missing, or not set as a log needs.
    """

    broker: Condition
    brokers: int = 0
    group_lag: Mapping[int, int] = {}
    unfit: tuple[TopicProblem, ...] = ()


class BrokerWatch:
    """Asks in a thread until closed; `now` may be read by any thread."""

    def __init__(self, clients: Clients, topics: Topics, address: Address, partitions: int,
                 clock_ms: Callable[[], int], settings_every_s: float = SETTINGS_EVERY_S) -> None:  # fmt: skip
        self._settings_every_s = settings_every_s
        self._clients, self._topics, self._address = clients, topics, address
        self._partitions = range(partitions)
        self._clock_ms = clock_ms
        self._broker = CurrentCondition(clock_ms, "no broker was asked yet")
        self.now = BrokerSighting(self._broker.now)
        self._was_answered = self._was_lost = False
        self._failed: set[tuple[str, type[Exception]]] = set()
        self._admin = clients.admin()
        self._committed: CommittedOffsets | None = None
        self._admin_since_s = time.monotonic()
        self._lag_at_s = self._settings_at_s = 0.0
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="refold-watch", daemon=True)
        self._thread.start()

    def was_lost_within(self, duration_s: float) -> bool:
        """Whether, so long ago or less, no broker answered."""
        return not self.now.broker.holds or (self._was_lost and self.now.broker.seconds(self._clock_ms()) <= duration_s)

    def close(self) -> None:
        """Stop asking. A request in progress is not waited for: it may take as long as a broker does not answer."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            self._poll()
        finally:
            if self._committed is not None:
                self._committed.close()

    def _poll(self) -> None:
        while not self._stopping.is_set():
            try:
                brokers, why = self._count_brokers()
            except Exception as error:  # watching continues whatever the client raises
                self._log_failure("brokers", error)
                brokers, why = 0, f"asking for brokers failed: {error!r:.200}"
            if self._stopping.is_set():
                return
            before = self._broker.note(bool(brokers), why)
            if before is not None:
                self._log_change(before, why)
            self.now = self.now._replace(broker=self._broker.now, brokers=brokers)
            if brokers:
                try:
                    self._check_topics(time.monotonic())
                except Exception as error:  # watching continues whatever the client raises
                    if self._stopping.is_set():
                        return
                    self._log_failure("group_and_settings", error)
            self._stopping.wait(EVERY_S)

    def _count_brokers(self) -> tuple[int, str]:
        """How many brokers there are, 0 and why where none answers."""
        try:
            found = self._admin.list_topics(self._topics.observations, timeout=ANSWER_S)
            self._admin_since_s = time.monotonic()
            return max(1, len(found.brokers)), ""
        except KafkaException as failed:
            error = error_of(failed)
            if error is not None and is_denied(error):
                return 1, ""
            if time.monotonic() - self._admin_since_s > ANOTHER_AFTER_S:
                self._admin, self._admin_since_s = self._clients.admin(), time.monotonic()
                if self._committed is not None:
                    self._committed.close()
                    self._committed = None
            return 0, f"no broker answers at {self._clients.servers}: {self._clients.last_error or text_of(failed)}"

    def _check_topics(self, now_s: float) -> None:
        """The lag of the group and the topics' settings, where it is time; the last ones stay where that fails."""
        if now_s - self._lag_at_s >= LAG_EVERY_S:
            self._lag_at_s = now_s
            with contextlib.suppress(RefoldError, KafkaException):
                topics = self._topics
                if self._committed is None:
                    self._committed = CommittedOffsets(self._clients, topics.group, topics.observations, stable=False)
                lag = group_lag(self._committed, self._admin, topics, self._partitions, _ASKED_S)
                self.now = self.now._replace(group_lag=lag)
        if now_s - self._settings_at_s >= self._settings_every_s:
            self._settings_at_s = now_s
            with contextlib.suppress(RefoldError, KafkaException):
                unfit = tuple(TopicAdmin(self._admin, _ASKED_S).unfit(self._address))
                if not self._stopping.is_set():  # a log that is closed after its worker lacks nothing
                    self._note_settings(unfit)

    def _note_settings(self, unfit: tuple[TopicProblem, ...]) -> None:
        for each in {*unfit} - {*self.now.unfit}:
            log_event(
                _log, "topic_missing" if each.is_missing else "settings_drifted", logging.WARNING, topic=each.topic,
                problem=each.problem,
            )  # fmt: skip
        for each in {*self.now.unfit} - {*unfit}:
            log_event(_log, "topic_back" if each.is_missing else "settings_mended", topic=each.topic)
        self.now = self.now._replace(unfit=unfit)

    def _log_failure(self, asked: str, error: Exception) -> None:
        """Log an unforeseen failure, each kind once: it may repeat every second."""
        kind = (asked, type(error))
        if kind not in self._failed:
            self._failed.add(kind)
            log_event(_log, "watch_failed", logging.ERROR, asked=asked, error=f"{error!r:.200}")

    def _log_change(self, before: Condition, why: str) -> None:
        now_ms = self._clock_ms()
        if self._broker.now.holds:
            after_s = round(before.seconds(now_ms), 1) if self._was_answered else None
            log_event(_log, "broker_back" if self._was_answered else "broker_connected", servers=self._clients.servers,
                      after_s=after_s)  # fmt: skip
            self._was_answered = True
        else:
            self._was_lost = True
            log_event(_log, "broker_lost", logging.WARNING, servers=self._clients.servers, why=why)
