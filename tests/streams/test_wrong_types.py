"""Complete records and answers with the right names but values of wrong types raise errors, never defects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest

import refold
from refold.avro.codec import framed_id
from refold.avro.errors import CorruptionError, RefoldError, StorageError, UndecodableError
from refold.streams.change_codec import ChangeCodec
from refold.streams.checksum import sealed
from refold.streams.deadletters import Verdict, read_verdict, verdict_value
from refold.streams.log.file.framing import result_of
from refold.streams.log.kafka.lookups import parse_arrivals, parse_pairs, parse_places, parse_records, parse_totals
from refold.streams.snapshots.manifest import Epoch, Manifest, OffsetSpan, encode_manifest, read_manifest

ODD: list[Any] = [-1, 2**70, 1.5, True, None, "x", b"x", [], [[]], {}, {"a": 1}, cbor2.CBORSimpleValue(99)]
VERDICT = Verdict(0, 4, "misplaced", "why", b"key", b"value", [("a", b"1"), ("b", None)], 5)
EPOCH = Epoch(0, 9, 2)
MANIFEST = Manifest(
    bytes(16), EPOCH, (OffsetSpan(0, 4, bytes(32)),), 3, 9, (bytes(32),), bytes(32), {"document": bytes(32)}, 5, 3
)  # fmt: skip


def with_one_changed(tree: Any) -> Iterator[Any]:
    """Yield the tree with each member, at any depth, replaced by each odd value."""
    members = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))
    for key, value in members:
        changes = [each for each in ODD if type(each) is not type(value) or each != value]
        changes += list(with_one_changed(value)) if isinstance(value, (list, dict)) else []
        for each in changes:
            copy = dict(tree) if isinstance(tree, dict) else list(tree)
            copy[key] = each
            yield copy


def test_verdict_with_wrong_types_is_damage() -> None:
    tree = cbor2.loads(verdict_value(VERDICT))
    assert read_verdict(0, cbor2.dumps(tree)) == VERDICT
    fitting = 0
    for each in with_one_changed(tree):
        try:
            found: Any = read_verdict(0, cbor2.dumps(each))
        except CorruptionError:
            continue
        fitting += 1
        assert all(type(number) is int and number >= 0 for number in (found.offset, found.timestamp)), each
        assert all(isinstance(text, str) for text in (found.reason, found.detail)), each
        assert all(part is None or isinstance(part, bytes) for part in (found.key, found.value)), each
        for name, value in found.headers:
            assert isinstance(name, str), each
            assert value is None or isinstance(value, (str, bytes)), each
    assert fitting < 40


def test_manifest_with_wrong_types_is_damage() -> None:
    data = encode_manifest(MANIFEST)
    tree = cbor2.loads(data[:-4])
    assert read_manifest(data, EPOCH) == MANIFEST
    for each in with_one_changed(tree):
        try:
            found: Any = read_manifest(sealed(cbor2.dumps(each)), EPOCH)
        except CorruptionError:
            continue
        counts = (found.entities, found.observations, found.recorded_at, found.warm, found.changed, found.deadletters,
                  found.records, found.size, found.fold_version)  # fmt: skip
        assert all(type(count) is int and count >= 0 for count in counts), each
        assert all(isinstance(part, bytes) for part in (found.log_id, found.root, found.previous, *found.slots)), each
        assert all(isinstance(name, str) and isinstance(part, bytes) for name, part in found.types.items()), each
        for span in found.spans:
            assert all(type(part) is int and part >= 0 for part in span[:2]), each
            assert isinstance(span.digest, bytes), each


def test_change_in_other_bytes_is_read_or_undecodable(tmp_path: Path) -> None:
    """Some readers accept a zero of thirteen bytes as Avro. Next to a sealed value this was a defect."""
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        log.run("desk", id="r-1", input={"order": "7"}).drive(lambda run: "done")
        log.flush()
        port = log.port
        codecs = {each.changes.wire_id: ChangeCodec(each) for each in port.registry}
        changes = [each.data for part in range(port.partitions) for each in port.read_changes(part, 0)]
    undecodable = 0
    for data in changes:
        codec = codecs[framed_id(data)]
        whole = codec.decode(data)
        for at in (each for each in range(5, len(data)) if not data[each]):
            other = data[:at] + b"\x80" * 12 + data[at:]
            try:
                assert codec.decode(other) == whole
            except UndecodableError:
                undecodable += 1
    assert undecodable


ANSWERS: list[tuple[Any, Any]] = [
    (parse_arrivals, [7, [[1, 5, b"q", False]]]),
    (parse_records, [7, [[0, 1, 5, "document/a", bytes(32), b"data"], None]]),
    (parse_places, [[[0, 1]], {0: 7}]),
    (parse_pairs, [[b"key", b"value"]]),
    (parse_totals, [3, 9]),
]


@pytest.mark.parametrize(("read", "tree"), ANSWERS, ids=lambda each: getattr(each, "__name__", ""))
def test_lookup_response_with_wrong_types_is_an_error(read: Any, tree: Any) -> None:
    read(tree)
    refused = 0
    for each in [*ODD, *with_one_changed(tree)]:
        try:
            read(each)
        except StorageError:
            refused += 1
    assert refused > len(ODD)


def test_owners_error_with_wrong_types_is_an_error() -> None:
    for name, arguments in (("ValidationError", ["field", "rule", 1]), ("UnknownWireId", [7]), ("InputError", ["x"])):
        for each in [arguments, *with_one_changed(arguments), [], [1, 2, 3, 4]]:
            with pytest.raises(RefoldError) as caught:
                result_of([1, name, each])
            str(caught.value)
