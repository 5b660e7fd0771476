"""Faust over `.changes`: agents see what is committed, and acknowledge what they have done.

Faust alone would not keep this (each point is held by tests/streams/worker/host):
1. It reads uncommitted records unless it runs exactly_once: here its consumer is told read_committed.
2. Its stream acknowledges an event when the loop's body is left, also by an exception: here the stream is told not to
   (noack), and the event is acknowledged behind the agents' return and their log's flush.
3. By default an agent that raised is started anew behind the event it failed at: here CrashingSupervisor ends the
   process. Nothing behind the event was acknowledged, for there is one agent, which takes one event at a time.
4. Where the group was rebalanced meanwhile, an event of before counts as done though nobody did it. Here it does not.
5. A consumer that does not come into its group, or back into it, says nothing, and its agents stand still for ever.
   Here it ends the process after OUT_OF_GROUP_S, for whoever supervises it to start it again.
6. A batch that cannot be read ends the process with the codec's error, and records read with it count as read. Here its
   records come as unreadable ones (faust_batches.py), and end the process with their place unless they are set aside.

How Faust's Kafka client connects, from the settings that confluent-kafka's clients are given.

It takes less than librdkafka: certificates and keys as PEM files, and passwords. What it cannot do is refused by name,
never left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import faust
import mode
from faust.transport.drivers import aiokafka as driver
from faust.types import StreamT
from faust.types.tuples import TP, Message
from mode.supervisors import CrashingSupervisor
from mode.utils.futures import notify

from refold.avro.errors import InputError, RefoldError, StorageError
from refold.avro.files import require_bounded
from refold.streams.changes import Change
from refold.streams.client import Log
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, VARIABLES
from refold.streams.worker.agents import ChangesAgent
from refold.streams.worker.host.faust_batches import CheckedFetches
from refold.streams.worker.host.faust_schema import ChangeSchema, Decode, SkippedChange, Unreadable

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SEE = f"see the file that {CONFIG_ENVIRONMENT} names, and {VARIABLES}*"
_NOT_HERE = ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.location", "ssl.crl.location", "ssl.cipher.suites")


def credentials_of(config: Mapping[str, str]) -> faust.auth.Credentials | None:
    """TLS and passwords as Faust takes them; InputError names what it does not know."""
    protocol = config.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise InputError(
            f"security.protocol={protocol}: agents over changes connect with {', '.join(_PROTOCOLS)}; {_SEE}"
        )
    context = _context(config) if protocol.endswith("ssl") else None
    if protocol.startswith("sasl"):
        mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms", "PLAIN"))
        if mechanism not in _MECHANISMS:
            raise InputError(f"sasl.mechanism={mechanism}: agents over changes know {', '.join(_MECHANISMS)}; {_SEE}")
        return faust.SASLCredentials(username=config.get("sasl.username"), password=config.get("sasl.password"),
                                     ssl_context=context, mechanism=mechanism)  # fmt: skip
    return faust.SSLCredentials(context=context) if context is not None else None


def _context(config: Mapping[str, str]) -> ssl.SSLContext:
    for name in _NOT_HERE:
        if name in config:
            raise InputError(f"{name}: agents over changes take ssl.ca.location, ssl.certificate.location and "
                             f"ssl.key.location, PEM files; {_SEE}")  # fmt: skip
    try:
        for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
            if name in config:
                require_bounded(config[name])
        context = ssl.create_default_context(cafile=config.get("ssl.ca.location"), cadata=config.get("ssl.ca.pem"))
        if "ssl.certificate.location" in config:
            context.load_cert_chain(config["ssl.certificate.location"], config.get("ssl.key.location"),
                                    config.get("ssl.key.password"))  # fmt: skip
    except (OSError, ValueError) as error:
        raise InputError(f"the certificates that are named cannot be used: {error}; {_SEE}") from error
    if config.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if config.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


SESSION_TIMEOUT_S = 10.0
REBALANCE_TIMEOUT_S = 60.0
# A group waits so long for its slowest member.
OUT_OF_GROUP_S = REBALANCE_TIMEOUT_S + 3 * SESSION_TIMEOUT_S


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    async def on_start(self) -> None:
        """Start the consumer, and have what it fetches looked at; it fetches nothing before it is subscribed."""
        await super().on_start()
        fetcher: Any = getattr(self._ensure_consumer(), "_fetcher", None)
        if type(getattr(fetcher, "_records", None)) is not OrderedDict:
            raise _unknown_release("a batch that cannot be read would be told")
        fetcher._records = CheckedFetches()

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # No setting of Faust leads there. Read when the consumer starts, which is later.
        if getattr(consumer, "_isolation_level", None) != "read_uncommitted":
            raise _unknown_release("it would show uncommitted changes")
        consumer._isolation_level = "read_committed"
        return consumer


def _unknown_release(what: str) -> StorageError:
    return StorageError(f"this release of aiokafka or faust-streaming is not known to refold: whether {what} cannot be "
                        "told")  # fmt: skip


class _Consumer(driver.Consumer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._out_of_group_from_s: float | None = self.loop.time()

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """It has its part of the topic, which may be nothing."""
        await super().on_partitions_assigned(assigned, generation_id)
        self._out_of_group_from_s = None

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """The group is to share out the topic anew; returns when agents have done what they are at."""
        await super().on_partitions_revoked(revoked)
        self._out_of_group_from_s = self.loop.time()

    @mode.Service.task
    async def _watch_the_group(self) -> None:
        while not self.should_stop:
            await self.sleep(1.0)
            since_s = self._out_of_group_from_s
            if since_s is not None and self.loop.time() - since_s > OUT_OF_GROUP_S:
                raise StorageError(f"the agents' consumer has not come into its group {self.app.conf.id} for "
                                   f"{OUT_OF_GROUP_S:.0f} s; start it again")  # fmt: skip

    def _new_consumer_thread(self) -> Any:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def ack(self, message: Message) -> bool:
        """Acknowledge what this generation of the group was given: what an earlier one was, comes again."""
        if message.generation_id != self.app.consumer_generation_id:
            self._unacked_messages.discard(message)
            notify(self._waiting_for_ack)
            return False
        return bool(super().ack(message))


class _Transport(driver.Transport):
    Consumer = _Consumer


class AgentFailed(RefoldError):
    """An agent raised; the change it was given is not acknowledged."""


@dataclass(frozen=True, slots=True)
class Following:
    """What agents follow: the topic, as which group and instance, and where Faust may keep a folder."""

    topic: str
    group: str
    instance: str | None
    folder: Path


class AgentThread:
    """The one thread in which agents run, and their log."""

    def __init__(self, agents: Sequence[ChangesAgent], open_log: Callable[[], Log]) -> None:
        self._agents = agents
        self._open_log = open_log
        self._log: Log | None = None
        self._pool = ThreadPoolExecutor(1, "refold-agents")

    async def run(self, value: Change | SkippedChange | Unreadable, place: str) -> None:
        """Give a change to every agent, and have what they observed durable; AgentFailed.

        No agent is given what every reader of the log passes over.
        """
        if isinstance(value, SkippedChange):
            return
        if isinstance(value, Unreadable):
            raise AgentFailed(f"{place} cannot be read: {value.error}") from value.error
        await asyncio.get_running_loop().run_in_executor(self._pool, self._act, value, place)

    def close(self) -> None:
        """Let go of the log; waits for an agent that is at work."""
        self._pool.submit(self._close).result()
        self._pool.shutdown()

    def _act(self, change: Change, place: str) -> None:
        if self._log is None:
            self._log = self._open_log()
        name = ""
        try:
            for agent in self._agents:
                name = agent.name
                agent(change, self._log)
            self._log.flush()
        except Exception as error:
            raise AgentFailed(f"the agent {name} failed at the change of {change.entity} to v{change.to_version} "
                              f"({place}): {type(error).__name__}: {error}; it comes again at the next start"
                              ) from error  # fmt: skip

    def _close(self) -> None:
        if self._log is not None:
            with contextlib.suppress(RefoldError):
                self._log.close()


def following_app(config: Mapping[str, str], following: Following, decode: Decode, thread: AgentThread) -> faust.App:
    """A Faust app whose one agent hands changes to a thread; config: as for confluent-kafka's clients."""
    servers = config["bootstrap.servers"].split(",")
    following.folder.mkdir(parents=True, exist_ok=True)  # Faust makes the last part alone
    app = faust.App(
        following.group,
        broker=[f"kafka://{each}" for each in servers],
        broker_credentials=credentials_of(config),
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=SESSION_TIMEOUT_S / 5,
        broker_rebalance_timeout=REBALANCE_TIMEOUT_S,
        broker_commit_interval=1.0,
        # A damaged record is told by its bytes, as by every other reader: it may be set aside.
        broker_check_crcs=False,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=following.instance,
        agent_supervisor=CrashingSupervisor,
        processing_guarantee="at_least_once",
        datadir=str(following.folder),
        store="memory://",
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        # Whatever starts a Faust web server by itself finds it on loopback; ours is streams/web/.
        web_enabled=False,
        web_bind="127.0.0.1",
    )
    app.transport = _Transport(app.conf.broker, app, loop=app.loop)
    topic = app.topic(following.topic, schema=ChangeSchema(decode))

    async def follow(changes: StreamT[Any]) -> None:
        async for event in cast("faust.Stream[Any]", changes).noack().events():
            message = event.message
            await thread.run(event.value, f"{message.topic}/{message.partition} offset {message.offset}")
            event.ack()

    app.agent(topic, name="changes", supervisor_strategy=CrashingSupervisor)(follow)
    return app
