"""A view's answers about an entity: its fields, their holders and causes, its conflicts, and absent items."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from refold.avro.errors import InputError, UnknownEntity
from refold.avro.ids import identify
from refold.avro.observation import Link, Observation, Source
from refold_tests.histories import random_history
from refold_tests.offsets_below import DEFINITION, Offsets, logged, some_cuts
from refold_tests.opening import open_log, take
from refold_tests.reference import reference_conflicts, reference_state
from refold_tests.sample_types import OTHER, A, said


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
                    holders = entity.observations_of(field)
                    assert set(holders) == holders_of(expected, name, field)
                    chain = entity.why(field)
                    assert [bytes.fromhex(link.observation_id) for link in chain[: len(holders)]] == holders
                    assert {bytes.fromhex(link.observation_id) for link in chain} == closure(holders, known)
                    assert [link.depth for link in chain] == sorted(link.depth for link in chain)
                    for link in chain:
                        observed = known.get(bytes.fromhex(link.observation_id))
                        assert link.observation == observed
                        if observed is None:
                            assert (link.position, link.recorded_at, link.causes) == (None, None, [])
                            continue
                        assert link.position is not None
                        record = log.port.record_at(*link.position)
                        assert record is not None
                        assert record.id.hex() == link.observation_id
                        assert link.causes == [each.hex() for each in observed.causes]


def closure(ids: Iterable[bytes], known: dict[bytes, Observation]) -> set[bytes]:
    waiting, found = list(ids), set[bytes]()
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += known[each].causes if each in known else ()
    return found


def holders_of(log: Offsets, name: str, field: str) -> set[bytes]:
    """The reference's holders of a field; for sum, count and custom every live assertion."""
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


def test_why_ends_at_cycles_and_at_causes_outside_the_log(tmp_path: Path) -> None:
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
        assert (chain[-1].observation_id, chain[-1].position) == (outside.hex(), None)
        # At an earlier point, a later cause is known only by its id.
        alone = log.state(f"{A}b", log.point(f"offset:{log.port.partition_of(f'{A}b')}=1").cut)
        if log.port.partition_of(A) != log.port.partition_of(f"{A}b"):
            assert [link.position is None for link in alone.why("last")] == [False, True]


def test_view_answers_for_each_field(tmp_path: Path) -> None:
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
            assert entity.observations_of("attrs", "k") == [ids[1]]
            assert entity.observations_of("tags") == [ids[0]]
            assert entity.observations_of("hits") == [ids[1]]
            assert entity.holder("last").observation_id == ids[3].hex()
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


def test_conflicts_match_the_reference(tmp_path: Path, seed: int) -> None:
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


def test_missing_entity_or_field_is_named(tmp_path: Path) -> None:
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
            with pytest.raises(UnknownEntity, match="it has no observation"):
                ask()
        for bad in ("everything", "/a", "everything/", "every thing/a", "everything/a\n", "x" * 100_000):
            with pytest.raises(InputError):
                log.state(bad)
