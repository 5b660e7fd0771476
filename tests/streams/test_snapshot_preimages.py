"""Preimages of one bucket on top of one another: the fast path gives the same as the slow path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refold.streams.snapshots.chunk import merged_preimages, newest, split

BUCKETS = st.dictionaries(
    st.sampled_from([b"a", b"b", b"ab"]), st.sampled_from([bytes([each]) * 32 for each in range(3)]), min_size=1
)


def preimage(bucket: dict[bytes, bytes]) -> bytes:
    return b"".join(len(key).to_bytes(4, "big") + key + bucket[key] for key in sorted(bucket))


@given(BUCKETS, BUCKETS)
def test_later_preimage_replaces_an_earlier_one(before: dict[bytes, bytes], own: dict[bytes, bytes]) -> None:
    found = merged_preimages(preimage(before), preimage(own))
    assert found == preimage(before | own) == newest(preimage(before) + preimage(own))
    assert dict(split(found)) == before | own
