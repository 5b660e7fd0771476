"""Choose the key ring with which a log's content is sealed.

REFOLD_KEYS=file:PATH    a folder, for any log
REFOLD_KEYS=none         nothing is sealed, and nothing sealed can be read
a file: log              the folder PATH/keys next to it
a kafka: log             the topic PREFIX.keys, wrapped by REFOLD_MASTER_KEY; without a master key nothing is sealed,
                         and a warning says so
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from refold.agents.keys.files import FileKeyRing
from refold.agents.keys.master import MASTER_ENVIRONMENT, read_masters
from refold.agents.keys.ring import KeyRing
from refold.agents.vault import ClearVault, Vault
from refold.avro.errors import InputError
from refold.streams.client import Log
from refold.streams.open import file_path, is_kafka

KEYS_ENVIRONMENT = "REFOLD_KEYS"
NONE = "none"

_log = logging.getLogger("refold.keys")


def vault_of(log: Log, environment: Mapping[str, str]) -> ClearVault:
    """Return the vault that seals and opens a log's content.

    Returns:
        A Vault with the log's key ring, or a vault that seals nothing if the log has no ring.

    Raises:
        InputError: As `ring_of`.
    """
    ring = ring_of(log, environment)
    return ClearVault(log) if ring is None else Vault(log, ring)


def ring_of(log: Log, environment: Mapping[str, str]) -> KeyRing | None:
    """Return the log's key ring.

    Args:
        log: The log.
        environment: The environment variables.

    Returns:
        The ring; None if nothing is sealed.

    Raises:
        InputError: The settings name no usable key ring.
    """
    named, url = environment.get(KEYS_ENVIRONMENT, "").strip(), log.port.url
    if named == NONE:
        return None
    if named:
        if not named.startswith("file:") or not named.removeprefix("file:"):
            raise InputError(f"{KEYS_ENVIRONMENT}: {named!r} names no key ring; give file:PATH, or {NONE}")
        return FileKeyRing(Path(unquote(named.removeprefix("file:").removeprefix("//"))).expanduser())
    if not is_kafka(url):
        return FileKeyRing(file_path(url) / "keys")
    from refold.streams.log.kafka.log import TIMEOUT_S, KafkaLog

    master = environment.get(MASTER_ENVIRONMENT, "").strip()
    if not master:
        if isinstance(log.port, KafkaLog) and log.port.is_read_only:
            return None
        _log.warning(
            "%s: what agents record here is kept in the clear, and can never be erased: set %s (base64 of 32 random "
            "bytes or more, or file:PATH) to seal it under keys in a topic of the log, or %s=file:PATH for a folder of "
            "keys, or %s=%s to leave it so",
            url, MASTER_ENVIRONMENT, KEYS_ENVIRONMENT, KEYS_ENVIRONMENT, NONE,
        )  # fmt: skip
        return None
    from refold.agents.keys.kafka import KafkaKeyRing
    from refold.streams.log.kafka.clients import Clients
    from refold.streams.log.kafka.url import merged, parse_url

    address = parse_url(url)
    clients = Clients(merged(address, log.port.config), address.prefix)
    unreadable = log.port.unreadable if isinstance(log.port, KafkaLog) else None
    return KafkaKeyRing(address, clients, read_masters(master), TIMEOUT_S, unreadable=unreadable)
