"""The past, asked for in every way, against the naive reference: states, history, differences, changes and causes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.avro.errors import InputError, NotAnswerable, UnknownEntity
from refold.avro.ids import identify
from refold.avro.observation import Link, Observation, Source
from refold.reducers.cells import Mutation
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.mutations import Row, Shown
from refold.streams.view import StateView
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.histories import ENTITIES, random_history
from refold_tests.opening import open_log, take
from refold_tests.reference import (
    Replayed,
    apply_mutations,
    encode,
    reference_conflicts,
    reference_hash,
    reference_mutations,
    reference_root,
    reference_state,
    reference_true_at,
    replayed_fields,
    replayed_links,
)
from refold_tests.things import NAMES, OTHER, THING, A, defined, document, reference_definition, said

DEFINITION = reference_definition(THING)
Offsets = list[tuple[int, Observation]]


def logged(log: Log, observations: Sequence[Observation], seed: int) -> None:
    """Record in flushes of random size, so that changes hold from one step to many."""
    rng = random.Random(seed)
    done = 0
    while done < len(observations):
        size = rng.choice((1, 2, 9))
        take(log, observations[done : done + size])
        done += size


def records(log: Log) -> dict[int, Offsets]:
    """By partition, every record as (offset, observation)."""
    return {
        partition: [(each.offset, log.port.registry.decode(each.data)) for each in log.port.read(partition, 0, end)]
        for partition, end in log.port.ends().items()
    }


def below(every: dict[int, Offsets], offsets: Iterable[tuple[int, int]]) -> Offsets:
    """The records below next offsets, with entities' order kept."""
    return [each for partition, end in offsets for each in every[partition][:end]]


def names(log: Offsets) -> set[str]:
    return {observation.entity for _, observation in log}


def every_cut(log: Log) -> Iterator[tuple[Cut, Offsets]]:
    """Each combination of next offsets of a log of two partitions, and what stands below it."""
    every = records(log)
    for first in range(len(every[0]) + 1):
        for second in range(len(every[1]) + 1):
            cut = log.point(f"offset:0={first},1={second}").cut
            yield cut, below(every, cut.offsets.items())


def some_cuts(log: Log, seed: int, count: int) -> list[tuple[Cut, Offsets]]:
    """The begin, the end and random points between."""
    rng, every, ends = random.Random(seed), records(log), log.port.ends()
    found = []
    for number in range(count):
        offsets = {partition: rng.randint(0, end) for partition, end in ends.items()}
        offsets = dict.fromkeys(ends, 0) if number == 0 else dict(ends) if number == 1 else offsets
        cut = log.point("offset:" + ",".join(f"{partition}={end}" for partition, end in offsets.items())).cut
        found.append((cut, below(every, cut.offsets.items())))
    return found


def assert_is(view: StateView, expected: dict[str, dict[str, Any]]) -> None:
    """The view holds exactly these states."""
    hashes = {name: reference_hash(state) for name, state in expected.items()}
    assert view.entity_hashes() == hashes
    assert view.root == reference_root(hashes).hex()
    assert view.observations == sum(state["version"] for state in expected.values())
    assert list(view) == sorted(expected)
    assert len(view) == len(expected)


def states(log: Offsets) -> dict[str, dict[str, Any]]:
    return {name: reference_state(DEFINITION, name, log) for name in names(log)}


# Rebuilding


@pytest.mark.parametrize("number", range(4))
def test_a_rebuild_is_the_fold_of_what_stands_below_at_every_offset(tmp_path: Path, seed: int, number: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 22), seed)
        for cut, expected in every_cut(log):
            view = log.rebuild(cut)
            assert view.cut == cut
            assert_is(view, states(expected))


@pytest.mark.parametrize("number", range(4))
def test_a_rebuild_of_a_longer_log(tmp_path: Path, seed: int, number: int) -> None:
    with open_log(tmp_path, partitions=8) as log:
        logged(log, random_history(seed + number, 250), seed)
        for cut, expected in some_cuts(log, seed, 8):
            assert_is(log.rebuild(cut), states(expected))
        verdict = log.verify()
        assert verdict.mismatches == []
        assert verdict.root == log.rebuild().root
        assert (verdict.observations, verdict.entities) == (log.rebuild().observations, len(log.rebuild()))


@pytest.mark.parametrize("number", range(3))
def test_true_at_is_the_fold_of_what_was_observed_by_then_under_every_retraction(
    tmp_path: Path, seed: int, number: int
) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 60), seed)
        for cut, expected in some_cuts(log, seed, 4):
            times = {each.observed_at for _, each in expected}
            for time in [min(times, default=0) - 1, *sorted(times)]:
                found = {name: reference_true_at(DEFINITION, name, expected, time) for name in names(expected)}
                true = {name: state for name, state in found.items() if state is not None}
                assert_is(log.rebuild(cut.until(time)), true)
                for name in names(expected):
                    if name in true:
                        assert log.state(name, cut.until(time)).state_hash == reference_hash(true[name]).hex()
                    else:
                        with pytest.raises(NotAnswerable):
                            log.state(name, cut.until(time))


def test_the_root_does_not_depend_on_partitions_order_or_repeats(tmp_path: Path, seed: int) -> None:
    observations = random_history(seed, 150)
    shuffled = [*observations, *observations[:50]]
    random.Random(seed).shuffle(shuffled)
    roots = set()
    for partitions, given in ((1, observations), (2, shuffled), (64, observations)):
        (tmp_path / str(partitions)).mkdir()
        with open_log(tmp_path / str(partitions), partitions=partitions) as log:
            logged(log, given, seed)
            roots.add((log.rebuild().root, log.rebuild().observations))
    assert len(roots) == 1


def test_entities_that_are_set_aside_and_packed_away_come_back(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.streams.rebuild.HELD", 2)
    rng = random.Random(seed)
    observations = [said(f"{A}{rng.randrange(40)}", rng.randrange(200)) for _ in range(400)]
    with open_log(tmp_path) as log:
        logged(log, observations, seed)
        view = log.rebuild()
        assert_is(view, states(list(enumerate(observations))))
        source = view.source
        assert (source["snapshot_epochs"], source["replayed"]) == ({}, 400)
        assert source["scanned"] in {0, 400}


def test_a_rebuild_is_still_while_others_write(tmp_path: Path, seed: int) -> None:
    observations = random_history(seed, 120)
    with open_log(tmp_path) as log, open_log(tmp_path) as remote, open_log(tmp_path, read_only=True) as reader:
        logged(log, observations[:60], seed)
        cut = log.point().cut
        expected = log.rebuild(cut)
        for start in range(60, len(observations), 20):
            take(remote, observations[start : start + 20])
            for each in (log, remote, reader):
                view = each.rebuild(cut)
                assert (view.root, view.observations) == (expected.root, expected.observations)
        assert len({each.rebuild().root for each in (log, remote, reader)}) == 1
        assert_is(reader.rebuild(), states(list(enumerate(observations))))


def test_each_cut_is_folded_by_the_definitions_below_it(tmp_path: Path) -> None:
    clock = FileClock(tmp_path / "clock")
    greatest = defined(
        document(last={"type": "long", "refold.reducer": "max"}, more={"type": "long", "refold.reducer": "sum"})
    )
    with open_log(tmp_path) as log:
        take(log, [said(A, 0, last=9), said(A, 1, last=3)])
        before = log.point().cut
        clock.set(BEGIN_MS + 10)
        log.register(greatest)
        between = log.point().cut
        clock.set(BEGIN_MS + 20)
        take(log, [said(A, 2, last=5, more=4), said(A, 3, more=1)], greatest)
        values = [
            (log.rebuild(cut)[A].fields, log.state(A, cut).fields)
            for cut in (before, between, None, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.01Z", "v2", "v3")
            if not isinstance(cut, str) or not cut.startswith("v")
        ]
        fields = [{"last": 3}, {"last": 9}, {"last": 9, "more": 5}, {"last": 3}, {"last": 9}]
        assert values == [(each, each) for each in fields]
        assert [row.new for row in log.history(A) if row.field == "last"] == [9]
        assert [row.new for row in log.history(A, until=before)] == [9, 3]
        assert log.diff(before, between) == []
        assert [(row.field, row.old, row.new) for row in log.diff(before)] == [("more", None, 5)]
        assert log.verify().mismatches == []


# History and differences


def as_mutation(row: Row) -> dict[str, Any]:
    """A row in the form of the reference."""
    names_of = ("offset", "version", "field", "op", "key", "old", "new")
    ids = {"observation": bytes.fromhex(row.observation), "by": bytes.fromhex(row.by)}
    return {**{name: getattr(row, name) for name in names_of}, **ids}


def in_order(mutations: Iterable[dict[str, Any]]) -> list[bytes]:
    """Within one version the order is not promised."""
    return sorted(encode(each) for each in mutations)


@pytest.mark.parametrize("number", range(3))
def test_history_is_the_mutations_of_the_reference(tmp_path: Path, seed: int, number: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 80), seed)
        for cut, expected in some_cuts(log, seed, 6):
            for name in names(expected):
                rows = log.history(name, until=cut)
                assert [row.version for row in rows] == sorted(row.version for row in rows)
                assert in_order(map(as_mutation, rows)) == in_order(reference_mutations(DEFINITION, name, expected))
                for row in rows:
                    record = log.port.record_at(row.partition, row.offset)
                    assert record is not None
                    statement = log.port.registry.decode(record.data)
                    assert (record.id.hex(), record.recorded_at) == (row.by, row.recorded_at)
                    assert (statement.observed_at, statement.source) == (row.observed_at, row.source)


def test_history_is_taken_after_one_point_and_up_to_another(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed, 60), seed)
        cuts = [cut for cut, _ in some_cuts(log, seed, 8)]
        for name in names(below(records(log), log.port.ends().items())):
            partition = log.port.partition_of(name)
            whole = log.history(name)
            versions = log.state(name).version
            for version in range(1, versions + 1):
                assert log.history(name, until=f"v{version}") == [row for row in whole if row.version <= version]
                assert log.history(name, since=f"v{version}") == [row for row in whole if row.version > version]
            for since in cuts:
                rows = log.history(name, since=since)
                assert rows == [row for row in whole if row.offset >= since.offsets[partition]]
            for time in sorted({row.observed_at for row in whole}):
                until = log.point().cut.until(time)
                assert log.history(name, until=until) == [row for row in whole if row.observed_at <= time]
                assert log.history(name, since=until) == [row for row in whole if row.observed_at > time]


def replayed(mutations: Iterable[dict[str, Any]], cut: Cut, partition: int) -> Replayed:
    return apply_mutations(DEFINITION, {}, [each for each in mutations if each["offset"] < cut.offsets[partition]])


@pytest.mark.parametrize("number", range(3))
def test_a_difference_leads_from_one_state_to_the_other(tmp_path: Path, seed: int, number: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 60), seed)
        every = below(records(log), log.port.ends().items())
        mutations = {name: reference_mutations(DEFINITION, name, every) for name in names(every)}
        cuts = some_cuts(log, seed, 7)
        for a, before in cuts:
            for b, after in cuts:
                rows = log.diff(a, b)
                differing = {row.entity for row in rows}
                for name in names(before) | names(after):
                    own = [as_mutation(row) for row in rows if row.entity == name]
                    partition = log.port.partition_of(name)
                    start = replayed(mutations[name], a, partition)
                    end = replayed(mutations[name], b, partition)
                    reached = apply_mutations(DEFINITION, start, own)
                    assert encode(replayed_fields(DEFINITION, reached)) == encode(replayed_fields(DEFINITION, end))
                    assert encode(replayed_links(reached)) == encode(replayed_links(end))
                    assert [as_mutation(row) for row in log.diff(a, b, name)] == own
                assert differing <= names(before) | names(after)


def test_a_difference_of_observed_times(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed, 60), seed)
        every = below(records(log), log.port.ends().items())
        end = log.point().cut
        times = sorted({each.observed_at for _, each in every})
        for early, late in ((times[0], times[-1]), (times[len(times) // 2], times[-1]), (times[-1], times[0])):
            rows = log.diff(end.until(early), end.until(late))
            for name in names(every):
                sides = []
                for time in (early, late):
                    state = reference_true_at(DEFINITION, name, every, time)
                    sides.append({} if state is None else state["fields"])
                changed = {field for field in sides[0].keys() | sides[1].keys()
                           if encode(sides[0].get(field)) != encode(sides[1].get(field))}  # fmt: skip
                found = {row.field for row in rows if row.entity == name} - {"links"}
                # An element of append that is held by another observation differs, though the value does not.
                assert changed <= found
                assert found - changed <= {"log"}


# Changes


def from_change(shown: Shown, mutation: Mutation) -> dict[str, Any]:
    return {
        "field": mutation.field,
        "op": mutation.op,
        "key": shown.key(mutation.key),
        "old": shown.value(mutation.field, mutation.old),
        "new": shown.value(mutation.field, mutation.new),
    }


@pytest.mark.parametrize("number", range(2))
def test_changes_from_every_cut_lead_to_the_end(tmp_path: Path, seed: int, number: int) -> None:
    shown = Shown(THING)
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 26), seed)
        end = log.rebuild()
        every = below(records(log), log.port.ends().items())
        mutations = {name: reference_mutations(DEFINITION, name, every) for name in names(every)}
        for cut, _ in every_cut(log):
            view = log.rebuild(cut)
            state = {name: (view[name].version, view[name].state_hash) for name in view}
            reached = {name: replayed(mutations[name], cut, log.port.partition_of(name)) for name in names(every)}
            for change in log.changes(cut):
                name = change.entity
                before = None if change.hash_before is None else change.hash_before.hex()
                assert state.get(name, (0, None)) == (change.from_version, before)
                state[name] = (change.to_version, change.hash_after.hex())
                steps = range(change.from_version + 1, change.to_version + 1)
                assert [step.version for step in change.steps] == list(steps)
                for step in change.steps:
                    assert step.offset >= cut.offsets[log.port.partition_of(name)]
                    made = [from_change(shown, each) for each in step.mutations]
                    reached[name] = apply_mutations(DEFINITION, reached[name], made)
            assert state == {name: (end[name].version, end[name].state_hash) for name in end}
            for name in end:
                assert encode(replayed_fields(DEFINITION, reached[name])) == encode(dict(end[name].tree["fields"]))


def test_changes_that_are_taken_up_while_more_are_made_end(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        take(log, [said(A, 0), said(f"{A}b", 1)])
        seen = []
        for change in log.changes():
            seen.append(change.entity)
            take(log, [said(A, 100 + len(seen))])
        assert sorted(seen) == [A, f"{A}b"]
        assert len(list(log.changes())) == 4


def test_changes_are_followed_live_by_any_process(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path) as remote, open_log(tmp_path, read_only=True) as reader:
        take(log, [said(A, 0)])
        feeds = [each.changes(live=True, poll_s=0.01) for each in (log, remote, reader)]
        for number in range(1, 6):
            assert [next(feed).to_version for feed in feeds] == [number] * 3
            take((log, remote)[number % 2], [said(A, number)])
        for feed in feeds:
            assert isinstance(feed, Iterator)
            with contextlib.closing(feed):  # type: ignore[type-var]
                pass


# Why


@pytest.mark.parametrize("number", range(3))
def test_why_reaches_every_cause(tmp_path: Path, seed: int, number: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 60), seed)
        for cut, expected in some_cuts(log, seed, 4):
            known = {identify(each): each for _, each in expected}
            view = log.rebuild(cut)
            for name in view:
                entity = view[name]
                for field in entity.fields:
                    holders = entity.held_by(field)
                    assert set(holders) == holders_of(expected, name, field)
                    chain = entity.why(field)
                    assert [bytes.fromhex(link.observation) for link in chain[: len(holders)]] == holders
                    assert {bytes.fromhex(link.observation) for link in chain} == closure(holders, known)
                    assert [link.depth for link in chain] == sorted(link.depth for link in chain)
                    for link in chain:
                        statement = known.get(bytes.fromhex(link.observation))
                        assert link.statement == statement
                        if statement is None:
                            assert (link.position, link.recorded_at, link.causes) == (None, None, [])
                            continue
                        assert link.position is not None
                        record = log.port.record_at(*link.position)
                        assert record is not None
                        assert record.id.hex() == link.observation
                        assert link.causes == [each.hex() for each in statement.causes]


def closure(ids: Iterable[bytes], known: dict[bytes, Observation]) -> set[bytes]:
    waiting, found = list(ids), set[bytes]()
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += known[each].causes if each in known else ()
    return found


def holders_of(log: Offsets, name: str, field: str) -> set[bytes]:
    """Who holds a field by the reference; of sum, count and custom every live assertion."""
    by = reference_state(DEFINITION, name, log)["by"][field]
    if DEFINITION[field].reducer in {"sum", "count", "custom"}:
        retracted = {each for _, one in log if one.entity == name for each in one.retracts}
        live = [one for _, one in log if one.entity == name and identify(one) not in retracted]
        clears = [order(one) for one in live if field in one.cleared]
        return {identify(one) for one in live if field in one.patch and all(order(one) >= each for each in clears)}
    if isinstance(by, dict):
        return set(by.values())
    return set(by) if isinstance(by, list) else {by}


def order(one: Observation) -> tuple[int, bytes, bytes, int, bytes]:
    return one.observed_at, one.source.agent.encode(), one.source.run.encode(), one.source.seq, identify(one)


def test_why_ends_where_causes_go_round_or_stand_outside_the_log(tmp_path: Path) -> None:
    outside = identify(said("everything/elsewhere", 0))
    first = Observation(A, 1, source=Source("x"), patch={"last": 1}, causes=(outside,))
    second = Observation(f"{A}b", 2, source=Source("x"), patch={"last": 2}, causes=(identify(first),))
    third = Observation(
        A, 3, source=Source("x"), patch={"last": 3}, causes=tuple(sorted((identify(second), identify(first))))
    )
    with open_log(tmp_path) as log:
        take(log, [first, second, third])
        chain = log.rebuild()[A].why("last")
        assert [link.depth for link in chain] == [0, 1, 1, 2]
        assert (chain[-1].observation, chain[-1].position) == (outside.hex(), None)
        # At a point before it, a cause that came later is known by name alone.
        alone = log.state(f"{A}b", log.point(f"offset:{log.port.partition_of(f'{A}b')}=1").cut)
        if log.port.partition_of(A) != log.port.partition_of(f"{A}b"):
            assert [link.position is None for link in alone.why("last")] == [False, True]


# The views


def test_a_view_answers_for_each_field(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        observations = [
            Observation(
                A, 10, source=Source("x"), patch={"last": 1, "attrs": {"k": "u", "l": "v"}, "tags": ["p", "q"]}
            ),
            Observation(A, 20, source=Source("y"), patch={"attrs": {"k": "w", "l": None}, "tags": ["q"], "hits": 1}),
            Observation(A, 30, "link", source=Source("x"), link=Link("uses", "everything/b", 5)),
            Observation(A, 40, source=Source("z"), patch={"last": 2, "log": [1, 2], "total": 0.5}),
        ]
        take(log, observations)
        ids = [identify(each) for each in observations]
        for entity in (log.rebuild()[A], log.state(A)):
            assert entity.fields == {
                "last": 2,
                "attrs": {"k": "w"},
                "tags": ["p", "q"],
                "hits": 1,
                "log": [1, 2],
                "total": 0.5,
            }
            assert entity.links == [{"relation": "uses", "target": "everything/b", "by": ids[2], "valid_from": 5}]
            assert (entity.entity, entity.version, len(entity.history)) == (A, 4, 4)
            assert entity.held_by("attrs", "k") == [ids[1]]
            assert entity.held_by("tags") == [ids[0]]
            assert entity.held_by("hits") == [ids[1]]
            assert entity.holder("last").observation == ids[3].hex()
            assert entity.holder("attrs").observed_at == 20
            assert [(key, value, holder.observed_at) for key, value, holder in entity.element_holders("attrs")] == [
                ("k", "w", 20)
            ]
            assert {value: holder.observed_at for _, value, holder in entity.element_holders("tags")} == {
                "p": 10,
                "q": 10,
            }
            assert [value for _, value, _ in entity.element_holders("log")] == [1, 2]
            for field, key in (("none", None), ("low", None), ("attrs", "l"), ("last", "k")):
                with pytest.raises(InputError, match=rf"{A}\.{field}"):
                    entity.why(field, key)


def test_conflicts_are_those_of_the_reference(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed, 120), seed)
        for cut, expected in some_cuts(log, seed, 4):
            view = log.rebuild(cut)
            for name in view:
                losers, total = reference_conflicts(DEFINITION, name, expected)
                found = view[name].conflicts
                assert (found.total, [each.observation for each in found.losers]) == (
                    total,
                    [each["observation"] for each in losers],
                )


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        take(log, [said(A, 0), said(f"{OTHER.name}/b", 1)])
        view = log.rebuild()
        assert A in view
        assert f"{A}none" not in view
        asks: list[Callable[[], object]] = [
            lambda: view[f"{A}none"],
            lambda: log.state(f"{A}none"),
            lambda: log.state("tool_config/none"),
            lambda: log.history(f"{A}none"),
            lambda: log.history("tool_config/none"),
            lambda: log.diff("offset:0=0", None, f"{A}none"),
            lambda: log.diff("offset:0=0", None, "tool_config/none"),
            lambda: log.state(A, "offset:0=0"),
        ]
        for ask in asks:
            with pytest.raises(UnknownEntity, match="no observation of it"):
                ask()
        for bad in ("everything", "/a", "everything/", "every thing/a", "everything/a\n", "x" * 100_000):
            with pytest.raises(InputError):
                log.state(bad)


def test_awkward_names_are_kept_apart(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    observations = [said(rng.choice(NAMES), number) for number in range(200)]
    observations += [said(name, number) for number, name in enumerate(ENTITIES)]
    with open_log(tmp_path) as log:
        logged(log, observations, seed)
        view = log.rebuild()
        assert set(view) == {each.entity for each in observations}
        for name in view:
            own = list({identify(each): each for each in observations if each.entity == name}.values())
            assert [each.seen.observation for each in view[name].history] == own
            assert log.state(name).state_hash == view[name].state_hash
