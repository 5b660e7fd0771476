"""verify finds errors in each table, and says where: entity, field and place."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest

from refold.avro.errors import CorruptionError
from refold.avro.ids import identify
from refold.avro.observation import Source
from refold.reducers.entity import Entity, pack, unpack
from refold.streams.change_codec import ChangeCodec
from refold.streams.change_reader import ChangeReader
from refold.streams.changes import Change
from refold.streams.log.file import records
from refold.streams.log.port import Mismatch
from refold.streams.log.stored_markers import marker_key
from refold.streams.partitioner import placed
from refold.streams.rocks.families import Family
from refold.streams.table import keys
from refold.streams.verify.report import VerifyReport
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.damaged import Damaged, with_changed_end
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take
from refold_tests.sample_types import THING, A, defined, document, said

pytestmark = pytest.mark.outside

B = f"{A}b"
TABLES: tuple[Family, ...] = ("observations", "state", "timeline", "arrivals", "ids", "changes")


@pytest.fixture(autouse=True)
def _kernel_confirms_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel, Python checks no entity of its own accord, so these tests are of what the kernel confirms."""
    monkeypatch.setattr("refold.streams.verify.share.some_entities", lambda records: lambda name: False)


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    """A0 (last 0, attrs), B0 to B2, A1 (late, so A is reopened: "log" folds in order), A0 again."""
    clock = FileClock(tmp_path / "clock")
    first = said(A, 1, last=7, attrs={"k": "v"}, log=[1])._replace(causes=(bytes(32),))
    every = [[first], [said(B, 0, total=1)], [said(B, 1, total=2), said(B, 2, last=3)], [said(A, 0, log=[2])], [first]]
    with open_log(tmp_path) as log:
        for later, some in enumerate(every):
            clock.set(BEGIN_MS + later)
            take(log, some)
        log.mark("m")
        damage = Damaged(log)
        assert damage.found() == set()
        # The first partition's offsets: A 0, A 1, A 2 (a repeat), in B's: 0, 1, 2.
        assert [log.port.partition_of(name) for name in (A, B)] == [PA, PB]
        yield damage


PA, PB = 0, 1


def state(damage: Damaged, name: str, change: Callable[[Entity], object]) -> None:
    def changed(value: bytes) -> bytes:
        entity = unpack(name, value)
        change(entity)
        return pack(entity)

    damage.change("state", placed(name), changed)


# States


def test_wrong_value_names_its_field(damaged: Damaged) -> None:
    state(damaged, A, lambda entity: entity.cells["last"].__setitem__(0, 8))
    assert damaged.found() == {("state", A, "last")}


def test_value_of_another_type_is_a_mismatch(damaged: Damaged) -> None:
    state(damaged, A, lambda entity: entity.cells["last"].__setitem__(0, 7.0))
    assert damaged.found() == {("state", A, "last")}


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("version", lambda entity: setattr(entity, "version", 9)),
        ("state_hash", lambda entity: setattr(entity, "state_hash", bytes(32))),
        ("clears", lambda entity: entity.clears.__setitem__("last", b"q")),
        ("links", lambda entity: entity.links.__setitem__(("uses", B), [True, None, None, 0, bytes(60)])),
        ("dedup_state", lambda entity: setattr(entity.dedup_state, "greatest", b"\xff")),
        ("dedup_state", lambda entity: setattr(entity.dedup_state, "floor", b"\xff")),
        ("dedup_state", lambda entity: entity.dedup_state.sources.clear()),
        ("dedup_state", lambda entity: entity.dedup_state.last_ids.pop()),
        ("dedup_state", lambda entity: setattr(entity.dedup_state, "pending", {bytes(32)})),
        ("dedup_state", lambda entity: setattr(entity.dedup_state, "lowest_offset", 1)),
        ("dedup_state", lambda entity: setattr(entity.dedup_state, "highest_offset", 0)),
    ],
)
def test_wrong_part_of_a_state_is_named(damaged: Damaged, part: str, change: Callable[[Entity], object]) -> None:
    state(damaged, A, change)
    assert damaged.found() == {("state", A, "")}
    assert f"another {part} than" in damaged.problems()


def test_missing_extra_and_unreadable_states_are_named(damaged: Damaged) -> None:
    packed = damaged.database.get("state", placed(A))
    damaged.put("state", placed(f"{A}c"), packed)
    damaged.put("state", placed(B), None)
    damaged.put("state", placed(A), b"\xc1junk")
    assert damaged.found() == {("state", name, "") for name in (A, B, f"{A}c")}
    assert all(text in damaged.problems() for text in ("missing", "cannot be read", "no observation"))


def test_bytes_after_a_state_are_found(damaged: Damaged) -> None:
    damaged.change("state", placed(A), lambda value: value + b"\0")
    assert damaged.found() == {("state", A, "")}


# Records


def record(damage: Damaged, partition: int, offset: int, **parts: Any) -> None:
    key = keys.position_key(partition, offset)
    damage.change("observations", key, lambda value: keys.record_value(keys.record_of(key, value)._replace(**parts)))


def test_missing_record_is_named(damaged: Damaged) -> None:
    damaged.put("observations", keys.position_key(PB, 1), None)
    assert {place for place, _, _ in damaged.found()} >= {f"observations {PB}=1"}


def test_missing_last_record_is_named(damaged: Damaged) -> None:
    damaged.put("observations", keys.position_key(PA, 2), None)
    assert damaged.found() == {(f"observations {PA}=2", "", "")}


def test_extra_record_is_named(damaged: Damaged) -> None:
    damaged.put(
        "observations", keys.position_key(PA, 3), damaged.database.get("observations", keys.position_key(PA, 2))
    )
    assert damaged.found() == {(f"observations {PA}=3", "", "")}


def test_time_that_falls_is_named(damaged: Damaged) -> None:
    record(damaged, PA, 2, recorded_at=BEGIN_MS - 1)
    assert damaged.found() == {(f"observations {PA}=2", A, "")}


def test_another_time_is_found_by_the_indexes(damaged: Damaged) -> None:
    record(damaged, PB, 1, recorded_at=BEGIN_MS + 1)
    assert damaged.found() >= {("timeline", B, "")}


def test_id_of_other_content_is_named(damaged: Damaged) -> None:
    record(damaged, PB, 1, id=bytes(32))
    assert (f"observations {PB}=1", B, "") in damaged.found()


def test_record_under_another_entitys_name_is_named(damaged: Damaged) -> None:
    record(damaged, PB, 1, entity=A)
    assert (f"observations {PB}=1", A, "") in damaged.found()
    assert f"misplaced: it is an observation of {B}" in damaged.problems()


def test_bytes_that_are_no_observation_are_named(damaged: Damaged) -> None:
    record(damaged, PB, 1, data=b"\0\0\0\0\1x")
    assert (f"observations {PB}=1", B, "") in damaged.found()
    assert "no observation: no schema with id 1" in damaged.problems()


def test_truncated_record_is_named(damaged: Damaged) -> None:
    damaged.put("observations", keys.position_key(PB, 1), b"short")
    assert f"the observation {PB}=1 cannot be read" in damaged.problems()


# Indexes


def first_key(damage: Damaged, family: Family, name: str) -> bytes:
    prefix = keys.entity_prefix(name)
    return next(key for key, _ in damage.database.scan(family, prefix, keys.after_prefix(prefix)))


@pytest.mark.parametrize("family", ["timeline", "arrivals"])
def test_missing_or_extra_entry_names_the_entity(damaged: Damaged, family: Family) -> None:
    key = first_key(damaged, family, B)
    value = damaged.database.get(family, key)
    damaged.put(family, key, None)
    assert (family, B, "") in damaged.found()
    damaged.put(family, key, value)
    other = bytearray(key)
    other[-1] ^= 0x40  # the last byte of an id, or of an offset
    damaged.put(family, bytes(other), value)
    assert (family, B, "") in damaged.found()


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("timeline", lambda value: value[:15] + bytes([value[15] ^ 1]) + value[16:]),
        ("timeline", lambda value: value[:7] + bytes([value[7] ^ 1]) + value[8:]),
        ("timeline", with_changed_end),
        ("timeline", lambda value: value[:9]),
        ("timeline", lambda value: b""),
        ("arrivals", lambda value: value[:7] + bytes([value[7] ^ 1]) + value[8:]),
        ("arrivals", with_changed_end),
        ("arrivals", lambda value: b"x"),
    ],
)
def test_wrong_entry_names_the_entity(damaged: Damaged, family: Family, change: Callable[[bytes], bytes]) -> None:
    damaged.change(family, first_key(damaged, family, B), change)
    assert (family, B, "") in damaged.found()


def test_missing_extra_or_nonempty_id_is_named(damaged: Damaged) -> None:
    entry = keys.id_key(identify(said(B, 1, total=2)), PB, 1)
    damaged.put("ids", entry, None)
    assert ("ids", B, "") in damaged.found()
    damaged.put("ids", entry, b"x")
    assert ("ids", B, "") in damaged.found()
    damaged.put("ids", entry, b"")
    damaged.put("ids", keys.id_key(bytes(32), PB, 1), b"")
    assert damaged.found() == {("ids", "", "")}
    assert f"an entry for {PB}=1, which is no such observation" in damaged.problems()


# Changes


def changed(damage: Damaged, partition: int, offset: int, change: Callable[[Change], Change]) -> None:
    reader, codec = ChangeReader(damage.port), ChangeCodec(damage.port.registry.versions(THING.name)[0])
    damage.change(
        "changes", keys.position_key(partition, offset), lambda value: codec.encode(change(reader.decode(value)))
    )


def stepped(**parts: Any) -> Callable[[Change], Change]:
    """The change with its last step changed."""
    return lambda change: change._replace(steps=[*change.steps[:-1], change.steps[-1]._replace(**parts)])


def mutated(**parts: Any) -> Callable[[Change], Change]:
    """The change with its last mutation changed."""

    def change(given: Change) -> Change:
        *before, last = given.steps[-1].mutations
        return stepped(mutations=[*before, last._replace(**parts)])(given)

    return change


@pytest.mark.parametrize("change", [mutated(new=4), mutated(old=4), mutated(observation=bytes(32)), mutated(op="clear"),
                                    stepped(mutations=[])])  # fmt: skip
def test_wrong_mutation_names_its_field(damaged: Damaged, change: Callable[[Change], Change]) -> None:
    changed(damaged, PB, 1, change)  # v2 to v3 of B: total, then last
    assert damaged.found() == {(f"changes {PB}=1", B, "last")}


@pytest.mark.parametrize(
    "change",
    [
        stepped(offset=0),
        stepped(version=2),
        stepped(observation=bytes(32)),
        stepped(observed_at=1),
        stepped(recorded_at=1),
        stepped(source=Source("other")),
        lambda change: change._replace(steps=change.steps[1:]),
        lambda change: change._replace(steps=[]),
        lambda change: change._replace(redefined=True),
        lambda change: change._replace(hash_before=bytes(32)),
        lambda change: change._replace(hash_after=bytes(32)),
        lambda change: change._replace(from_version=0),
        lambda change: change._replace(to_version=2),
        lambda change: change._replace(to_version=4),
        lambda change: change._replace(to_version=2**62),
        lambda change: change._replace(from_version=-1),
        lambda change: change._replace(definition=bytes(32)),
        lambda change: change._replace(through=1),
        lambda change: change._replace(through=4),
        lambda change: change._replace(through=2**62),
        lambda change: change._replace(entity=A),
        lambda change: change._replace(entity=f"{B}none"),
    ],
)
def test_wrong_part_of_a_change_is_named(damaged: Damaged, change: Callable[[Change], Change]) -> None:
    changed(damaged, PB, 1, change)
    assert f"changes {PB}=1" in {place for place, _, _ in damaged.found()}


def test_missing_repeated_or_unreadable_changes_are_named(damaged: Damaged) -> None:
    key = keys.position_key(PB, 1)
    value = damaged.database.get("changes", key)
    damaged.put("changes", keys.position_key(PB, 2), value)
    assert (f"changes {PB}=2", B, "") in damaged.found()
    damaged.put("changes", keys.position_key(PB, 2), None)
    damaged.put("changes", key, None)
    assert damaged.found() == {(f"changes {PB}=1", "", ""), ("changes", B, "")}
    damaged.put("changes", key, b"\0\0\0\0\0")
    assert (f"changes {PB}=1", "", "") in damaged.found()
    damaged.put("changes", keys.position_key(PB, 0), None)
    damaged.put("changes", key, value)
    assert damaged.found() >= {(f"changes {PB}=0", "", ""), (f"changes {PB}=1", B, "")}


def test_change_by_code_that_is_gone_is_checked_against_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old definitions' custom code may be missing; its results stay."""
    greater = defined(document(folded={"type": "long", "refold.reducer": "max"}))
    with open_log(tmp_path) as log:
        take(log, [said(A, 0, folded=3), said(A, 1, folded=4)])
        log.register(greater)
        take(log, [said(A, 2, folded=2)], greater)
        assert log.verify().mismatches == []
        monkeypatch.setattr("refold_tests.histories.folded", lambda value, assertion: 0)
        monkeypatch.setattr("refold_tests.histories.folded.refold_version", 2, raising=False)
        damage = Damaged(log)
        assert damage.found() == set()
        damage.change("changes", keys.position_key(log.port.partition_of(A), 1), lambda value: value[:-9] + b"x" * 9)
        assert f"changes {log.port.partition_of(A)}=1" in {place for place, _, _ in damage.found()}


# The rest


def test_repeat_encoded_by_another_version_is_no_mismatch(tmp_path: Path) -> None:
    newer = defined(document(more={"type": "long", "refold.reducer": "latest"}))
    with open_log(tmp_path) as log:
        take(log, [said(A, 0), said(A, 1)])
        take(log, [said(A, 0), said(A, 2)], newer)
        take(log, [said(A, 2), said(A, 1)])
        assert log.verify().mismatches == []
        assert log.state(A).version == 3


def test_marker_at_no_point_is_named(damaged: Damaged) -> None:
    here = damaged.log.point().cut
    for cut in ("cut:1.x", str(replace(here, log_id=bytes(16))), str(replace(here, offsets={0: 9, 1: 9}))):
        damaged.put("manifests", marker_key("m"), cbor2.dumps([cut, 1]))
        assert damaged.found() == {("markers @m", "", "")}


def test_missing_or_damaged_contents_are_named(tmp_path: Path) -> None:
    body = {"type": ["null", "string", "refold.Blob"], "refold.reducer": "latest", "refold.inline": 8}
    large = defined(document("large", body=body))
    with open_log(tmp_path, types=[large]) as log:
        log.observe("large/a", {"body": "x" * 100})
        log.flush()
        assert log.verify().ok
        (content,) = [each for each in (tmp_path / "log" / "blobs").rglob("*") if each.is_file()]
        content.write_text("y")
        assert {(each.place, each.entity) for each in log.verify().mismatches} == {(f"blobs {content.name}", "large/a")}
        content.unlink()
        assert [each.problem for each in log.verify().mismatches] == ["missing"]


def test_wrong_progress_is_found(damaged: Damaged) -> None:
    true = damaged.database.get("meta", records.PROGRESS)
    assert true is not None
    observations, changes, *rest = cbor2.loads(true)
    for other in (
        [{**observations, 0: 2}, changes, *rest],
        [{**observations, 0: 4}, changes, *rest],
        [observations, {**changes, 0: 0}, *rest],
        [observations, {**changes, 0: 9}, *rest],
    ):
        damaged.put("meta", records.PROGRESS, cbor2.dumps(other))
        assert damaged.found()


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("meta", records.LOG, b"\xff"),
        ("meta", records.LOG, cbor2.dumps([1])),
        ("meta", records.PROGRESS, b"\xff"),
        ("meta", records.PROGRESS, cbor2.dumps([1])),
        ("schemas", records.schema_key(0), b"short"),
        ("schemas", records.schema_key(0), bytes(8) + b"{}"),
        ("schemas", records.schema_key(0), bytes(8) + b"\xff"),
    ],
)
def test_log_that_cannot_be_opened_names_the_damage(damaged: Damaged, family: Family, key: bytes, value: bytes) -> None:
    damaged.put(family, key, value)
    damaged.log.close()
    with pytest.raises(CorruptionError, match="cannot be read"), contextlib.closing(open_log(damaged.port.path.parent)):
        pass


def test_mismatches_are_bounded(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        take(log, [said(f"{A}{number}", number) for number in range(1_200)])
        damage = Damaged(log)
        for key, _ in damage.rows("state"):
            damage.put("state", key, b"x")
        verdict = log.verify()
        assert not verdict.ok
        assert len(verdict.mismatches) == 1_000


@pytest.mark.parametrize("family", TABLES)
def test_changed_row_is_always_found(tmp_path: Path, seed: int, family: Family) -> None:
    """Yield any row of any table with a flipped bit in its key or value, truncated, lengthened, removed or moved."""
    rng = random.Random(f"{seed}{family}")
    print(f"seed {seed}")
    clock = FileClock(tmp_path / "clock")
    with open_log(tmp_path) as log:
        observations = random_history(seed, 60)
        for number in range(0, len(observations), 5):
            clock.set(BEGIN_MS + 2 * number)
            take(log, observations[number : number + 5])
        damage = Damaged(log)
        rows = damage.rows(family)
        every = [each for partition, end in log.port.ends().items() for each in log.port.read(partition, 0, end)]
        repeats = {(each.partition, each.offset) for each in every if log.port.find(each.id) != each}

        def is_repeat_still(key: bytes, value: bytes) -> bool:
            """Return whether a repeat refers to another record with this value: which one is stored nowhere else."""
            if family != "observations" or keys.POSITION.unpack(key) not in repeats:
                return False
            partition, offset = keys.POSITION.unpack(key)
            first = log.port.find(keys.record_of(key, value).id)
            return first is not None and first.partition == partition and first.offset < offset

        for _ in range(25):
            key, value = rng.choice(rows)
            at, bit = rng.randrange(len(value) + len(key)), 1 << rng.randrange(8)
            kind = rng.choice(("turn", "turn", "turn", "cut", "longer", "remove", "another"))
            if family == "observations" and keys.POSITION.unpack(key) in repeats and kind == "turn" and at < 8:
                continue  # a repeat's time of recording is stored nowhere else, and changes no state
            if kind == "turn" and at < len(value):
                damage.put(family, key, value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :])
            elif kind == "turn":
                at -= len(value)
                damage.put(family, key, None)
                damage.put(family, key[:at] + bytes([key[at] ^ bit]) + key[at + 1 :], value)
            elif kind == "cut" and value:
                damage.put(family, key, value[: rng.randrange(len(value))])
            elif kind == "longer":
                damage.put(family, key, value + bytes([rng.randrange(256)]))
            elif kind == "another" and (
                others := [each for _, each in rows if each != value and not is_repeat_still(key, each)]
            ):
                damage.put(family, key, rng.choice(others))
            else:
                damage.put(family, key, None)
            verdict = log.verify()
            assert not verdict.ok, (kind, key, value, at, bit)
            for each, _ in damage.rows(family):
                damage.put(family, each, None)
            for row in rows:
                damage.put(family, *row)
        assert log.verify().mismatches == []


def test_report_is_ok_exactly_without_mismatches() -> None:
    verdict = VerifyReport(cut=None)  # type: ignore[arg-type]
    assert verdict.ok
    verdict.add(iter([Mismatch("p", "x")]))

    def failing() -> Iterator[Mismatch]:
        yield Mismatch("q", "y")
        raise CorruptionError("bad bytes")

    verdict.add(failing())
    assert [(each.place, each.problem) for each in verdict.mismatches] == [
        ("p", "x"),
        ("q", "y"),
        ("storage", "bad bytes"),
    ]
    assert not verdict.ok
