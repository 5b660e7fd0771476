"""A secured Kafka: TLS with its own certificates, SCRAM-SHA-512 passwords, and access lists that deny by default.

Clients and brokers log in by SCRAM. `admin` is the brokers' own user and has all rights. Controllers communicate before
SCRAM users exist, so they log in to one another with a fixed password over TLS.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from refold.testing.processes import HOST, ServerFailed, ServerMissing

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
    new_key: list[str | Path] = ["req", "-newkey", "rsa:2048", "-nodes", "-sha256", "-config", config]
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
