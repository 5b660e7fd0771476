"""Rulings on damaged records: pure, the last one on an offset counts, and odd bytes are none."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError, DamagedRecord
from refold.avro.quarantine import CHANGES, LENGTH_MAX, OBSERVATIONS, TOPICS, Ruling, Rulings, ruling_of
from refold.streams.checksum import sealed
from refold.streams.log.kafka.quarantine_records import TOKEN_BYTES, Decision, decision_key, decision_of, decision_value

NUMBERS = st.integers(0, (1 << 63) - 1)
RULINGS = st.builds(
    Ruling, st.sampled_from(TOPICS), st.integers(0, 3), st.integers(0, 12), st.integers(1, 4),
    st.sampled_from(["", "task/1", "task/ä"]), st.booleans(), st.integers(0, 9),
)  # fmt: skip
KEY = decision_key(bytes(TOKEN_BYTES))


@given(st.lists(RULINGS, max_size=20))
def test_last_ruling_on_an_offset_counts(given_rulings: list[Ruling]) -> None:
    rulings, expected = Rulings(), {}
    for place, each in enumerate(given_rulings):
        before = rulings.of(each.topic, each.partition)
        was = dict(before)
        rulings.take(each, place)
        assert dict(before) == was  # who holds a mapping holds one moment
        for offset in range(each.offset, each.offset + each.length):
            expected[each.topic, each.partition, offset] = None if each.is_lifted else each.entity
    for topic in TOPICS:
        for partition in range(4):
            mine = {at[2]: name for at, name in expected.items() if at[:2] == (topic, partition) and name is not None}
            assert dict(rulings.of(topic, partition)) == mine
            assert mine.keys() <= set(range(20))
            assert set(mine.values()) <= rulings.entities(topic, partition)
    assert rulings.between(0, len(given_rulings)) == given_rulings
    assert {each[:3] for each in rulings.all()} == {each[:3] for each in given_rulings}


@given(st.lists(RULINGS, max_size=12), st.integers(0, 12))
def test_readers_at_the_same_offset_agree_regardless_of_path(given_rulings: list[Ruling], cut: int) -> None:
    one, two = Rulings(), Rulings("log", "kafka://h/log")
    for place, each in enumerate(given_rulings[:cut]):
        one.take(each, place)
        two.take(decision(each), place)
    for topic in TOPICS:
        for partition in range(4):
            assert dict(one.of(topic, partition)) == dict(two.of(topic, partition))


def decision(ruling: Ruling) -> Ruling:
    """A ruling as it comes back from its stored form."""
    found = decision_of(KEY, decision_value(ruling))
    assert isinstance(found, Ruling)
    return found


@given(
    st.sampled_from(TOPICS), NUMBERS, NUMBERS, st.integers(1, LENGTH_MAX), st.text(max_size=300), st.booleans(), NUMBERS
)
def test_ruling_round_trips(
    topic: str, partition: int, offset: int, length: int, entity: str, is_lifted: bool, at: int
) -> None:
    ruling = Ruling(topic, partition, offset, length, entity, is_lifted, at)
    if entity.isprintable():
        assert decision(ruling) == ruling


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.floats()), max_size=9))
def test_malformed_parts_are_no_ruling(parts: list[object]) -> None:
    try:
        found = decision_of(KEY, sealed(cbor2.dumps(parts)))
    except CorruptionError:
        return
    assert isinstance(found, Decision | Ruling)
    assert list(found) == parts


@pytest.mark.parametrize(
    "parts",
    [
        ["observations", 0, 1, 0, "", False, 1], ["observations", 0, 1, LENGTH_MAX + 1, "", False, 1],
        ["contents", 0, 1, 1, "", False, 1], ["changes", -1, 1, 1, "", False, 1], ["changes", 0, True, 1, "", False, 1],
        ["changes", 0, 1, 1, "x" * 5_000, False, 1], ["changes", 0, 1, 1, b"", False, 1],
        ["changes", 0, 1, 1, "", 0, 1], ["changes", 0, 1 << 63, 1, "", False, 1], {}, None, 7,
    ],
)  # fmt: skip
def test_nearly_valid_ruling_is_none(parts: object) -> None:
    with pytest.raises(ValueError, match=r"it lacks|its "):
        ruling_of(parts)
    with pytest.raises(CorruptionError):
        decision_of(KEY, sealed(encode(parts)))


def test_error_names_the_offset_and_the_command() -> None:
    error = Rulings("shop", "kafka://h:1/shop").damaged(CHANGES, 3, 41, "task/1", "why")
    assert isinstance(error, DamagedRecord)
    assert (error.topic, error.partition, error.offset) == (CHANGES, 3, 41)
    assert str(error) == (
        "shop.changes 3=41: the record of task/1 is damaged: why. Restore the brokers' data; or go on without it: "
        "refold quarantine add shop.changes/3/41 --log kafka://h:1/shop"
    )
    plain = str(Rulings().damaged(OBSERVATIONS, 0, 1, "", "why"))
    assert plain.startswith("observations 0=1: the record is damaged: why. An embedded log has no quarantine: restore")
    assert Rulings().command(OBSERVATIONS, 0, 1) == ""
