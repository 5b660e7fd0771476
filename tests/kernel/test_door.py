"""The kernel's door against Python's: the same observation of whatever an author gives, or the same refusal."""

from __future__ import annotations

import enum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refold.avro.blob import Sealed
from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import ValidationError
from refold.avro.kernel import find_kernel
from refold.avro.kernel_layouts import field_layouts
from refold.avro.observation import Kind, Link, Observation, Source
from refold.avro.registry import TypeVersion
from refold.avro.shipped import shipped_types
from refold.avro.times import TIME_MAX
from refold_tests import specimens
from refold_tests.both_folds import switched
from refold_tests.random_types import definitions


class Text(str):
    """No plain text."""


class Mood(enum.StrEnum):
    """Texts of another type."""

    GOOD = "good"


ODD = st.sampled_from((
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**30, 0.0, -0.0, 0.1, 0.5, 1.0, 2.0**24 + 1,
    2.0**63, 2.0**64, 1e300, float("inf"), float("nan"), "", "a", "\ud800", "é" * 3000, "x" * 40_000, Text("good"),
    Mood.GOOD, "good", "2026-01-01", b"", b"four", bytearray(b"four"), [], ["a"], {}, {"x": 1}, (1, 2), {1, 2},
))  # fmt: skip


def said_of(definition: TypeDefinition, patch: Any, *, kernel: bool) -> str:
    """What is made of a patch, with its bytes and id, as text: types count, and so does the order."""
    with switched(on=kernel):
        validator, codec = ObservationValidator(definition), ObservationCodec(definition)
    source = Source("agent", "run", "step", "tool", 7)
    try:
        observation = validator.build(f"{definition.name}/a", patch, observed_at=1, now=TIME_MAX, source=source,
                                      causes=[b"c" * 32], subject="é", priority=-1, blobs={})  # fmt: skip
    except ValidationError as error:
        return f"refused: {error}"
    return f"{observation!r} {codec.encode_identified(observation)!r}"


def compare(definition: TypeDefinition, patch: Any) -> None:
    assert said_of(definition, patch, kernel=True) == said_of(definition, patch, kernel=False)


@given(st.data())
def test_any_patch_is_accepted_identically(data: st.DataObject) -> None:
    definition = data.draw(st.one_of(st.just(specimens.specimen()), definitions()))
    compare(definition, data.draw(specimens.patches(definition)))


@given(st.data())
def test_unusual_values_are_accepted_or_refused_identically(data: st.DataObject) -> None:
    definition = data.draw(st.one_of(st.just(specimens.specimen()), definitions()))
    names = st.sampled_from([*definition.fields, *definition.by_first_name, "unknown", "\ud800"])
    compare(definition, data.draw(st.dictionaries(names, ODD, max_size=3)))


def test_common_patch_is_canonical_and_others_are_left_to_python() -> None:
    definition = shipped_types()["tool_config"]
    kernel = find_kernel().kernel
    assert kernel is not None
    reader = kernel.ObservationReader(definition.name, bytes(5), field_layouts(definition))
    common = {"tool": "search", "rate_limit": 3, "enabled": True, "effect": "read"}
    assert reader.doubtful(common) == []
    for patch in ({"rate_limit": 1.0}, {"tool": None}, {"tool": 1}, {"effect": "neither"}, {"rate_limit": 2**63}):
        assert reader.doubtful(common | patch) == [*patch]
    assert reader.doubtful({"unknown": 1, "\ud800": 2}) == ["unknown", "\ud800"]
    observation = ObservationValidator(definition).build(
        "tool_config/a", {"tool": "search"}, observed_at=1, now=TIME_MAX, source=Source("agent")
    )
    assert reader.encode(observation) is not None
    assert reader.encode(observation._replace(retracts=(b"r" * 32,))) is None


def test_effects_observation_is_encoded_by_the_kernel() -> None:
    definition = shipped_types()["effect"]
    sealed = Sealed("run:r", b"ciphertext")
    retry = {"attempt": 1, "at": 1, "backoff_ms": 200, "error": sealed}
    patch = {"key": "k", "claims": {"r:1": "failed"}, "inputs": sealed, "retries": [retry], "lease_ms": 1000}
    compare(definition, patch)
    kernel = find_kernel().kernel
    assert kernel is not None
    reader = kernel.ObservationReader(definition.name, bytes(5), field_layouts(definition))
    observation = ObservationValidator(definition).build(
        "effect/k", patch, observed_at=1, now=TIME_MAX, source=Source("agent")
    )
    assert reader.encode(observation) is not None
    nested: Any = "x"
    for _ in range(10_000):  # deeper than any schema: left to Python, and no stack overflows
        nested = [nested]
    assert reader.encode(observation._replace(patch={"claims": nested})) is None


NAMES = st.sampled_from(["", "a", "run 1", "é", "x" * 1025, "a\nb", "\x7f", "\ud800"])
CAUSES = st.sampled_from(["ab" * 32, "AB" * 32, "cd" * 32, "ab" * 31, "zz" * 32, " a" * 32, "", "é" * 64])
TARGETS = st.sampled_from(["step/1", "step/", "/1", "step", "1step/1", "s-t/1", "étape/1", "step/\n"])
TIMES = st.sampled_from([0, 1, -(2**62), TIME_MAX, TIME_MAX + 1, 2**70])
LINKS = st.none() | st.builds(Link, NAMES, TARGETS, st.none() | TIMES, st.none() | TIMES)
PATCHES = st.sampled_from([None, {}, {"tool": "x"}, {"tool": None}, {"rate_limit": 1, "tags": ["b", "a"]}, {"no": 1}])


def encoded(parts: dict[str, Any], *, kernel: bool) -> str:
    """The bytes and the id of a new observation, or its refusal."""
    with switched(on=kernel):
        version = TypeVersion(shipped_types()["tool_config"], 0, 0)
        try:
            data, own = version.encode(**parts, blobs={})
            return f"{data!r} {own!r}"
        except (ValidationError, UnicodeEncodeError) as error:
            return f"refused: {error}"


@given(st.fixed_dictionaries({
    "entity": st.sampled_from(["tool_config/a", "tool_config/é", "tool_config/", "run/a", "tool_config/\n", ""]),
    "patch": PATCHES, "observed_at": TIMES, "causes": st.lists(CAUSES, max_size=3), "link": LINKS,
    "kind": st.sampled_from(["assert", "link", "unlink", "other"]),
    "source": st.builds(Source, NAMES, NAMES, NAMES, NAMES, st.sampled_from([0, 7, -1, 2**63])),
}))  # fmt: skip
def test_new_observations_are_encoded_identically(parts: dict[str, Any]) -> None:
    assert encoded(parts, kernel=True) == encoded(parts, kernel=False)


def test_new_observation_is_encoded_by_the_kernel() -> None:
    reader = TypeVersion(shipped_types()["tool_config"], 0, 0).codec.native
    assert reader is not None
    source, link = Source("agent", "run", "1", "tool", 3), Link("of", "step/1", 1, None)
    causes = ["cd" * 32, "AB" * 32, "cd" * 32]
    given_parts: list[tuple[Kind, dict[str, Any], Link | None]] = [
        ("assert", {"tool": "x"}, None), ("link", {}, link), ("unlink", {}, link),
    ]  # fmt: skip
    for kind, patch, tie in given_parts:
        made = Observation("tool_config/a", 5, kind, 0, source, (b"\xab" * 32, b"\xcd" * 32), patch, link=tie)
        assert reader.encode_new(("tool_config/a", 5, kind, source, causes, patch, tie)) == reader.encode(made)
        assert reader.encode(made) is not None
        assert reader.encode_new(("tool_config/", 5, kind, source, causes, patch, tie)) is None
