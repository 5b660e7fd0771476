"""Key rings in a topic, on a real broker."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import cbor2
import pytest

import refold
from refold.agents.keys.choose import ring_of, vault_of
from refold.agents.keys.files import FileKeyRing
from refold.agents.keys.kafka import REFRESH_S, KafkaKeyRing
from refold.agents.keys.master import read_masters
from refold.agents.keys.ring import KeyRing
from refold.agents.vault import ClearVault, Vault
from refold.avro.errors import CorruptionError, InputError, KeyUnreadable, NotAnswerable, StorageError
from refold.streams.log.kafka.manifests import FORGOTTEN_S
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.url import parse_url
from refold_tests.child import Child
from refold_tests.damaged import with_changed_end
from refold_tests.kafka_topics import TIMEOUT_S, Broker
from refold_tests.key_rings import RingContract

MASTER, OTHER = (base64.b64encode(bytes([each]) * 32).decode() for each in (7, 8))
Opened = Callable[..., KafkaKeyRing]


@pytest.fixture
def opened(broker: Broker) -> Iterator[Opened]:
    rings: list[KafkaKeyRing] = []

    def ring(master: str = MASTER, clock_s: Callable[[], float] = lambda: 0.0) -> KafkaKeyRing:
        address = parse_url(f"kafka://{broker.bootstrap}/{broker.prefix}")
        rings.append(KafkaKeyRing(address, broker.clients, read_masters(master), TIMEOUT_S, clock_s=clock_s))
        return rings[-1]

    yield ring
    for each in rings:
        each.close()


class TestKafka(RingContract):
    @pytest.fixture
    def opened(self, opened: Opened) -> Callable[[], KeyRing]:
        return opened


def test_topic_holds_wrapped_keys_and_another_master_key_is_refused_by_name(opened: Opened, broker: Broker) -> None:
    key = opened().create("run:a")
    place = KafkaPartition(f"{broker.prefix}.keys", 0)
    with broker.reading() as reading:
        (raw,) = reading.records(place, 0, broker.end(place))
    assert raw.value is not None
    assert key not in raw.value
    assert key[:8] not in raw.value
    names = [read_masters(each).names[0] for each in (MASTER, OTHER)]
    with pytest.raises(InputError, match=rf"run:a is wrapped by the master key {names[0]}.*{names[1]}"):
        opened(OTHER)
    both = opened(f"{OTHER},{MASTER}")
    assert both.get("run:a") == key
    # A new master key takes over: with only the old one, its own keys can be read, and an error names the others.
    old = opened()
    both.create("run:b")
    assert old.get("run:a") == key
    with pytest.raises(InputError, match=f"run:b is wrapped by the master key {names[1]}"):
        old.get("run:b")


def test_first_key_of_an_id_counts_and_destruction_removes_all(opened: Opened, broker: Broker) -> None:
    ring = opened()
    first = ring.create("run:a")
    wrapped = read_masters(MASTER).wrap("run:a", bytes(64))
    broker.produce(KafkaPartition(f"{broker.prefix}.keys", 0), [wrapped], key=cbor2.dumps(["run:a", b"late"]))
    broker.produce(KafkaPartition(f"{broker.prefix}.keys", 0), [b"odd"], key=b"odd")
    assert opened().get("run:a") == opened().create("run:a") == first
    ring.destroy("run:a")
    assert opened().get("run:a") is None


def test_destroyed_key_leaves_caches_within_a_minute_without_a_request(opened: Opened) -> None:
    now = 0.0
    ring, reader = opened(), opened(clock_s=lambda: now)
    key = ring.create("run:a")
    assert reader.get("run:a") == key
    ring.destroy("run:a")
    assert reader.get("run:a") == key
    now = REFRESH_S + 1
    assert reader.get("run:a") is None
    ring.create("run:b")
    now += FORGOTTEN_S + 1
    assert (reader.get("run:b"), reader.ids()) == (ring.get("run:b"), ["run:b"])


def test_topic_that_would_lose_keys_and_changed_key_are_refused(opened: Opened, broker: Broker) -> None:
    ring = opened()
    ring.create("run:a")
    place = KafkaPartition(f"{broker.prefix}.keys", 0)
    with broker.reading() as reading:
        (raw,) = reading.records(place, 0, broker.end(place))
    broker.produce(place, [None], key=raw.key)
    broker.produce(place, [with_changed_end(raw.value or b"")], key=raw.key)
    with pytest.raises(CorruptionError, match="the key run:a is not the one that was wrapped"):
        opened().get("run:a")
    broker.alter(place.topic, "cleanup.policy", "delete")
    with pytest.raises(StorageError, match=r"keys has cleanup.policy=delete, and a log needs compact"):
        opened()


def test_log_finds_its_ring_by_url_and_settings(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"kafka://{broker.bootstrap}/{broker.prefix}?blobs=file://{tmp_path}/blobs"
    with refold.open(url) as log:
        assert ring_of(log, {"REFOLD_KEYS": "none"}) is None
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            clear = vault_of(log, {})
        assert type(clear) is ClearVault
        assert "kept in the clear" in caplog.text
        assert "REFOLD_MASTER_KEY" in caplog.text
        caplog.clear()
        with refold.open(url, read_only=True) as reading:
            assert type(vault_of(reading, {})) is ClearVault
        assert not caplog.records, "what only reads records nothing"
        named = ring_of(log, {"REFOLD_KEYS": f"file:{tmp_path}/mine", "REFOLD_MASTER_KEY": MASTER})
        assert (type(named), named and named.place) == (FileKeyRing, f"{tmp_path}/mine")
        vault = vault_of(log, {"REFOLD_MASTER_KEY": MASTER})
        assert isinstance(vault, Vault)
        patch = {str(each): vault.seal("run:r", "step/r#1", "journal", "x" * each) for each in (10, 5000)}
        log.observe("step/r#1", {"journal": patch})
        log.flush()
    with refold.open(url) as log:
        again = vault_of(log, {"REFOLD_MASTER_KEY": MASTER})
        found = log.rebuild()["step/r#1"].fields["journal"]
        assert again.open("step/r#1", "journal", found) == {"10": "x" * 10, "5000": "x" * 5000}
        with pytest.raises(NotAnswerable, match="sealed under the key run:r, and no key ring is open here"):
            clear.open("step/r#1", "journal", found["10"])
        for each in (vault, again):
            assert isinstance(each, Vault)
            each.ring.close()


def test_ring_of_a_file_log_is_next_to_it(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path}/a log") as log:
        vault = vault_of(log, {})
        assert isinstance(vault, Vault)
        vault.ring.create("run:a")
        assert [each.parent for each in (tmp_path / "a log" / "keys").iterdir()] == [tmp_path / "a log" / "keys"]
        with pytest.raises(InputError, match="REFOLD_KEYS: 'here' names no key ring; give file:PATH, or none"):
            vault_of(log, {"REFOLD_KEYS": "here"})
    with refold.open(f"file:{tmp_path}/a log") as log:
        assert log.verify().ok


MAKING = """
import sys
from refold.agents.keys.kafka import KafkaKeyRing
from refold.agents.keys.master import read_masters
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.url import parse_url

address = parse_url(sys.argv[1])
clients = Clients({"bootstrap.servers": address.servers}, address.prefix)
ring = KafkaKeyRing(address, clients, read_masters(sys.argv[2]), 20)
print("open", flush=True)
for number in range(10**6):
    key_id = f"{sys.argv[3]}:{number}"
    print("made", key_id, ring.create(key_id).hex(), flush=True)
    if number % 2:
        ring.destroy(key_id)
        print("destroyed", key_id, flush=True)
"""


@pytest.mark.faults
def test_killed_process_leaves_its_acknowledged_keys(
    opened: Opened, broker: Broker, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    for each in range(max(2, fault_rounds // 4)):
        process = child(MAKING, f"kafka://{broker.bootstrap}/{broker.prefix}", MASTER, each)
        assert process.line() == "open"
        said = [process.line().split() for _ in range(1 + (seed + each * 5) % 9)]
        process.kill()
        gone = {key_id for what, key_id, *_ in said if what == "destroyed"}
        ring = opened()
        for what, key_id, *key in said:
            if what == "made":
                found = ring.get(key_id)
                may_be_gone = int(key_id.partition(":")[2]) % 2
                assert found == bytes.fromhex(key[0]) or (found is None and may_be_gone), (key_id, seed)
                assert found is None or key_id not in gone, (key_id, seed)
                ring.destroy(key_id)
                assert opened().get(key_id) is None


def test_damaged_record_affects_only_its_own_key(opened: Opened, broker: Broker) -> None:
    ring = opened()
    keys = {name: ring.create(name) for name in ("run:a", "run:b")}
    place = KafkaPartition(f"{broker.prefix}.keys", 0)
    with broker.reading() as reading:
        first, _ = reading.records(place, 0, broker.end(place))
    broker.produce(place, [b"junk"], key=cbor2.dumps(["run:c", b"12345678"]))
    broker.produce(place, [None], key=first.key)
    broker.produce(place, [with_changed_end(first.value or b"")], key=first.key)
    ring = opened()
    assert ring.get("run:b") == keys["run:b"]
    assert [each.key_id for each in ring.damaged(["run:a", "run:b", "run:c"])] == ["run:a", "run:c"]
    for key_id in ("run:a", "run:c"):
        with pytest.raises(KeyUnreadable, match=f"{key_id} is not the one that was wrapped"):
            ring.get(key_id)
        ring.destroy(key_id)
    assert (ring.damaged([]), ring.ids()) == ([], ["run:b"])
