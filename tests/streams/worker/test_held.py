"""Untrusted definitions that name code: a worker does not import it, and keeps folding other types."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

import refold
from refold.avro.definition import TypeDefinition, parse
from refold.avro.ids import identify
from refold.avro.registry import TypeVersion
from refold.avro.shipped import shipped_types
from refold.explorer.cli.main import run
from refold.reducers.custom import code_of
from refold.streams.log.kafka.activations import Activation, activation_key, activation_value
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.manifests import MARKERS
from refold_tests.brokers import SharedKafka
from refold_tests.folding import append, await_status, check_whole, fold_all, history, opened, running, url_of
from refold_tests.poison import produce, verdicts
from refold_tests.reducers import REDUCERS, trap
from refold_tests.sample_types import THING, said
from refold_tests.strange_types import naming, other_code, put_definition

pytestmark = pytest.mark.timeout(300)
NAME = "refold_trap:folded"


def strange(log: KafkaLog, definition: TypeDefinition, number: int) -> bytes:
    """Write an observation of such a type, and return its id."""
    observation = said(f"{definition.name}/{number}", number, last="x")
    data = TypeVersion(definition, 0, 0).codec.encode_observation(observation)
    produce(log, log.partition_of(observation.entity), (observation.entity.encode(), data, [], ""))
    return identify(observation)


def test_worker_folds_other_types_and_held_ones_once_their_code_is_registered(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    imported = trap(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "refold_trap", raising=False)
    rng = random.Random(seed)
    acknowledged = append(log, history(rng, 60))
    evil = [naming("stranger", NAME)]
    evil += [
        naming(f"evil{number}", name) for number, name in enumerate(("unittest.__main__:run", ":run", "os:system"))
    ]
    evil.append(naming("stranger", NAME, "11" * 32, 2))
    held = set()
    for number, definition in enumerate(evil):
        put_definition(log, definition)
        held.add(strange(log, definition, number))
        acknowledged |= append(log, history(rng, 20))
    fold_all(log, tmp_path / "worker")
    assert [each.reason for each in verdicts(log)] == ["held"] * len(evil)
    assert any("--reducers refold_trap:folded" in each.detail for each in verdicts(log))
    check_whole(log, tmp_path / "worker", acknowledged)
    with refold.open(log.url, read_only=True) as reader:
        view = reader.rebuild()
        assert {name.partition("/")[0] for name in view} <= {THING.name, f"{THING.name}s"}
        with running(log.url, tmp_path / "worker") as folding:
            await_status(folding, lambda found: found.get("state") == "folding", 0)
            await_status(folding, lambda found: found.get("state") == "folding", 1)
            assert folding.service.sealing._snapshotter.seal() != []
        assert reader.rebuild().root == view.root
        assert reader.verify().ok
    fold_all(log, tmp_path / "anew")
    check_whole(log, tmp_path / "anew", acknowledged)
    assert run(["deadletters", "retry", "--reason", "held", "--log", log.url]) == 1
    assert not imported.exists()

    # The operator accepts the code: its definition is registered, the worker gets it, and the records are retried.
    monkeypatch.setenv("REFOLD_REDUCERS", f"{REDUCERS},{NAME}")
    monkeypatch.setattr("refold_trap.folded.refold_version", 3, raising=False)
    code = code_of(NAME)
    log.register(naming("stranger", NAME, str(code["source"]), 3))
    capsys.readouterr()
    assert run(["deadletters", "retry", "--type", "stranger", "--apply", "--wait", "0", "--log", log.url]) == 0
    fold_all(log, tmp_path / "worker")
    with refold.open(log.url, read_only=True) as reader:
        assert reader.state("stranger/0").fields == {"last": "folded"}
        assert reader.state("stranger/4").version == 1
        assert reader.verify().ok


def test_type_without_code_never_names_any(log: KafkaLog, tmp_path: Path) -> None:
    with refold.open(log.url) as writer:
        writer.observe("tool_config/acme", {"rate_limit": 50})
    put_definition(log, naming("tool_config", "os:system"))
    document = shipped_types()["tool_config"].document
    code = {"refold.reducer": "custom", "refold.function": NAME,
            "refold.code": {"name": NAME, "version": 1, "source": "00" * 32}}  # fmt: skip
    fields = [each | code if each["name"] == "rate_limit" else each for each in document["fields"]]
    put_definition(log, parse({**document, "fields": fields}))
    assert len(log.registry.versions("tool_config")) == 1
    fold_all(log, tmp_path)
    assert verdicts(log) == []
    with refold.open(log.url, read_only=True) as reader:
        assert reader.state("tool_config/acme").fields["rate_limit"] == 50


def test_worker_without_the_code_of_its_tables_types_ends_without_a_verdict(
    kafka: SharedKafka, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(url_of(kafka.bootstrap, prefix, 1)) as log:
        log.register(THING)
        append(log, [said(f"{THING.name}/a", 1)])
        fold_all(log, tmp_path)
        append(log, [said(f"{THING.name}/b", 1)])
        monkeypatch.setenv("REFOLD_REDUCERS", "")
        with running(log.url, tmp_path) as found:
            problem = found.failed()
        assert "--reducers refold_tests.histories:folded" in str(problem)
        assert verdicts(log) == []
        monkeypatch.setenv("REFOLD_REDUCERS", REDUCERS)
        fold_all(log, tmp_path)
        check_whole(log, tmp_path, set())


def test_foreign_version_of_a_type_with_code_is_pending_and_the_worker_continues(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    acknowledged = append(log, history(rng, 40))
    fold_all(log, tmp_path)
    extra = {"type": ["null", "long"], "refold.reducer": "latest"}
    pending = other_code(extra=extra)
    put_definition(log, other_code())
    put_definition(log, pending)
    assert [each.definition for each in log.registry.pending()] == [other_code(), pending]
    with refold.open(log.url, read_only=True) as reader:
        before = reader.rebuild()
    acknowledged |= append(log, history(rng, 40))
    # A record written with it is held; with a version whose observations have the same bytes, it is an observation.
    observation = said(f"{THING.name}/{rng.randrange(12)}", 1_000, extra=1)
    data = TypeVersion(pending, 0, 0).codec.encode_observation(observation)
    produce(log, log.partition_of(observation.entity), (observation.entity.encode(), data, [], ""))
    fold_all(log, tmp_path)
    (verdict,) = verdicts(log)
    assert verdict.reason == "held"
    assert "is pending" in verdict.detail
    check_whole(log, tmp_path, acknowledged)
    fold_all(log, tmp_path / "anew")
    check_whole(log, tmp_path / "anew", acknowledged)
    assert log.registry.versions(THING.name)[-1].definition == THING
    assert run(["verify", "--log", log.url]) == 0

    # The operator accepts it: a worker with the code activates it, and the record is retried.
    monkeypatch.setattr("refold_tests.histories.folded.refold_version", 3, raising=False)
    mine = other_code(str(code_of("refold_tests.histories:folded")["source"]), 3, extra=extra)
    put_definition(log, mine)
    assert log.registry.find(mine) is None
    fold_all(log, tmp_path)
    log.refresh()
    assert log.registry.newest(THING.name).definition == mine
    assert run(["deadletters", "retry", "--reason", "held", "--apply", "--wait", "0", "--log", log.url]) == 0
    fold_all(log, tmp_path)
    with refold.open(log.url, read_only=True) as reader:
        assert reader.state(observation.entity).fields["extra"] == 1
        monkeypatch.delattr("refold_tests.histories.folded.refold_version")
        assert reader.rebuild(before.cut).root == before.root


def test_activation_needs_both_of_its_records(log: KafkaLog, tmp_path: Path) -> None:
    """A process killed between the two has activated nothing, and a position without an authorisation is a hole."""
    append(log, [said(f"{THING.name}/a", 1)])
    fold_all(log, tmp_path)
    more = {"name": "more", "type": ["null", "long"], "refold.reducer": "latest"}
    later = parse({**THING.document, "fields": [*THING.document["fields"], more]})
    put_definition(log, later)
    (pending,) = log.registry.pending()
    producer = log.clients.producer()
    value = activation_value(Activation(pending.offset, 1))
    producer.produce(log.topics.manifests, key=activation_key(b"k" * 16), value=value, partition=MARKERS)
    producer.produce(log.topics.schemas, value=None, headers=[("refold-activation", b"s" * 16)], partition=0)
    assert producer.flush(60) == 0
    for _ in range(2):
        with opened(log.url) as other:
            assert [each.offset for each in other.registry.pending()] == [pending.offset]
    fold_all(log, tmp_path)
    log.refresh()
    assert log.registry.newest(THING.name).definition == later
    assert log.registry.pending() == []
