"""A batch of `.keys` damaged on a broker's disk, which may have destroyed a key: it is named, and set aside only
together with every key before it. So erased content stays unreadable."""

from __future__ import annotations

import base64
import shlex

import pytest

from refold.agents.keys.kafka import KafkaKeyRing
from refold.agents.log import AgentLog, open_log
from refold.avro.errors import DamagedRecord, Expired, KeyUnreadable
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.url import parse_url
from refold.testing.kafka import Kafka
from refold_tests.bitrot import rot_batch
from refold_tests.command import Done, refold_command
from refold_tests.folding import opened, url_of

pytestmark = pytest.mark.timeout(600)

MASTER = {"REFOLD_MASTER_KEY": base64.b64encode(b"7" * 32).decode()}
REPEATED = 50
"""Enough repeats for a compressed batch: otherwise the damage is detected only after a while."""


@pytest.fixture
def url(rotting: Kafka, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in MASTER.items():
        monkeypatch.setenv(name, value)
    return url_of(rotting.bootstrap, "sealed")


def record(log: AgentLog, name: str) -> None:
    with log.run("agent", id=name, input={"of": f"word-{name}"}):
        pass


def ring_of(log: AgentLog) -> KafkaKeyRing:
    ring = log.vault.ring
    assert isinstance(ring, KafkaKeyRing)
    return ring


def destroy_in_one_batch(rotting: Kafka, url: str) -> int:
    """Destroy the key of run:a repeatedly in one batch, and return its first offset."""
    address = parse_url(url)
    with opened(url) as log:
        place = KafkaPartition(log.topics.keys, 0)
        end = log.offsets.ends([place])[place]
        made = [raw.key for raw in log.reading.records(place, 0, end) if raw.key and b"run:a" in raw.key]
    producer = Clients({"bootstrap.servers": rotting.bootstrap}, address.prefix).producer(**{"linger.ms": 500})
    for _ in range(REPEATED):
        producer.produce(place.topic, None, made[0], 0)
    assert producer.flush(60) == 0
    return end


def run_refold(url: str, *arguments: str) -> Done:
    return refold_command(*arguments, log=url, more=MASTER)


def test_setting_aside_a_batch_of_keys_gives_up_the_keys_before_it(rotting: Kafka, url: str) -> None:
    topic = f"{parse_url(url).prefix}.keys"
    with open_log(url) as log:
        for name in "ab":
            record(log, name)
        with open_log(url) as running:  # opened before, and without a need to read on until then
            first = destroy_in_one_batch(rotting, url)
            wound = rot_batch(rotting, topic, 0, first)
            command = f"refold quarantine add {topic}/0/{first} --give-up-keys --log {url.partition('?')[0]}"
            with pytest.raises(DamagedRecord, match="its batch cannot be read") as met:
                record(running, "c")
            assert str(met.value).endswith(command)
            for arguments in (("runs", "--text", "word"), ("retain", "--apply")):
                done = run_refold(url, *arguments)
                assert (done.status, command in done.err) == (2, True), done
            plain = command.replace(" --give-up-keys", "")
            refused = run_refold(url, *shlex.split(plain)[1:])
            assert refused.status == 2, refused
            assert "every earlier key is unusable from then on" in refused.err
            misplaced = run_refold(
                url, "quarantine", "add", f"{topic.replace('.keys', '.schemas')}/0/0", "--give-up-keys"
            )
            assert (misplaced.status, "goes with a batch of .keys" in misplaced.err) == (2, True), misplaced
            dry = run_refold(url, *shlex.split(command)[1:], "--dry-run", "--json")
            assert (dry.status, dry.json["aside"], dry.json["records"]) == (0, False, REPEATED), dry
            assert run_refold(url, "runs", "--text", "word").status == 2
            assert run_refold(url, *shlex.split(command)[1:]).status == 0
            # A running reader continues without a restart.
            record(running, "c")
            assert running.recording("c").input == {"of": "word-c"}
    with open_log(url) as log:
        for name in "ab":  # one of them was erased, and nobody knows which
            with pytest.raises(KeyUnreadable, match=rf"run:{name} is not used: .*quarantine remove {topic}/0/"):
                log.recording(name)
        assert [each.key_id for each in ring_of(log).damaged([])] == ["run:a", "run:b"]
        assert log.recording("c").input == {"of": "word-c"}
        record(log, "d")
    listed = run_refold(url, "runs", "--text", "word")
    assert listed.status == 1, listed
    assert all(f"run {name}: the topic {topic}" in listed.err for name in "ab"), listed.err
    assert run_refold(url, "verify").status == 0
    wound.heal()
    taken_back = run_refold(url, "quarantine", "remove", f"{topic}/0/{first + REPEATED - 1}")
    assert taken_back.status == 0, taken_back
    with open_log(url) as log:
        assert [log.recording(name).input for name in "bcd"] == [{"of": f"word-{name}"} for name in "bcd"]
        with pytest.raises(Expired):
            log.recording("a")


def test_abandoned_key_is_destroyed_like_any_other(rotting: Kafka, url: str) -> None:
    url = url.replace("/sealed", "/given")
    topic = f"{parse_url(url).prefix}.keys"
    with open_log(url) as log:
        for name in "ab":
            record(log, name)
    first = destroy_in_one_batch(rotting, url)
    wound = rot_batch(rotting, topic, 0, first)
    assert run_refold(url, "quarantine", "add", f"{topic}/0/{first}", "--give-up-keys").status == 0
    done = run_refold(url, "retain", "--class", "success=0", "--apply")
    assert "2 runs expired: 2 keys" in done.out, done
    wound.heal()
    assert run_refold(url, "quarantine", "remove", f"{topic}/0/{first}").status == 0
    with open_log(url) as log:
        for name in "ab":
            with pytest.raises(Expired):
                log.recording(name)
