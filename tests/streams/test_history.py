"""History, differences and changes between any two points, compared with the naive reference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.reducers.cells import Mutation
from refold.streams.changes import MutationFormatter, Row
from refold.streams.cut import Cut
from refold_tests.histories import random_history
from refold_tests.offsets_below import DEFINITION, below, every_cut, logged, names, records, some_cuts
from refold_tests.opening import open_log, take
from refold_tests.reference import (
    Replayed,
    apply_mutations,
    encode,
    reference_mutations,
    reference_true_at,
    replayed_fields,
    replayed_links,
)
from refold_tests.sample_types import THING, A, said


def as_mutation(row: Row) -> dict[str, Any]:
    """A row in the form of the reference."""
    names_of = ("offset", "version", "field", "op", "key", "old", "new")
    ids = {"observation": bytes.fromhex(row.observation), "by": bytes.fromhex(row.by)}
    return {**{name: getattr(row, name) for name in names_of}, **ids}


def in_order(mutations: Iterable[dict[str, Any]]) -> list[bytes]:
    """The order within one version is not guaranteed."""
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


def test_history_after_one_point_up_to_another(tmp_path: Path, seed: int) -> None:
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
def test_difference_leads_from_one_state_to_the_other(tmp_path: Path, seed: int, number: int) -> None:
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


def test_difference_of_observed_times(tmp_path: Path, seed: int) -> None:
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
                # An element of append with another holder differs, although its value does not.
                assert changed <= found
                assert found - changed <= {"log"}


# Changes


def from_change(shown: MutationFormatter, mutation: Mutation) -> dict[str, Any]:
    return {
        "field": mutation.field,
        "op": mutation.op,
        "key": shown.key(mutation.key),
        "old": shown.value(mutation.field, mutation.old),
        "new": shown.value(mutation.field, mutation.new),
    }


@pytest.mark.parametrize("number", range(2))
def test_changes_from_every_cut_lead_to_the_end(tmp_path: Path, seed: int, number: int) -> None:
    shown = MutationFormatter(THING)
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


def test_reading_changes_ends_while_more_are_written(tmp_path: Path) -> None:
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
