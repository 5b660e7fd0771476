"""Digests of spans equal those of their consecutive records, whether the caller or another thread hashes them."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from refold.streams.snapshots.hashing import RunningHashes

SPANS = st.lists(st.lists(st.binary(max_size=9), max_size=9), max_size=9)


@given(SPANS, st.integers(1, 40), st.randoms())
def test_each_span_has_the_digest_of_its_records(spans: list[list[bytes]], piece_bytes: int, rng: Random) -> None:
    """Also after an abandoned span."""
    with RunningHashes(piece_bytes) as hashes:
        ended = []
        for span in spans:
            for record in span[: rng.randrange(len(span) + 1)]:
                hashes.update(record)
            hashes.begin()
            for record in span:
                hashes.update(record)
            ended.append(hashes.end())
        assert [digest() for digest in ended] == [sha256(b"".join(span)).digest() for span in spans]
