"""The reference's bytes, hashes and roots, on examples worked out by hand."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest

from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold_tests.histories import with_offsets
from refold_tests.reference import (
    FieldSpec,
    encode,
    murmur2,
    reference_hash,
    reference_root,
    reference_slot,
    reference_state,
)


class TestDigests:
    def test_state_hash_covers_these_bytes(self) -> None:
        observation = Observation("t/1", 1, patch={"n": 5})
        state = reference_state({"n": FieldSpec("latest")}, "t/1", with_offsets([observation]))
        cbor = (
            bytes.fromhex("a6 62 6279 a1 61 6e 58 20")  # {by: {n: (32 bytes)
            + identify(observation)
            + bytes.fromhex("65 6c696e6b73 80")  # links: []
            + bytes.fromhex("66 656e74697479 63 742f31")  # entity: t/1
            + bytes.fromhex("66 6669656c6473 a1 61 6e 05")  # fields: {n: 5}
            + bytes.fromhex("66 666f726d6174 01")  # format: 1
            + bytes.fromhex("67 76657273696f6e 01")  # version: 1
        )
        assert encode(state) == cbor
        assert reference_hash(state) == hashlib.sha256(cbor).digest()

    @pytest.mark.parametrize(
        ("value", "cbor"),
        [
            (-0.0, "00"),
            (1.0, "01"),
            (-25, "38 18"),
            (1.5, "f9 3e00"),
            (0.1, "fb 3fb999999999999a"),
            (100000.5, "fa 47c35040"),
            (2**64 - 1, "1b ffffffffffffffff"),
            (2**64, "fa 5f800000"),
            (-(2**63), "3b 7fffffffffffffff"),
            (5e-324, "fb 0000000000000001"),
            ([True, None, b"\x01"], "83 f5 f6 41 01"),
        ],
    )
    def test_numbers_are_shortest(self, value: Any, cbor: str) -> None:
        assert encode(value) == bytes.fromhex(cbor)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**64 + 1])
    def test_non_finite_numbers_are_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"number|double"):
            encode(value)

    def test_murmur2_matches_kafkas_own_vectors(self) -> None:
        vectors = {
            b"21": -973932308,
            b"foobar": -790332482,
            b"a-little-bit-long-string": -985981536,
            b"a-little-bit-longer-string": -1486304829,
            b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
            b"abc": 479470107,
        }
        assert {key: murmur2(key) for key in vectors} == {key: value % 2**32 for key, value in vectors.items()}

    def test_root_of_no_entities_and_of_one(self) -> None:
        empty = bytes(32)
        header = b"refold-root/1"
        assert reference_root({}) == hashlib.sha256(header + bytes(8) + empty * 1024).digest()
        # -790332482 & 0x7fffffff is 1357151166, slot 958; SHA-256 of foobar begins with c3, bucket 195.
        assert reference_slot("foobar") == 958
        bucket = hashlib.sha256(b"\0\0\0\x06foobar" + b"h" * 32).digest()
        slot = hashlib.sha256(empty * 195 + bucket + empty * 60).digest()
        slots = empty * 958 + slot + empty * 65
        root = hashlib.sha256(header + (1).to_bytes(8, "big") + slots).digest()
        assert reference_root({"foobar": b"h" * 32}) == root
