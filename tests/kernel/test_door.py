"""The kernel's door against Python's: the same observation of whatever an author gives, or the same refusal."""

from __future__ import annotations

import enum
import json
from collections import Counter, UserDict, deque
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.blob import Blob, Sealed
from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition, parse
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import ValidationError
from refold.avro.kernel import find_kernel
from refold.avro.kernel_layouts import field_layouts
from refold.avro.observation import Kind, Link, Observation, Source
from refold.avro.registry import TypeVersion
from refold.avro.shipped import shipped_types
from refold.avro.times import TIME_MAX, TIME_MIN
from refold_tests import specimens
from refold_tests.both_folds import switched
from refold_tests.random_types import TYPES, definitions


class Text(str):
    """No plain text."""


class Mood(enum.StrEnum):
    """Texts of another type."""

    GOOD = "good"


ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**30, 0.0, -0.0, 0.1, 0.5, 1.0, 2.0**24 + 1,
    2.0**63, 2.0**64, 1e300, float("inf"), float("nan"), "", "a", "\ud800", "é" * 3000, "x" * 40_000, Text("good"),
    Mood.GOOD, "good", "2026-01-01", b"", b"four", bytearray(b"four"), [], ["a"], {}, {"x": 1}, (1, 2), {1, 2},
)  # fmt: skip
ODD = st.sampled_from(ODD_VALUES)


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


class TextLink(Link):
    """A link of another class."""


class OtherLink(NamedTuple):
    """Has the attributes of a link."""

    relation: str
    target: str
    valid_from: int | None = None
    valid_to: int | None = None


class OwnSource(Source):
    """A source of another class."""


class Patch(dict[str, Any]):
    """No plain dict."""


class OwnTuple(tuple[Any, ...]):
    """No plain tuple."""


class Several(NamedTuple):
    """Things in a container or iterator that is made for each call."""

    made: Callable[[list[Any]], Any]
    things: list[Any]


class Limited(NamedTuple):
    """An observation's time, and whether it may be in the future."""

    observed_at: Any
    allow_future: bool


def deep(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def items_of(patch: dict[Any, Any]) -> list[Any]:
    return [*patch.items()]


NOW = 1_700_000_000_000_000
MINUTE = 60_000_000
NAMES: list[Any] = [
    "", "a", "run 1", "é", "x" * 1024, "x" * 1025, "é" * 512, "é" * 513, "a\nb", "\x7f", "\u0085", "\ud800", Text("a"),
    Mood.GOOD, 3, None, b"a",
]  # fmt: skip
TARGETS: list[Any] = [
    "step/1", "step/", "/1", "step", "1step/1", "s-t/1", "étape/1", "step/\n", Text("step/1"), "step/\ud800", 3, "a/b/",
]  # fmt: skip
TIMES: list[Any] = [
    0, 1, -1, NOW, NOW + 5 * MINUTE, NOW + 5 * MINUTE + 1, NOW + 6 * MINUTE, -(2**62), TIME_MIN, TIME_MIN - 1, TIME_MAX,
    TIME_MAX + 1, 2**63, 2**70, True, False, 1.0, "1", None,
]  # fmt: skip
IDS = ["ab" * 32, "AB" * 32, b"\xab" * 32, "cd" * 32, b"\x00" * 32, bytearray(b"\xcd" * 32)]
ODD_IDS = ["ab" * 31, "zz" * 32, " a" * 32, "", "é" * 64, "é" * 32, "ab " * 21 + "a", "\ud800" * 64, b"a" * 31, b"", 3,
           None, Text("ab" * 32), memoryview(b"m" * 32)]  # fmt: skip
CONTAINERS: list[Callable[[list[Any]], Any]] = [list, tuple, iter, OwnTuple, deque]
NO_LISTS = ["ab" * 32, b"\xab" * 32, "", b"", None, 3, {"ab" * 32: 1}]
LISTS = [*NO_LISTS, *(Several(container, [*IDS, IDS[0]]) for container in CONTAINERS),
         *(Several(container, [IDS[0], odd]) for container in CONTAINERS for odd in [*IDS, *ODD_IDS]),
         *(Several(container, []) for container in CONTAINERS)]  # fmt: skip
LINK = Link("of", "step/1", 1, None)
LINKS: list[Any] = [
    None, LINK, "step/1", TextLink("of", "step/1"), OtherLink("of", "step/1"),
    *(Link(each, "step/1") for each in NAMES), *(Link("of", each) for each in TARGETS),
    *(Link("of", "step/1", each, NOW) for each in TIMES), *(Link("of", "step/1", None, each) for each in TIMES),
]  # fmt: skip
SOURCE = Source("agent", "run", "1", "tool", 3)
SEQS: list[Any] = [0, 7, -1, 2**63 - 1, 2**63, 2**64, True, 1.0, "1", None]
PARTS = ("agent", "run", "step", "tool")
SOURCES = [SOURCE, OwnSource("agent", "run"), Source(), *(SOURCE._replace(seq=each) for each in SEQS),
           *(SOURCE._replace(**{part: each}) for part in PARTS for each in NAMES)]  # fmt: skip


def odd_parts(definition: TypeDefinition) -> dict[str, list[Any]]:
    """The forms of each part of a new observation except its patch."""
    name, names = definition.name, [*definition.fields]
    return {
        "entity": [
            f"{name}/é", f"{name}/", f"{name}", f"{name}x/a", "run/a", f"{name}/\n", "", f"{name}/\ud800", 3, None,
            Text(f"{name}/a"), f"{name}/{'x' * 1024}", f"{name}//", f"{name}/ ",
        ],
        "observed_at": [Limited(each, allowed) for each in TIMES for allowed in (False, True)],
        "kind": ["assert", "link", "unlink", "other", "", "Assert", Text("assert"), Text("link"), None, 3],
        "priority": [1, -1, 2**31 - 1, -(2**31), -(2**31) - 1, 2**31, 2**63, True, False, "1", 1.0, None],
        "source": SOURCES,
        "causes": LISTS,
        "cleared": [
            *(Several(container, [*each]) for container in CONTAINERS for each in ([], names[:1], ["no"], [3])),
            names[0], "", None, 3,
        ],
        "retracts": LISTS,
        "link": LINKS,
        "subject": NAMES,
        "blobs": [None],
    }  # fmt: skip


UNUSUAL = [
    {"y": 0.5, "z": [0.5] * 9}, {"z": [], "y": 1}, {"x": "x", "y": 0.5, "z": []}, {"x": None, "y": 0.5, "z": []},
    {"y": 0.1, "z": [0.1]}, {"y": 0.5, "z": [None, 1.0]}, {"y": 0.5}, {"y": 0.5, "z": [], "w": 1},
    deep("x", 63), deep("x", 64), deep("x", 65), deep({}, 2000), {"k": {"k": {"k": -0.0}}}, [-0.0], [1.0], [2.0**53],
    [2**53 + 1], [2**63], [2**64], [float("nan")], [float("inf")], ["\ud800"], {"\ud800": 1}, {"k": "\ud800"}, {1: 2},
    {Text("k"): "v"}, {"k": Text("v")}, [None], {"k": None}, {"k": True}, [True], [Mood.GOOD], [b"four"], ("a",),
    Patch(k="v"), MappingProxyType({"k": "v"}), UserDict(k="v"), Decimal("1.5"), -(2**63), -(2**63) - 1, 2**31 - 1,
    {"unscaled": 1, "scale": 0}, {"unscaled": 10, "scale": 1}, {"scale": 3, "unscaled": -7}, -719_163, 2_932_896,
    2_932_897, TIME_MIN, TIME_MAX, TIME_MAX + 1, 86_400_000, 16_777_217, -16_777_216, 65504.0, 5e-324,
    {"hash": b"h" * 32, "size": 1, "media_type": "text/plain"}, {"key_id": "k", "ciphertext": b"c"},
    Blob(b"h" * 32, 1, "text/plain"), Blob(b"h" * 31, 1, "text/plain"), Sealed("k", b"c"), Sealed("\ud800", b"c"),
    [Blob(b"h" * 32, 1, "text/plain")], {"k": Sealed("k", b"c")}, [["a"]], [{}], [{"y": 0.5, "z": []}],
    "12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-56781234567A", '{"b": 1, "a": 2}', "null",
]  # fmt: skip
"""Lists, objects and values at the limits of types."""
MADE: list[Callable[[int], Any]] = [
    lambda size: "x" * size, lambda size: "é" * size, lambda size: b"x" * size, lambda size: [1] * size,
    lambda size: ["a"] * size, lambda size: [0.5] * size, lambda size: ["x" * size], lambda size: {"k": "x" * size},
    lambda size: {f"k{number}": number for number in range(size)}, lambda size: {"y": 0.5, "z": [0.5] * size},
    lambda size: {"x": "x" * size, "y": 0.5, "z": []}, lambda size: [{"y": 1.5, "z": [0.5] * size}],
]  # fmt: skip
SIZED = st.builds(lambda made, size: made(size), st.sampled_from(MADE), st.integers(0, 70) | st.integers(0, 2000))
"""Values around the limits of fields."""


def every_kind() -> TypeDefinition:
    """A type with a field of each kind."""
    fields = []
    for name, each in TYPES.items():
        schema = json.loads(json.dumps(each).replace('"The', f'"The_{name}_'))
        fields.append({"name": name, "type": schema, "refold.reducer": "latest"})
    return parse({"type": "record", "name": "t", "fields": fields})


def limited(definition: TypeDefinition, inline_bytes: int) -> TypeDefinition:
    """A type with this limit of each field."""
    fields = [{**each, "refold.inline": inline_bytes} for each in definition.document["fields"]]
    return parse({**definition.document, "fields": fields})


def odd_patches(definition: TypeDefinition) -> st.SearchStrategy[Any]:
    """Patches that hold unusual values, under the fields' names or others, or that are no plain dict."""
    names = [*definition.fields, *definition.by_first_name]
    fields = st.sampled_from(names * 3 + [*map(Text, names), "unknown", "\ud800", 1])
    values = ODD | st.sampled_from(UNUSUAL) | SIZED
    given_patches = st.dictionaries(fields, values, min_size=1, max_size=3) | specimens.patches(definition)
    shapes = st.sampled_from([dict, dict, dict, dict, Patch, MappingProxyType, UserDict, items_of])
    return st.builds(lambda shape, patch: shape(patch), shapes, given_patches) | st.sampled_from([None, {}, [], "x", 3])


@st.composite
def new_observations(draw: st.DrawFn) -> tuple[TypeDefinition, dict[str, Any]]:
    """Draw a type and the parts of an observation of it, of which at most three are unusual."""
    shipped = st.sampled_from([shipped_types()["tool_config"], shipped_types()["effect"]])
    small = st.builds(limited, definitions(), st.sampled_from((1, 9, 20, 40, 64)))
    definition = draw(st.just(specimens.specimen()) | definitions() | small | small | shipped)
    parts = usual_parts(definition, draw(specimens.patches(definition)))
    if draw(st.integers(0, 3)) == 0:
        parts |= {"kind": draw(st.sampled_from(["link", "unlink"])), "link": LINK, "patch": None}
    odd = {name: st.sampled_from(each) for name, each in odd_parts(definition).items()}
    odd["patch"] = odd_patches(definition)
    chosen = draw(st.lists(st.sampled_from(sorted(odd)), max_size=3, unique=True))
    return definition, parts | {name: draw(odd[name]) for name in chosen}


def usual_parts(definition: TypeDefinition, patch: Any) -> dict[str, Any]:
    return {
        "entity": f"{definition.name}/a", "patch": patch, "observed_at": 1, "now": NOW, "source": SOURCE,
        "causes": Several(list, IDS[:4]), "priority": 2, "subject": "é", "blobs": {},
    }  # fmt: skip


def encoded(version: TypeVersion, parts: dict[str, Any]) -> tuple[str, Any]:
    """The bytes and the id of a new observation, or its refusal; and the contents that the store gets."""
    made = {name: each.made(each.things) if isinstance(each, Several) else each for name, each in parts.items()}
    if isinstance(made["observed_at"], Limited):
        made |= made["observed_at"]._asdict()
    made["blobs"] = None if parts["blobs"] is None else {}
    try:
        data, own, _ = version.encode(**made)
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    return f"{data!r} {own!r}", made["blobs"]


class Versions:
    """A type with the kernel, and without it."""

    def __init__(self, definition: TypeDefinition) -> None:
        self._versions = []
        for kernel in (True, False):
            with switched(on=kernel):
                version = TypeVersion(definition, 0, 0)
                assert (version.codec.native is not None) == kernel
                assert version.validator is not None  # made here
            self._versions.append(version)

    def compare(self, parts: dict[str, Any]) -> bool:
        """Check that both are equal; returns whether it was encoded."""
        native, python = (encoded(version, parts) for version in self._versions)
        assert native == python, parts
        return python[1] is not None or not python[0].startswith(("ValidationError", "AttributeError"))


@given(new_observations())
def test_new_observations_are_encoded_identically(drawn: tuple[TypeDefinition, dict[str, Any]]) -> None:
    definition, parts = drawn
    Versions(definition).compare(parts)


@pytest.mark.parametrize("kind", ["assert", "link"])
def test_each_form_of_a_part_is_encoded_or_refused_identically(kind: str) -> None:
    definition = shipped_types()["tool_config"]
    usual = usual_parts(definition, {"tool": "x", "rate_limit": 3, "tags": ["b", "a"]})
    if kind == "link":
        usual |= {"kind": "link", "link": LINK, "patch": None}
    versions, found = Versions(definition), Counter[bool]()
    for part, forms in odd_parts(definition).items():
        for form in forms:
            found[versions.compare({**usual, part: form})] += 1
    assert min(found[True], found[False]) > 100


@pytest.mark.parametrize("inline_bytes", [40, 100_000])
def test_each_value_in_each_kind_of_field_is_encoded_or_refused_identically(inline_bytes: int) -> None:
    """Next to another field, whose value is canonical as it is given."""
    definition = limited(every_kind(), inline_bytes)
    versions, found = Versions(definition), Counter[bool]()
    sized = [made(size) for made in MADE for size in (0, 1, 2, 5, 20, 29, 30, 31, 32, 36, 37, 38, 39, 40, 41, 60)]
    for name in definition.fields:
        other = "int" if name == "string" else "string"
        for value in [*ODD_VALUES, *UNUSUAL, *sized]:
            parts = usual_parts(definition, {other: 1 if other == "int" else "x", name: value})
            found[versions.compare(parts)] += 1
            if inline_bytes == 40:
                versions.compare({**parts, "blobs": None})
    assert min(found[True], found[False]) > 500


@pytest.mark.parametrize(
    "source",
    [("agent", "run", "1", "tool", 3), ["agent", "run", "1", "tool", 3], ("agent",), "agent", None],
    ids=["a tuple", "a list", "a short tuple", "a text", "None"],
)
def test_what_is_no_source_is_refused_identically(source: Any) -> None:
    definition = shipped_types()["tool_config"]
    Versions(definition).compare({**usual_parts(definition, {"tool": "x"}), "source": source})


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
        assert reader.encode_new(("tool_config/a", 5, kind, 0, source, causes, patch, tie, ""), False) == reader.encode(
            made
        )
        assert reader.encode(made) is not None
        assert reader.encode_new(("tool_config/", 5, kind, 0, source, causes, patch, tie, ""), False) is None
