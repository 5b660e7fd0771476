"""A running Kafka for tests and trials: one node or three, on loopback, deleted when its starter ends.

    with start_kafka(nodes=3) as kafka:
        producer = Producer(kafka.client_config())
        kafka.kill(kafka.leader_of("topic", 0))

Every node is broker and controller. A separate process between each node and this one (supervisor.py) ensures that no
node outlives this process. Without `data` everything is in a temporary folder that is deleted.

An archive of Kafka's loaded classes (AppCDS) about halves the start of each later JVM. It is valid for one Java and one
class path, and is made once for each: one broker is started and ended for it. A JVM that rejects the archive runs
without it, so errors here are ignored.

cluster.json in a Kafka's folder records its kind, so that a kept Kafka is started again in the same way.

`Node` is one broker: its folder, its process below a supervisor, and the signals for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from refold.avro.errors import InputError
from refold.streams.deadline import Deadline
from refold.testing.kafka.jars import class_path, fetch_jars, find_java
from refold.testing.kafka.settings import (
    ADMIN,
    PROTOCOL,
    Ports,
    as_properties,
    certificates,
    client_settings,
    first_users,
    free_ports,
    new_password,
    node_settings,
    ports_from,
    secured_settings,
)
from refold.testing.processes import HOST, ServerFailed, Supervised, is_free, locked

HEAP_MB = 256
_READY = "Kafka Server started"
_READY_S = 90.0
_JVM = (
    "-Xms96m", "-Xss512k", "-XX:MaxMetaspaceSize=128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
)  # fmt: skip


class Node:
    """A broker that is also a controller. `number`: from 1; `ports`: where it listens."""

    def __init__(
        self, number: int, folder: Path, ports: Ports, *,
        heap_mb: int = HEAP_MB, options: Sequence[str] = (), remove: Path | None = None,
    ) -> None:  # fmt: skip
        self.number = number
        self.folder = folder
        self.ports = ports
        self._jvm = (f"-Xmx{heap_mb}m", *_JVM, *options)
        self._process = Supervised(f"Kafka's node {number}", folder / "server.log", remove=remove)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has a process; true for a paused node."""
        return self._process.is_running

    def write_settings(self, settings: Mapping[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.touch(mode=0o600)
        self._settings.write_text(as_properties(settings), encoding="utf-8")

    def format(self, cluster_id: str, options: Sequence[str] = ()) -> None:
        """Create its data folder, if it does not exist. Raises ServerFailed."""
        if (self.data / "meta.properties").exists():
            return
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._settings), *options)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()
            raise ServerFailed(f"Kafka's node {self.number} could not make its data folder:\n{output}")

    def launch(self) -> None:
        """Start its process. The node is ready once `await_ready` has returned."""
        self._process.launch(self._java("kafka.Kafka", str(self._settings)))

    def await_ready(self) -> None:
        """Return once it serves.

        Raises:
            ServerFailed: It ends instead, or takes too long.
        """
        self._process.await_ready(lambda: _READY in self._process.output(), _READY_S)

    def send(self, name: str) -> None:
        """Send it a signal by name, and return once the signal has taken effect. Does nothing if it has ended."""
        self._process.send(name)

    def kill(self) -> None:
        """Send SIGKILL. Returns when the process is gone."""
        self._process.kill()

    def stop(self) -> None:
        """Send SIGTERM, an orderly shutdown; SIGKILL if that takes too long."""
        self._process.stop()

    def tail(self) -> str:
        """Return the end of its output since its last start."""
        return self._process.tail()

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [find_java().command, *self._jvm, "-cp", class_path(fetch_jars()), main, *arguments]


def new_cluster_id() -> str:
    """Return a cluster id in Kafka's format: 16 bytes as 22 characters of URL-safe base 64."""
    # The first byte is zero, so that the id never starts with a dash, which would make it an option.
    return base64.urlsafe_b64encode(b"\0" + os.urandom(15)).decode().rstrip("=")


CONTROLLER = "controller"


class ClusterRecord(NamedTuple):
    """The kind of a kept Kafka. `passwords`: by user; empty if it is not secured."""

    cluster_id: str
    nodes: int
    passwords: dict[str, str]


def opened(folder: Path, nodes: int, secure: bool) -> ClusterRecord:
    """Return the folder's record, new if the folder is empty.

    Raises:
        InputError: It is another kind of Kafka.
    """
    path = folder / "cluster.json"
    if path.exists():
        kept = ClusterRecord(**json.loads(path.read_text(encoding="utf-8")))
        if (kept.nodes, bool(kept.passwords)) != (nodes, secure):
            held = f"{kept.nodes} node{'s' if kept.nodes > 1 else ''}, {'secured' if kept.passwords else 'plain'}"
            raise InputError(f"{folder} holds a Kafka of {held}; start it as that, or name another folder")
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    kept = ClusterRecord(
        new_cluster_id(), nodes, {name: new_password() for name in (ADMIN, CONTROLLER)} if secure else {}
    )
    write(folder, kept)
    return kept


def write(folder: Path, kept: ClusterRecord) -> None:
    part = folder / "cluster.json.part"
    part.touch(mode=0o600)
    part.write_text(json.dumps(kept._asdict()), encoding="utf-8")
    part.replace(folder / "cluster.json")


def classes_option() -> list[str]:
    """Return the JVM's option that reads the archive, which is made now if this Java has none. Empty if that fails."""
    jars = fetch_jars()
    made_for = hashlib.sha256(f"{find_java().version}\n{class_path(jars)}".encode()).hexdigest()[:16]
    archive = jars / f"classes-{made_for}.jsa"
    if not archive.exists():
        with locked(archive.with_suffix(".lock")):
            if not archive.exists():
                _make(archive)
    # An empty file means that it cannot be made on this machine.
    return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []


def _make(archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=archive.parent) as work:
        part = Path(work) / "classes.jsa"
        ports = free_ports(1)
        node = Node(1, Path(work), ports[0], options=[f"-XX:ArchiveClassesAtExit={part}"])
        node.write_settings(node_settings(1, ports, node.data))
        try:
            node.format(new_cluster_id())
            node.launch()
            node.await_ready()
        except ServerFailed:
            part.touch()
        finally:
            node.stop()
        part.touch()
        part.rename(archive)


_HEAP_THREE_MB = 192
_ATTEMPTS = 5
_LEADER_S = 120.0
_ASK_S = 5.0
_POLL_S = 0.1


def start_kafka(
    nodes: int = 1, *, secure: bool = False, port: int | None = None, data: str | Path | None = None,
    join_delay_ms: int = 0,
) -> Kafka:  # fmt: skip
    """Start Kafka, and return once all of its nodes serve. Downloads Kafka first if necessary.

    Args:
        nodes: 1 or 3.
        secure: use TLS, SCRAM-SHA-512 and access lists (see Kafka.create_user).
        port: the first of the clients' ports; by default free ports are used.
        data: a folder to keep the data in, and to start from again.
        join_delay_ms: how long an empty consumer group waits for further members; Kafka's default is 3000.

    Raises:
        ServerMissing: says what to install.
        ServerFailed: shows the end of the log.
        InputError: an argument is invalid.
    """
    if nodes not in (1, 3):
        raise InputError(f"nodes: 1 or 3, given {nodes}")
    asked = None if port is None else _asked_for(port, nodes)
    options = classes_option()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return Kafka(asked or free_ports(nodes), secure, data, options, join_delay_ms)
        except ServerFailed as error:
            # Another process may have taken the port between the check and the broker's start.
            was_taken = "Address already in use" in str(error)
            if asked or not was_taken or attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _asked_for(port: int, nodes: int) -> list[Ports]:
    ports = ports_from(port, nodes)
    for each in (number for pair in ports for number in pair):
        if not is_free(each):
            raise InputError(f"port {each} of {HOST} is taken; name another first one, {2 * nodes} are needed in a row")
    return ports


class Kafka:
    """A started Kafka. `nodes` are numbered from 1. `bootstrap` is the address for clients."""

    def __init__(
        self, ports: Sequence[Ports], secure: bool, data: str | Path | None, options: Sequence[str], join_delay_ms: int
    ) -> None:
        """Start it; see start_kafka."""
        self._settings = {"group.initial.rebalance.delay.ms": str(join_delay_ms)}
        self.is_kept = data is not None
        self.folder = Path(data or tempfile.mkdtemp(prefix="refold-kafka-")).absolute()
        self.bootstrap = ",".join(f"{HOST}:{each.client}" for each in ports)
        heap_mb = HEAP_MB if len(ports) == 1 else _HEAP_THREE_MB
        remove = None if self.is_kept else self.folder
        self._nodes = {
            number: Node(number, self.folder / f"node{number}", each, heap_mb=heap_mb, options=options, remove=remove)
            for number, each in enumerate(ports, 1)
        }
        try:
            self._kept = opened(self.folder, len(ports), secure)
            self._certificates = certificates(self.folder / "certificates") if secure else None
            self._start(ports)
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> list[int]:
        """The numbers of all nodes, running or not."""
        return list(self._nodes)

    def client_config(self, user: str = ADMIN, password: str | None = None) -> dict[str, Any]:
        """Return the settings with which confluent-kafka's clients connect, as a copy.

        Args:
            user: The user of a secured Kafka: `admin`, or one made by create_user.
            password: Instead of that user's own.

        Raises:
            InputError: The user is unknown, and there is no password.
        """
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        if self._certificates is None:
            return config
        if password is None and user not in self._kept.passwords:
            raise InputError(f"user: one of {sorted(self._kept.passwords)}, or with a password; given {user}")
        known = self._kept.passwords.get(user, "") if password is None else password
        return {**config, **client_settings(self._certificates, user, known)}

    def create_user(self, name: str) -> None:
        """Create a user of a secured Kafka, with a new password that client_config knows. It has no rights yet:

        admin = AdminClient(kafka.client_config())
        admin.create_acls([AclBinding(ResourceType.TOPIC, "agents.", ResourcePatternType.PREFIXED,
                                      f"User:{name}", "*", AclOperation.WRITE, AclPermissionType.ALLOW)])
        """
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        if self._certificates is None:
            raise InputError(f"create_user: {name} would be let in anyway; start Kafka with secure=True")
        password = new_password()
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(name, info, password.encode())
        # Keep a reference: a client that is garbage collected drops its request.
        admin = AdminClient(self.client_config())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result()
        self._kept.passwords[name] = password
        write(self.folder, self._kept)

    def kill(self, node: int) -> None:
        """Send SIGKILL. Returns when the process is gone."""
        self._node(node).kill()

    def stop(self, node: int) -> None:
        """Send SIGTERM, an orderly shutdown. Returns when the process is gone."""
        self._node(node).stop()

    def restart(self, node: int) -> None:
        """Start it again, after an orderly stop if it runs; returns once it serves."""
        each = self._node(node)
        each.stop()
        each.launch()
        each.await_ready()

    def pause(self, node: int) -> None:
        """Send SIGSTOP. Returns when the process is stopped."""
        self._node(node).send("SIGSTOP")

    def resume(self, node: int) -> None:
        """Send SIGCONT, after `pause`."""
        self._node(node).send("SIGCONT")

    def is_running(self, node: int) -> bool:
        """Return whether it has a process; true for a paused node."""
        return self._node(node).is_running

    def pid(self, node: int) -> int | None:
        """Return the process id of its last start; None before the first start."""
        return self._node(node).pid

    def leader_of(self, topic: str, partition: int = 0, *, other_than: int | None = None) -> int:
        """Return the node that leads a partition; waits until there is one.

        Right after a kill, the killed node is still the leader: pass it as `other_than`.

        Args:
            topic: The topic.
            partition: Its partition.
            other_than: A node that does not count.

        Raises:
            ServerFailed: There is no leader in time.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.client_config())
        deadline = Deadline(_LEADER_S)
        while not deadline.is_past:
            # A broker that was just killed, or is paused, does not answer.
            with suppress(KafkaException):
                found = admin.list_topics(topic, timeout=_ASK_S).topics[topic].partitions.get(partition)
                if found is not None and found.leader in self._nodes and found.leader != other_than:
                    return int(found.leader)
            time.sleep(_POLL_S)
        raise ServerFailed(f"{topic}/{partition} has no leader after {_LEADER_S:.0f} s")

    def tail(self, node: int) -> str:
        """Return the end of the node's log since its last start."""
        return self._node(node).tail()

    def close(self) -> None:
        """End all nodes; remove the folder, if it is a temporary one."""
        for each in self._nodes.values():
            if self.is_kept:
                each.send("SIGTERM")
            else:
                each.kill()
        for each in self._nodes.values():
            each.stop()
        if not self.is_kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _node(self, number: int) -> Node:
        if number not in self._nodes:
            raise InputError(f"node: one of {self.nodes}, given {number}")
        return self._nodes[number]

    def _start(self, ports: Sequence[Ports]) -> None:
        protocol, security, users = "PLAINTEXT", dict[str, str](), list[str]()
        if self._certificates is not None:
            passwords = self._kept.passwords
            protocol, users = PROTOCOL, first_users(passwords[ADMIN])
            security = secured_settings(self._certificates, passwords[ADMIN], passwords[CONTROLLER])
        for number, each in self._nodes.items():
            each.write_settings(node_settings(number, ports, each.data, protocol) | self._settings | security)
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            list(pool.map(lambda each: each.format(self._kept.cluster_id, users), self._nodes.values()))
        for each in self._nodes.values():
            each.launch()
        for each in self._nodes.values():
            each.await_ready()
