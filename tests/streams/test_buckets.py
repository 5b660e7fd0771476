"""Bucket digests kept between epochs, complete and partly changed, within bounds and above them."""

from __future__ import annotations

import random

import pytest

from refold.streams.digest import Digests, bucket_digest
from refold.streams.snapshots.buckets import Buckets
from refold.streams.snapshots.chunk import Piece, piece_of
from refold_tests.sealing import Table, View


def pieces(view: View) -> list[Piece]:
    return [piece_of(*group) for group in view.groups()]


@pytest.mark.parametrize("number", range(2))
def test_partly_changed_buckets_equal_newly_set_ones(seed: int, number: int) -> None:
    """Entities that share buckets, and a table that is replaced as a whole now and then."""
    rng = random.Random(seed + number)
    table = Table(rng, 300, partitions=512)
    buckets, before = Buckets(1 << 30), dict[str, bytes]()
    for _ in range(30):
        for _ in range(rng.choice((1, 20, 500))):
            table.change(0.3)
        view = table.view()
        changed = {name for name, packed in view.packed.items() if before.get(name) != packed}
        if rng.random() < 0.1:
            buckets = Buckets(1 << 30)
            assert list(buckets.passing(pieces(view))) == pieces(view)
        else:
            assert buckets.may_change()
            for place, members in view.groups():
                own = [member for member in members if member[0].decode() in changed]
                if own:
                    buckets.change(piece_of(place, own))
        expected = Digests()
        for place, members in view.groups():
            expected.set(place, bucket_digest((key, table.hashes[key.decode()]) for key, _ in members))
        assert all(buckets.digests.slot(slot) == expected.slot(slot) for slot in range(1024))
        before = view.packed


def test_only_digests_are_kept_past_the_bound(seed: int) -> None:
    table = Table(random.Random(seed), 100)
    table.change_up_to(1_000)
    small, large = Buckets(1_000), Buckets(1 << 30)
    for each in (small, large):
        assert list(each.passing(pieces(table.view()))) == pieces(table.view())
    assert not small.may_change()
    assert large.may_change()
    assert all(small.digests.slot(slot) == large.digests.slot(slot) for slot in range(1024))
    table.change_up_to(1_100)
    for each in (small, large):
        for piece in pieces(table.view()):
            each.set(*piece)
    assert (small.preimages_bytes, large.preimages_bytes > 1_000) == (0, True)
    assert all(small.digests.slot(slot) == large.digests.slot(slot) for slot in range(1024))
