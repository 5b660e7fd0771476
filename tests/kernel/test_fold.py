"""The kernel's fold against Python's: the same rows, states, hashes, changes and errors, to the byte."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import UndecodableError
from refold.avro.ids import identify
from refold.avro.kernel import FoldedGroups, find_kernel
from refold.avro.observation import Observation, Source
from refold.avro.registry import Registry, TypeVersion
from refold.avro.shipped import shipped_types
from refold.streams.log.port import Record
from refold.streams.partitioner import placed
from refold.streams.table.checked import CheckedRecord
from refold.streams.table.folds import TypeFold
from refold_tests.both_folds import BothFolds, Databases, open_databases
from refold_tests.histories import EVERYTHING, LONGS, TEXTS, Regime, histories, random_history
from refold_tests.random_types import damaged_bytes, definitions, observations
from refold_tests.sample_types import THING


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """A database for each fold. Each example has entities of its own in them."""
    with open_databases(tmp_path_factory.mktemp("both")) as opened:
        yield opened


def both(databases: Databases, definition: TypeDefinition) -> tuple[BothFolds, TypeVersion]:
    """Two tables of the type."""
    registry = Registry()
    version = registry.add(definition, 0)
    return BothFolds(databases, registry), version


def folded_by_kernel(version: TypeVersion, records: list[CheckedRecord]) -> tuple[list[bytes], FoldedGroups]:
    """What the kernel makes of records of new entities of a type, and the keys of these."""
    kernel = find_kernel().kernel
    assert kernel is not None
    kept = kernel.given(records)
    assert kept is not None
    groups = kernel.grouped([kept])
    assert groups is not None
    keys = groups.keys()
    folder = TypeFold(version).native(kernel)
    found = groups.fold([folder], keys, [None] * len(keys), {0: records[-1].record.offset + 1}, None)
    assert found is not None
    return keys, found


_examples = count()


@given(data=st.data())
def test_any_type_folds_identically(databases: Databases, data: st.DataObject) -> None:
    definition, example = data.draw(definitions()), next(_examples)
    history = data.draw(st.lists(observations(definition, example), min_size=1, max_size=12))
    repeated = data.draw(st.lists(st.integers(0, len(history) - 1), max_size=6))
    tables, version = both(databases, definition)
    records = tables.records(version, [*history, *(history[place] for place in repeated)])
    sizes = st.lists(st.integers(1, 9), min_size=len(records), max_size=len(records))
    tables.fold_in_batches(records, data.draw(sizes))


NATIVE = tuple(name for name, spec in EVERYTHING.items() if spec.reducer != "custom")
"""The fields of THING that the kernel folds."""


@given(history=histories(size_max=20) | histories(size_max=20, fields=NATIVE), size=st.integers(1, 6))
@settings(max_examples=40)
def test_type_with_every_reducer_folds_identically(databases: Databases, history: list[Observation], size: int) -> None:
    tables, version = both(databases, THING)
    example = next(_examples)
    moved = [each._replace(entity=each.entity.replace("/", f"/{example}-")) for each in history]
    tables.fold_in_batches(tables.records(version, moved), [size] * len(moved))


def test_long_histories_of_every_reducer_fold_identically(databases: Databases) -> None:
    """Without custom reducers: with links, clears, retractions, and records that come late or again.

    In the quiet ones most records come in order and few retract: the kernel has to take most of these.
    """
    seed, taken, folded = int(os.environ["REFOLD_SEED"]), 0, 0
    print(f"seed {seed}")
    quiet = Regime(entities=20, sources=3, tick_chance=1.0, past_chance=0.02, late_chance=0.02, late_max=3,
                   copy_chance=0.05, clear_chance=0.1, retract_chance=0.005, unknown_chance=0.5, link_chance=0.2,
                   priority_chance=0.3)  # fmt: skip
    for number, regime in enumerate((None, None, None, quiet, quiet)):
        tables, version = both(databases, THING)
        history = []
        for each in random_history(seed + number, 300, regime):
            patch = {name: value for name, value in each.patch.items() if name in NATIVE}
            cleared = tuple(name for name in each.cleared if name in NATIVE)
            if each.link is not None or patch or cleared or each.retracts:
                entity = each.entity.replace("/", f"/long-{number}-")
                history.append(each._replace(entity=entity, patch=patch, cleared=cleared))
        tables.fold_in_batches(tables.records(version, history), [5] * len(history))
        if regime is quiet:
            taken, folded = taken + tables.native.writer.kernel_records, folded + len(history)
    assert taken > folded / 2


def sample(number: int, entity: str, patch: Mapping[str, Any], run: str = "run") -> Observation:
    """The number-th observation of a run."""
    source = Source("agent", run, str(number), "tool", number)
    return Observation(entity, 1_700_000_000_000_000 + number * 1000, source=source, patch=patch)


def test_kernel_folds_long_histories_identically(databases: Databases) -> None:
    """With checkpoints, many sources, and records that come late or again. The kernel has to take nearly all of it."""
    tables, version = both(databases, shipped_types()["tool_config"])
    made = []
    for number in range(1500):
        patch = {"rate_limit": number % 7, "tool": f"search-{number % 3}", "enabled": number % 2 == 0, "effect": "read",
                 "endpoint": "x" * (number % 500)}  # fmt: skip
        made.append(sample(number, f"tool_config/long-{number % 3}", patch, run=f"run-{number % 9}"))
    made[100:100] = made[40:44]  # again
    made[900:900] = made[915:918]  # early, so that those between come late
    tables.fold_in_batches(tables.records(version, made), [50] * 31)
    assert tables.native.writer.kernel_records > 0.9 * len(made)
    assert tables.replayed > 80
    assert tables.decided_batches == 31
    assert tables.decided.writer.kernel_records == tables.native.writer.kernel_records
    assert tables.python.writer.kernel_records == 0


def test_kernel_folds_records_that_only_the_timeline_identifies_as_repeats(databases: Databases) -> None:
    tables, version = both(databases, shipped_types()["tool_config"])
    entity = "tool_config/doubtful"
    made = [sample(number, entity, {"rate_limit": number, "tool": "search", "effect": "read"}) for number in range(60)]
    held_back = [made.pop(place) for place in (31, 22, 13)]
    tables.fold(tables.records(version, made))
    # Long known, late and new, and in order; one of the late ones comes twice.
    batch = [made[3], held_back[0], made[40], held_back[1], held_back[0], sample(60, entity, {"rate_limit": 60}),
             made[7], held_back[2]]  # fmt: skip
    tables.fold(tables.records(version, batch))
    assert tables.native.writer.kernel_records == len(made) + len(batch)
    assert tables.decided.writer.kernel_records == len(made) + len(batch)


def test_large_batch_folds_in_parts_identically(databases: Databases) -> None:
    """The kernel divides it among threads, with entities in doubt, repeats, and what is left to Python in each part."""
    tables, version = both(databases, shipped_types()["tool_config"])
    names = [f"tool_config/part-{number}" for number in range(1_500)]
    made = [[sample(step, name, {"rate_limit": step, "tool": name}, run=name) for step in range(5)] for name in names]
    tables.fold(tables.records(version, [each for own in made for each in (own[0], own[2])]))
    batch = [own[3] for own in made]
    batch += [own[1] for own in made[::7]]  # late: only the timeline shows that it is new
    batch += [own[0] for own in made[::11]]
    batch += [own[4]._replace(retracts=(identify(own[2]),)) for own in made[::13]]  # Python folds these entities
    tables.fold(tables.records(version, batch))
    by_python = sum(2 + (place % 7 == 0) + (place % 11 == 0) for place in range(0, len(names), 13))
    assert tables.native.writer.kernel_records == 2 * len(names) + len(batch) - by_python


def test_decided_batch_of_which_the_kernel_leaves_entities_folds_identically(databases: Databases) -> None:
    """Left are entities with a record of an earlier definition; of others only the timeline shows what is new."""
    registry = Registry()
    definition = shipped_types()["tool_config"]
    earlier = registry.add(definition, 0)
    fields = [*definition.document["fields"], {"name": "later", "type": "long", "refold.reducer": "latest"}]
    newest = registry.add(parse({**definition.document, "fields": fields}), 1)
    tables = BothFolds(databases, registry)
    chosen = random.Random(7)
    names = [f"tool_config/of-two-{number}" for number in range(40)]
    made = [[sample(step, name, {"rate_limit": step}, run=name) for step in range(30)] for name in names]
    tables.fold(tables.records(newest, [own[step] for step in range(28) if step != 5 for own in made]))
    batch = tables.records(newest, [own[28] for own in made])
    batch += tables.records(earlier, [own[29] for own in made[::3]])
    batch += tables.records(newest, [own[5] for own in made[::4]])  # late
    batch += tables.records(newest, [own[0] for own in made[::5]])  # known
    chosen.shuffle(batch)
    batch = [tables.record(each.observation, each.record.id, each.record.data) for each in batch if each.observation]
    tables.fold(batch)
    assert tables.decided_batches == 2
    by_python = sum(2 + (place % 4 == 0) + (place % 5 == 0) for place in range(0, len(names), 3))
    folded = tables.native.writer.kernel_records, tables.decided.writer.kernel_records
    assert folded == (27 * len(names) + len(batch) - by_python,) * 2


def test_rows_of_a_large_batch_are_sorted(databases: Databases) -> None:
    tables, version = both(databases, shipped_types()["tool_config"])
    made = [sample(number, f"tool_config/row-{number * 7919 % 3_001}", {"tool": "x"}) for number in range(3_000)]
    keys, found = folded_by_kernel(version, tables.records(version, made))
    (states, timeline, arrivals, ids, checkpoints), [(changes, numbers)], left, doubtful, count = found
    assert numbers == (len(made), len(made), 0)
    assert [key for key, _, _ in changes] == keys
    for rows in (states[::2], timeline[::2], arrivals[::2], ids):
        assert len(rows) == len(made)
        assert rows == sorted(rows)
    assert (checkpoints, left, doubtful, count) == ([], [], [], len(made))


NUMBERS: tuple[Any, ...] = (0, -1, 1, 2**31, 2**63, 2**64 - 1, 0.5, 1.0, float("nan"), float("inf"))
ODD: tuple[Any, ...] = (*NUMBERS, None, True, "", "a", "read", b"", b"x" * 48, b"y" * 60, [], {}, ["a"],
                        {"tool": ["a", 0, b"q" * 60]}, {b"k": 1})  # fmt: skip


def damaged(packed: bytes, chosen: random.Random) -> bytes:
    """A stored state with a few bytes changed, or with one of its parts replaced, taken out or doubled."""
    if chosen.random() < 0.4:
        return damaged_bytes(packed, chosen)
    tree = msgspec.msgpack.decode(packed, strict=False)
    plain = [each for each in tree if not isinstance(each, (list, dict))]
    part: Any = tree
    while True:
        keys = list(part) if isinstance(part, dict) else range(len(part))
        key = chosen.choice(keys)
        inner = part[key]
        if not (isinstance(inner, (list, dict)) and inner) or chosen.random() < 0.3:
            break
        part = inner
    fate = chosen.randrange(4)
    if isinstance(part, list) and fate == 0:
        part.insert(key, inner)
    elif fate == 1:
        del part[key]
    else:
        part[key] = chosen.choice(ODD) if fate == 2 else chosen.choice(plain)
    return msgspec.msgpack.encode(tree)


def test_damaged_states_are_judged_identically(databases: Databases, is_soak: bool) -> None:
    """A damaged state is folded, or refused with the same error."""
    seed = int(os.environ["REFOLD_SEED"])
    print(f"seed {seed}")
    chosen, numbers, entity = random.Random(seed), count(), "tool_config/damaged"
    tables, version = both(databases, shipped_types()["tool_config"])

    def batch(size: int) -> list[CheckedRecord]:
        patches = [{"rate_limit": chosen.choice(LONGS), "tool": chosen.choice(TEXTS), "effect": "read"}] * size
        made = [sample(next(numbers), entity, patch, f"run-{chosen.randrange(6)}") for patch in patches]
        return tables.records(version, made)

    tables.fold(batch(30))
    packed = tables.python.database.get("state", placed(entity))
    assert packed is not None
    before = tables.native.writer.kernel_records
    for _ in range(30_000 if is_soak else 1_500):
        tables.put_state(placed(entity), damaged(packed, chosen))
        tables.fold(batch(chosen.choice((1, 1, 2))))
    assert tables.native.writer.kernel_records > before  # some damage leaves a state that is one


def test_entity_that_is_left_to_python_has_no_rows(databases: Databases) -> None:
    """The kernel folds its first record before it meets one that it does not fold."""
    tables, version = both(databases, shipped_types()["tool_config"])
    names = [f"tool_config/left-{number}" for number in range(3)]
    late = sample(1, names[1], {"rate_limit": 1}, run="other")._replace(cleared=("tool",))
    history = [sample(2, names[0], {"rate_limit": 2}), sample(2, names[1], {"rate_limit": 2}), late,
               sample(2, names[2], {"rate_limit": 2})]  # fmt: skip
    _, found = folded_by_kernel(version, tables.records(version, history))
    (states, timeline, arrivals, ids, checkpoints), [(changes, numbers)], left, doubtful, count = found
    assert (left, doubtful, len(changes), numbers, count) == ([1], [], 2, (2, 2, 0), 2)
    assert (len(states), len(timeline), len(arrivals), len(ids), checkpoints) == (4, 4, 4, 2, [])
    of_entities = [key.partition(b"\0")[0].decode() for key in timeline[::2]]
    assert of_entities == [names[0], names[2]]


def test_damaged_records_are_folded_identically(databases: Databases, is_soak: bool) -> None:
    """What the kernel reads in a record's bytes is what Python reads; what Python refuses, it does not read."""
    seed = int(os.environ["REFOLD_SEED"])
    print(f"seed {seed}")
    chosen = random.Random(seed)
    # JSON is not checked again: it was when the record came in, and what is made up here never did.
    document = shipped_types()["tool_config"].document
    definition = parse({**document, "fields": [each for each in document["fields"] if "refold-json" not in str(each)]})
    tables, version = both(databases, definition)
    read = 0
    for number in range(60_000 if is_soak else 4_000):
        name = f"tool_config/record-{number}"
        patch = {"rate_limit": chosen.choice(LONGS), "tool": chosen.choice(TEXTS), "enabled": True, "effect": "read"}
        data = damaged_bytes(version.codec.encode_observation(sample(number, name, patch)), chosen, start=5)
        try:
            observation = version.codec.judged(data)
        except UndecodableError:
            record = CheckedRecord(Record(0, number, 0, name, bytes(32), data), None)
            assert folded_by_kernel(version, [record])[1][2] == [0], "the kernel folds it"
            continue
        tables.fold([tables.record(observation, identify(observation), data)])
        read += 1
    assert read
