"""The kernel reads observations, and finds ids, as Python does; what it does not read, it leaves to Python."""

from __future__ import annotations

import os
import random

from hypothesis import given
from hypothesis import strategies as st

from refold.avro.codec import FRAME_BYTES, ObservationCodec
from refold.avro.definition import TypeDefinition
from refold.avro.errors import UndecodableError
from refold.avro.ids import identify
from refold.avro.kernel import find_kernel
from refold.avro.kernel_layouts import field_layouts
from refold.avro.observation import Observation, Source, Value
from refold.avro.shipped import shipped_types
from refold_tests import specimens
from refold_tests.both_folds import switched
from refold_tests.histories import LONGS, TEXTS
from refold_tests.random_types import damaged_bytes, definitions, observations


def both(definition: TypeDefinition) -> tuple[ObservationCodec, ObservationCodec]:
    """A type's codec with the kernel, and by Python alone."""
    with switched(on=False):
        python = ObservationCodec(definition)
    return ObservationCodec(definition), python


def said_of(codec: ObservationCodec, data: bytes) -> str:
    """What is made of a message, as text: types count, and so does the order of a patch."""
    try:
        return repr(codec.identified(data))
    except UndecodableError as error:
        return f"undecodable: {error}"


def compare(definition: TypeDefinition, observation: Observation, chosen: random.Random) -> None:
    """Hold the two to one another on an observation, and on damaged forms of it."""
    native, python = both(definition)
    data, own = native.encode_identified(observation)
    assert (data, own) == python.encode_identified(observation) == (data, identify(observation))
    for each in (data, *(damaged_bytes(data, chosen, FRAME_BYTES) for _ in range(4))):
        assert said_of(native, each) == said_of(python, each)


@given(specimens.observations(), st.randoms(use_true_random=False))
def test_observations_of_every_kind_are_read_identically(observation: Observation, chosen: random.Random) -> None:
    compare(specimens.specimen(), observation, chosen)


@given(st.data(), st.randoms(use_true_random=False))
def test_observations_of_any_type_are_read_identically(data: st.DataObject, chosen: random.Random) -> None:
    definition = data.draw(definitions())
    compare(definition, data.draw(observations(definition)), chosen)


def test_damaged_messages_are_read_identically(is_soak: bool) -> None:
    seed = int(os.environ["REFOLD_SEED"])
    print(f"seed {seed}")
    chosen = random.Random(seed)
    definition = shipped_types()["tool_config"]
    native, python = both(definition)
    kernel = find_kernel().kernel
    assert kernel is not None
    reader = kernel.ObservationReader(definition.name, native.framed(b""), field_layouts(definition))
    read = 0
    for number in range(1_000_000 if is_soak else 4_000):
        patch: dict[str, Value] = {
            "rate_limit": chosen.choice(LONGS),
            "tool": chosen.choice(TEXTS),
            "enabled": True,
            "effect": "read",
        }
        source = Source("agent", "run", str(number), "tool", number)
        data = native.encode_observation(Observation("tool_config/a", number, source=source, patch=patch))
        data = damaged_bytes(data, chosen)
        if len(data) > FRAME_BYTES:
            assert said_of(native, data) == said_of(python, data)
            read += reader.read(data) is not None
    assert read  # some damage leaves an observation, which the kernel reads itself
