"""The settings of brokers and clients, and the ports of a cluster's nodes.

A broker is small, starts fast, detects a lost broker soon, and otherwise behaves like Kafka. It keeps Kafka's defaults
of log cleaning and retention (set per topic) and of transaction timeouts (up to 15 minutes).

A secured Kafka has TLS with its own certificates, SCRAM-SHA-512 passwords, and access lists that deny by default.
Clients and brokers log in by SCRAM. `admin` is the brokers' own user and has all rights. Controllers communicate before
SCRAM users exist, so they log in to one another with a fixed password over TLS.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from refold.testing import processes
from refold.testing.processes import HOST, ServerFailed, ServerMissing

CONTROLLER = "CONTROLLER"


class Ports(NamedTuple):
    """The ports on which one node listens."""

    client: int
    controller: int


def node_settings(number: int, ports: Sequence[Ports], data: Path, protocol: str = "PLAINTEXT") -> dict[str, str]:
    """Return the server.properties of node `number` (from 1); the cluster has a node for each item of `ports`."""
    own = ports[number - 1]
    voters = ",".join(f"{index}@{HOST}:{each.controller}" for index, each in enumerate(ports, 1))
    copies, in_sync_min = str(len(ports)), str(len(ports) // 2 + 1)
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "log.dirs": str(data),
        "listeners": f"{protocol}://{HOST}:{own.client},{CONTROLLER}://{HOST}:{own.controller}",
        "listener.security.protocol.map": f"{CONTROLLER}:{protocol},{protocol}:{protocol}",
        "inter.broker.listener.name": protocol,
        "controller.listener.names": CONTROLLER,
        "controller.quorum.voters": voters,
        # A misspelt name must not create a topic.
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync_min,
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        # A transaction that timed out is aborted within one second, not ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        # A killed broker's partitions get other leaders after some seconds.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        "controller.quorum.fetch.timeout.ms": "2000",
        "replica.lag.time.max.ms": "5000",
        # By default the cleaner's table alone would take 128 MB of heap.
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        # Remove files of deleted topics soon: a test run creates thousands.
        "log.segment.delete.delay.ms": "5000",
    }


def as_properties(settings: Mapping[str, str]) -> str:
    """Return settings as a Java properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def free_ports(nodes: int) -> list[Ports]:
    """Return a pair of ports for each node; they were free a moment ago."""
    found = processes.free_ports(2 * nodes)
    return [Ports(*found[2 * index : 2 * index + 2]) for index in range(nodes)]


def ports_from(first: int, nodes: int) -> list[Ports]:
    """Return the clients' ports from `first` on, followed by the controllers' ports."""
    return [Ports(first + index, first + nodes + index) for index in range(nodes)]


ADMIN = "admin"
PROTOCOL = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"

_DAYS = "3650"
_OPENSSL = f"""\
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = refold's certificate authority for one Kafka
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
[server]
basicConstraints = CA:FALSE
subjectAltName = IP:{HOST}, DNS:localhost
"""


class Certificates(NamedTuple):
    """PEM files: the authority that clients trust, and a node's key with its certificates."""

    authority: Path
    server: Path


def new_password() -> str:
    return secrets.token_hex(16)


def certificates(folder: Path) -> Certificates:
    """Return the certificates in the folder, made by openssl if there are none. Raises ServerMissing without
    openssl."""
    made = Certificates(folder / "ca.crt", folder / "server.pem")
    if made.server.exists():
        return made
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ServerMissing("a secured Kafka needs openssl, and there is none on PATH; install the package openssl")
    folder.mkdir(parents=True, exist_ok=True)
    config, authority_key, key = folder / "openssl.cnf", folder / "ca.key", folder / "server.key"
    request, signed, server = folder / "server.csr", folder / "server.crt", folder / "server.pem.part"
    config.write_text(_OPENSSL, encoding="utf-8")
    # A broker takes half of the CPU time for a handshake that it takes with RSA.
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-pkeyopt", "ec_param_enc:named_curve"]
    new_key: list[str | Path] = ["req", *curve, "-nodes", "-sha256", "-config", config]
    commands: list[list[str | Path]] = [
        [*new_key, "-x509", "-days", _DAYS, "-keyout", authority_key, "-out", made.authority],
        [*new_key, "-subj", f"/CN={HOST}", "-keyout", key, "-out", request],
        ["x509", "-req", "-sha256", "-days", _DAYS, "-set_serial", "1", "-extfile", config, "-extensions", "server",
         "-CA", made.authority, "-CAkey", authority_key, "-in", request, "-out", signed],
    ]  # fmt: skip
    for command in commands:
        done = subprocess.run([openssl, *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerFailed(f"openssl could not make certificates: {done.stderr.strip()}")
    server.touch(mode=0o600)
    server.write_text("".join(path.read_text() for path in (key, signed, made.authority)), encoding="utf-8")
    for path in (config, authority_key, key, request, signed):
        path.unlink()
    server.rename(made.server)
    return made


def secured_settings(made: Certificates, admin_password: str, controller_password: str) -> dict[str, str]:
    """Return the settings of a node in addition to settings.node_settings with this PROTOCOL."""
    scram, plain = "org.apache.kafka.common.security.scram.Scram", "org.apache.kafka.common.security.plain.Plain"
    own = f'{scram}LoginModule required username="{ADMIN}" password="{admin_password}";'
    controllers = (
        f'{plain}LoginModule required username="controller" password="{controller_password}" '
        f'user_controller="{controller_password}";'
    )
    return {
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": controllers,
        f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": own,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made.authority),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:controller",
        "allow.everyone.if.no.acl.found": "false",
    }


def client_settings(made: Certificates, user: str, password: str) -> dict[str, str]:
    """Return the settings of confluent-kafka's clients in addition to the bootstrap address."""
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": os.fspath(made.authority),
    }


def first_users(admin_password: str) -> list[str]:
    """Return the options by which StorageTool creates the user that creates everything else."""
    return ["--add-scram", f"{MECHANISM}=[name={ADMIN},password={admin_password}]"]
