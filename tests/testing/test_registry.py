"""The Schema Registry that tests run on: real, on loopback alone, and gone with whoever started it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from refold.testing.registry import SchemaRegistry
from refold_tests.child import Child

STARTS_ONE = """
from refold.testing.registry import start_registry
registry = start_registry()
print(registry.pid, registry.url, flush=True)
input()
"""
GONE_S = 60.0


def listening(pid: int) -> set[str]:
    """The addresses where a process listens, as the system writes them: hexadecimal, network order in words."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(each))  # noqa: PTH115  (a socket's link names no path)
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def test_registry_keeps_schemas_until_restarted(own_registry: SchemaRegistry) -> None:
    with SchemaRegistryClient({"url": own_registry.url, "max.retries": 0}) as client:
        given = client.register_schema("s", Schema('"string"', "AVRO"))
        assert client.get_subjects() == ["s"]
        assert client.get_subjects_by_schema_id(given) == ["s"]
        own_registry.restart()
        assert client.get_subjects() == []
        with pytest.raises(SchemaRegistryError):
            client.get_subjects_by_schema_id(given)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables of sockets")
def test_registry_listens_on_loopback_only(own_registry: SchemaRegistry) -> None:
    assert own_registry.pid is not None
    assert listening(own_registry.pid) <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert listening(own_registry.pid)


@pytest.mark.registry
def test_registry_ends_with_its_killed_starter(child: Callable[..., Child]) -> None:
    starter = child(STARTS_ONE)
    pid = int(starter.line().split()[0])
    assert is_there(pid)
    starter.kill()
    deadline = time.monotonic() + GONE_S
    while is_there(pid):
        assert time.monotonic() < deadline, f"the registry {pid} outlives its starter"
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
