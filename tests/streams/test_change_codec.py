"""Changes as bytes: the direct encoder writes the same as the schema's writer, and its bytes are read back."""

from __future__ import annotations

import gc
import io
import json
import weakref
from typing import Any

import fastavro
import pytest

from refold.avro.codec import FRAME_BYTES
from refold.avro.definition import parse
from refold.avro.encoder import write_long
from refold.avro.errors import UndecodableError
from refold.avro.ids import identify
from refold.avro.registry import Registry
from refold.reducers.custom import code_of
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.streams.change_codec import ChangeCodec, change_codec_of
from refold.streams.changes import Change, ChangeStep
from refold_tests.histories import EVERYTHING_AVSC, random_history

VERSION = Registry().add(parse(json.loads(EVERYTHING_AVSC), code_of))
HASHES = bytes(range(32)), bytes(range(32, 64))


def steps_of(seed: int, length: int = 60) -> list[ChangeStep]:
    """The steps of one entity, from a random history."""
    fold = Fold(VERSION.definition)
    steps: list[ChangeStep] = []
    states: dict[str, Entity] = {}
    seen: dict[bytes, Seen] = {}
    for offset, observation in enumerate(random_history(seed, length)):
        found = identify(observation)
        q = order_key(observation, found)
        if q in seen:
            continue
        entity = states.get("one") or Entity(observation.entity)
        states["one"], mutations = fold.step(entity, Seen(offset, q, observation), seen.values)
        seen[q] = Seen(offset, q, observation)
        steps.append(
            ChangeStep(offset, len(seen), found, observation.observed_at, offset, observation.source, mutations)
        )
    return steps


def by_field(step: ChangeStep) -> ChangeStep:
    """A step as in a change: field by field, in order within each."""
    shown = [each._replace(old=as_written(each.old), new=as_written(each.new)) for each in step.mutations]
    return step._replace(mutations=sorted(shown, key=lambda mutation: mutation.field))


def as_written(value: Any) -> Any:
    """A sum past a long is written as the nearest double."""
    return float(value) if type(value) is int and not -(2**63) <= value < 2**63 else value


def test_codec_of_a_version_is_built_once_and_ends_with_it() -> None:
    version = Registry().add(parse(json.loads(EVERYTHING_AVSC), code_of))
    codec = weakref.ref(change_codec_of(version))
    assert change_codec_of(version) is codec()
    assert change_codec_of(VERSION) is not codec()
    del version
    gc.collect()
    assert codec() is None


@pytest.mark.parametrize("seed", range(20))
def test_change_round_trips(seed: int) -> None:
    codec = ChangeCodec(VERSION)
    steps = steps_of(seed)
    assert len({mutation.field for step in steps for mutation in step.mutations}) > 5
    for part in (steps, steps[:1], []):
        for before in (None, HASHES[0]):
            change = Change("t/é", bytes(32), 3, 3 + len(part), before, HASHES[1], 2**40, not part, part)
            data = codec.encode(change)
            found = codec.decode(data)
            assert found._replace(steps=[]) == change._replace(steps=[])
            assert [by_field(step) for step in found.steps] == [by_field(step) for step in change.steps]
            # A reader with the published schema consumes exactly these bytes.
            body = io.BytesIO(data[FRAME_BYTES:])
            fastavro.schemaless_reader(body, fastavro.parse_schema(json.loads(VERSION.changes.text)), None)
            assert body.read() == b""


def test_invalid_change_is_refused_wherever_it_ends() -> None:
    codec = ChangeCodec(VERSION)
    data = codec.encode(Change("t/1", bytes(32), 0, 2, None, HASHES[1], 9, False, steps_of(1)[:2]))
    for end in range(FRAME_BYTES, len(data)):
        with pytest.raises(UndecodableError):
            codec.decode(data[:end])
    for more in (b"\0", b"\2", data):
        with pytest.raises(UndecodableError):
            codec.decode(data + more)


def test_blocks_of_another_writer_are_read_by_the_schema() -> None:
    """A block may contain its size in bytes; no change written by refold does."""
    codec = ChangeCodec(VERSION)
    for steps in (steps_of(2), steps_of(3)):
        change = Change("t/1", bytes(32), 0, len(steps), None, HASHES[1], 9, False, steps)
        data = codec.encode(change)
        head = len(codec.encode(change._replace(steps=[]))) - 1
        count = write_long(len(steps))
        block = data[head + len(count) : -1]
        assert data[head:] == count + block + b"\0"
        foreign = data[:head] + write_long(-len(steps)) + write_long(len(block)) + block + b"\0"
        assert codec.decode(foreign) == codec.decode(data)
