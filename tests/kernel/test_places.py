"""Places by the kernel are those by Python and by the reference, of any text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.kernel import find_kernel
from refold.streams.partitioner import BUCKETS, PLACE_BYTES, all_placed, place_of, placed
from refold_tests.both_folds import switched
from refold_tests.encoded_entities import place

TEXTS = st.text(max_size=40) | st.builds(lambda text, count: text * count, st.text(max_size=3), st.integers(0, 2000))


class Text(str):
    """No plain text."""


def found_by(entity: Any, *, kernel: bool) -> int:
    """The place of an entity, which is not cached."""
    with switched(on=kernel):
        assert (find_kernel().kernel is not None) == kernel
        return place_of.__wrapped__(entity)


@given(TEXTS)
def test_place_is_the_same(entity: str) -> None:
    expected = place(entity)
    assert found_by(entity, kernel=True) == found_by(entity, kernel=False) == expected
    assert found_by(Text(entity), kernel=True) == found_by(Text(entity), kernel=False) == expected


@given(st.lists(TEXTS, max_size=5))
def test_storage_keys_are_the_same(entities: list[str]) -> None:
    expected = [place(each).to_bytes(PLACE_BYTES, "big") + each.encode() for each in entities]
    assert all_placed(entities) == list(map(placed, entities)) == expected
    with switched(on=False):
        assert all_placed(entities) == expected


@given(st.text(max_size=9), st.characters(categories=["Cs"]), st.text(max_size=9))
def test_text_with_a_lone_surrogate_is_the_same_error(before: str, surrogate: str, after: str) -> None:
    errors = []
    for kernel in (True, False):
        with pytest.raises(UnicodeEncodeError) as raised:
            found_by(before + surrogate + after, kernel=kernel)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_every_bucket_and_slot_occurs() -> None:
    places = [found_by(f"t/{number}", kernel=True) for number in range(20_000)]
    assert {each % BUCKETS for each in places} == set(range(BUCKETS))
    assert {each // BUCKETS for each in places} == set(range(1024))
