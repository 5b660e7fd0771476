"""Manifests: sealed data is read back, their names sort by point, and damage is an error."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.errors import CorruptionError
from refold.streams.checksum import sealed, unsealed
from refold.streams.snapshots.manifest import (
    PREFIX,
    ColdSpan,
    Epoch,
    Manifest,
    OffsetSpan,
    encode_manifest,
    epoch_of,
    read_manifest,
)
from refold_tests.encoded_entities import HASHES

COUNTS = st.integers(0, 2**63 - 1)
EPOCHS = st.builds(Epoch, st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
SPANS = st.builds(OffsetSpan, COUNTS, COUNTS, HASHES)
SOME_SPANS = st.lists(SPANS, max_size=3).map(tuple)
MANIFESTS = st.builds(
    Manifest,
    log_id=st.binary(min_size=16, max_size=16),
    epoch=EPOCHS,
    ranges=SOME_SPANS,
    entities=COUNTS,
    observations=COUNTS,
    slots=st.lists(HASHES, max_size=4).map(tuple),
    root=HASHES,
    types=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), HASHES, max_size=3),
    recorded_at=COUNTS,
    warm=COUNTS,
    changed=COUNTS,
    cold=st.lists(st.builds(ColdSpan, st.sampled_from(("run", "step")), st.just("2026-11"), SPANS), max_size=2).map(
        tuple
    ),
    index=SOME_SPANS,
    buckets=SOME_SPANS,
    deadletters=COUNTS,
    previous=st.one_of(st.just(b""), HASHES),
    fold_version=st.integers(1, 9),
    aside=st.lists(COUNTS, max_size=3, unique=True).map(sorted).map(tuple),
)

PLAIN = Manifest(
    bytes(16),
    Epoch(1, 200, 3),
    (OffsetSpan(0, 2, b"a" * 32), OffsetSpan(2, 3, b"b" * 32)),
    entities=4,
    observations=5,
    slots=(bytes(32), b"c" * 32),
    root=b"d" * 32,
    types={"run": b"e" * 32},
    recorded_at=6,
    warm=7,
    cold=(ColdSpan("run", "2026-11", OffsetSpan(3, 4, b"f" * 32)),),
    index=(OffsetSpan(4, 5, b"g" * 32),),
    buckets=(OffsetSpan(5, 6, b"h" * 32),),
)


@given(MANIFESTS)
def test_manifest_round_trips(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    found = read_manifest(data, manifest.epoch)
    assert found == manifest
    assert found.encoded == data
    assert encode_manifest(found) == data
    assert found.digest == manifest.digest == hashlib.sha256(data).digest()
    assert epoch_of(manifest.epoch.key) == manifest.epoch


@given(st.lists(EPOCHS, min_size=2, max_size=9))
def test_names_sort_as_epochs_do(epochs: list[Epoch]) -> None:
    assert [epoch_of(key) for key in sorted(each.key for each in epochs)] == sorted(epochs)
    assert all(each.key.startswith(PREFIX) for each in epochs)


@given(MANIFESTS, EPOCHS)
def test_manifest_under_another_name_is_refused(manifest: Manifest, epoch: Epoch) -> None:
    if epoch != manifest.epoch:
        with pytest.raises(CorruptionError, match=f"the manifest of epoch {epoch} claims to be of"):
            read_manifest(encode_manifest(manifest), epoch)


def test_every_truncation_and_every_flipped_bit_is_an_error() -> None:
    data = encode_manifest(PLAIN)
    for size in range(len(data)):
        with pytest.raises(CorruptionError, match="the manifest of epoch 1=200"):
            read_manifest(data[:size], PLAIN.epoch)
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(CorruptionError, match="the manifest of epoch 1=200"):
                read_manifest(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], PLAIN.epoch)


@given(st.binary(max_size=40))
def test_other_bytes_under_a_valid_checksum_are_an_error(body: bytes) -> None:
    with pytest.raises(CorruptionError, match="the manifest of epoch 1=200"):
        read_manifest(sealed(body), PLAIN.epoch)


def test_missing_or_malformed_part_is_an_error() -> None:
    """Members as another release might write them: with a correct checksum, and valid CBOR."""
    tree = cbor2.loads(unsealed(encode_manifest(PLAIN), "it"))
    assert len(tree) == len(fields(Manifest)) - 1  # the format, and all but the bytes themselves and `aside`
    for name in tree:
        less = {key: value for key, value in tree.items() if key != name}
        with pytest.raises(CorruptionError, match="the manifest of epoch 1=200 cannot be read"):
            read_manifest(sealed(cbor2.dumps(less)), PLAIN.epoch)
    for other in ({**tree, "format": 9}, {**tree, "epoch": [1, 200]}, {**tree, "ranges": [[1]]}, {**tree, "cold": 5},
                  {**tree, "aside": 5}, {**tree, "aside": ["x"]}):  # fmt: skip
        with pytest.raises(CorruptionError, match="the manifest of epoch 1=200"):
            read_manifest(sealed(cbor2.dumps(other)), PLAIN.epoch)
    bare: tuple[object, ...] = (None, [], 5, "x", {})
    for value in bare:
        with pytest.raises(CorruptionError, match="the manifest of epoch 1=200"):
            read_manifest(sealed(cbor2.dumps(value)), PLAIN.epoch)


@pytest.mark.parametrize("length", [0, 1, 17, 19, 40])
def test_key_of_another_length_is_no_manifests(length: int) -> None:
    with pytest.raises(CorruptionError, match="not a manifest's key"):
        epoch_of(PREFIX + bytes(length))


def test_epoch_needs_every_span_it_names() -> None:
    assert [span.start for span in PLAIN.spans] == [0, 2, 3, 4, 5]
    assert not PLAIN.is_base
    assert replace(PLAIN, ranges=PLAIN.ranges[:1]).is_base
