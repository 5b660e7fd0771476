"""The text of a verdict: plain words that are the same in every process and every time."""

from __future__ import annotations

import random
import re

import pytest

from refold.avro.errors import UndecodableError
from refold.avro.observation import Link, Observation
from refold.avro.registry import Registry
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.records import NoObservation, checked_observation
from refold_tests.sample_types import THING, A, said

PYTHONS = re.compile(r"\w+(Error|Exception)\b|object at 0x|\bb'|\(\w+=")
B = f"{A}b"


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.add(THING)
    return registry


def message(registry: Registry, observation: Observation) -> bytes:
    return registry.newest(THING.name).codec.encode_observation(observation)


def detail(registry: Registry, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]] | None = None) -> str:
    """Return the text of the verdict on a record in the only partition."""
    raw = RawRecord(0, 0, key, value, list(headers or []))
    with pytest.raises(NoObservation) as refused:
        checked_observation(registry, 0, 1, raw)
    return str(refused.value)


def test_each_reason_has_its_message(registry: Registry) -> None:
    good = message(registry, said(A, 1))
    wire_id = int.from_bytes(good[1:5], "big")
    linked = message(registry, Observation(A, 1, "assert", patch={"last": 1}, link=Link("about", B)))
    assert detail(registry, A.encode(), b"{}").startswith("it is not in Confluent wire format")
    assert (
        detail(registry, A.encode(), good[:-1]) == f"it is not Avro of schema {wire_id}: it ends before the record does"
    )
    assert detail(registry, A.encode(), good + b"x") == "1 bytes after the end of the Avro body"
    assert detail(registry, A.encode(), good[:6] + b"\xff" + good[7:]).endswith("a text in it is not UTF-8")
    assert detail(registry, A.encode(), linked) == (f"link: goes with the kinds link and unlink; given (one to {B})")
    assert detail(registry, None, good) == f"it has no key, and it is an observation of {A}"
    assert detail(registry, b"\xff\0", good) == f"its key is the bytes ff00, and it is an observation of {A}"
    assert detail(registry, B.encode(), good) == f"its key is {B}, and it is an observation of {A}"
    assert detail(registry, A.encode(), good, [("refold-id", b"")]).startswith("its header refold-id is not its id")


def test_messages_about_damaged_bytes_contain_no_python_text(registry: Registry, seed: int) -> None:
    rng = random.Random(seed)
    whole = message(registry, said(A, 1))
    refused = set()
    for _ in range(3000):
        data = bytearray(whole[: rng.randrange(5, len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            if len(data) > 5:
                data[rng.randrange(5, len(data))] = rng.randrange(256)
        try:
            registry.identified(bytes(data))
        except UndecodableError as error:
            refused.add(str(error))
    assert refused, "the bytes were hardly damaged"
    for text in sorted(refused):
        assert not PYTHONS.search(text), f"seed {seed}: {text}"
