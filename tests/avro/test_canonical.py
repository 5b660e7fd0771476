"""Canonical bytes: one form for one value, whatever Python holds it in."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.canonical import (
    MAX_DEPTH,
    _checked_tree,
    check_json_text,
    decode,
    encode,
    in_key_order,
    json_text,
    json_tree,
    map_head,
    number,
    text,
)
from refold.avro.errors import ValidationError
from refold_tests import reference_cbor
from refold_tests.specimens import JSONS

FINITE = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**64 - 1)
# Any canonical tree: JSON values and bytes in them.
TREES = st.recursive(
    JSONS | st.none() | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=30), inner, max_size=4),
    max_leaves=8,
)


def normal(tree: Any) -> Any:
    """A tree under the number rules, bytes left as they are."""
    if isinstance(tree, Mapping):
        return {key: normal(each) for key, each in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, (str, bytes)):
        return [normal(each) for each in tree]
    return tree if isinstance(tree, bytes) else json_tree(tree)


def joined(tree: Mapping[str, Any], keys: Sequence[str]) -> bytes:
    """A map's bytes from those of its members, given in any order."""
    members = [key + encode(normal(tree[name])) for name, key in in_key_order(tuple(keys))]
    return map_head(len(members)) + b"".join(members)


@given(TREES)
def test_cbor_matches_the_reference(tree: Any) -> None:
    assert encode(normal(tree)) == reference_cbor.encode(reference_cbor.canonical(tree))


@given(TREES)
def test_cbor_round_trips(tree: Any) -> None:
    data = encode(normal(tree))
    assert decode(data) == normal(tree)
    assert encode(decode(data)) == data


@given(st.dictionaries(st.text(max_size=30), JSONS, max_size=8), st.randoms())
def test_key_order_does_not_matter(tree: dict[str, Any], random: Any) -> None:
    keys = list(tree)
    random.shuffle(keys)
    shuffled = {key: tree[key] for key in keys}
    assert encode(normal(shuffled)) == encode(normal(tree))
    assert json_text(shuffled) == json_text(tree)
    assert joined(tree, keys) == encode(normal(tree))


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 1000])
def test_map_joined_from_members_equals_the_encoded_map(count: int) -> None:
    tree = {f"key {number}": number for number in range(count)}
    assert joined(tree, list(tree)) == encode(tree)


@given(INTEGERS | FINITE)
def test_numbers_have_one_form(value: int | float) -> None:
    found = number(value)
    assert found == value
    assert number(found) is found or number(found) == found
    assert type(number(found)) is type(found)
    integral = value == math.floor(value) and -(2**63) <= value < 2**64
    assert type(found) is (int if integral else float)


@given(INTEGERS)
def test_equal_numbers_have_equal_bytes(value: int) -> None:
    assert encode(number(float(value))) == encode(number(int(float(value))))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (-0.0, "00"),
        (1.0, "01"),
        (2.0**63, "1b8000000000000000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-(2.0**63), "3b7fffffffffffffff"),
        (2**64, "fa5f800000"),
        (0.5, "f93800"),
        (65504.0, "19ffe0"),
        (2.0**-24, "f90001"),
        (2.0**-149, "fa00000001"),
        (0.1, "fb3fb999999999999a"),
        (1e300, "fb7e37e43c8800759c"),
    ],
)
def test_numbers_in_cbor(given: float, found: str) -> None:
    assert encode(number(given)).hex() == found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**64 + 1, -(2**63) - 1, 10**400])
def test_non_finite_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValidationError, match=r"^place: "):
        number(value, "place")


def test_integer_too_long_to_print_is_refused() -> None:
    with pytest.raises(ValidationError, match="cannot be shown"):
        number(10**5000)


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", "\ud83d \ude80"])
def test_lone_surrogates_are_refused(value: str) -> None:
    with pytest.raises(ValidationError, match="lone surrogates") as caught:
        text(value)
    assert str(caught.value).isascii()
    for tree in (value, [value], {"k": value}, {value: "v"}):
        with pytest.raises(ValidationError):
            json_text(tree)


class Colour(str, enum.Enum):  # noqa: UP042 - a StrEnum's str() is its text; the older form's is not
    """A text that says something else when asked."""

    RED = "red"


class Level(enum.IntEnum):
    """An integer with a name."""

    HIGH = 3


class Measured(float):
    """A float that shows itself in another way, as some libraries' do."""

    def __repr__(self) -> str:
        return f"Measured({float(self)})"


def test_subclasses_are_encoded_as_their_base_values() -> None:
    tree = json_tree({Colour.RED: [Colour.RED, Level.HIGH, Measured(0.1), Measured(2.0)]})
    assert tree == {"red": ["red", 3, 0.1, 2]}
    assert isinstance(tree, dict)
    ((key, (word, level, measured, whole)),) = tree.items()
    assert [type(each) for each in (key, word, level, measured, whole)] == [str, str, int, float, int]
    assert json_text({Colour.RED: Measured(0.1)}) == '{"red":0.1}'


# What Node 20 prints for each; avro/vectors/canonical_json.json has more, and Node itself reads those.
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.1, "0.1"),
        (-0.0, "0"),
        (100.0, "100"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e21, "1.5e+21"),
        (123456789012345680000.0, "123456789012345680000"),
        (1.8446744073709552e19, "18446744073709552000"),
        (1e-6, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (-1e-7, "-1e-7"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.000123, "0.000123"),
        (123.456, "123.456"),
        (2**64 - 1, "18446744073709551615"),
    ],
)
def test_numbers_as_ecmascript_writes_them(value: float, shown: str) -> None:
    assert json_text(value) == shown


@given(st.recursive(st.none() | st.booleans() | INTEGERS | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_json_matches_pythons_encoder_except_for_floats(value: Any) -> None:
    assert json_text(value) == json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@given(FINITE)
def test_json_number_round_trips(value: float) -> None:
    assert float(json_text(value)) == value


@pytest.mark.parametrize("digits", ["5", "-1.5", "7.374512500957098", "9.007199254740991"])
def test_float_in_a_list_is_written_as_alone(digits: str) -> None:
    """Lists and objects of plain values are written by the encoder in one go; a tuple never is."""
    for power in range(-12, 22):
        value = float(f"{digits}e{power}")
        assert json_text([value, {"a": value}]) == json_text((value, {"a": value}))


@given(JSONS)
def test_canonical_json_round_trips_to_itself(value: Any) -> None:
    found = json_text(value)
    assert json_text(json.loads(found)) == found
    assert check_json_text(found) == found


@pytest.mark.parametrize("value", [2.0**64, 1.2345678901234567e20, -1.2345678901234567e20, 9.999999999999999e20])
def test_integral_floats_in_json_keep_their_value(value: float) -> None:
    """JSON gives their shortest digits and zeros, which no double equals; a reader must come to the same float."""
    shown = json_text(value)
    assert json.loads(shown) != value or value == 2.0**64
    assert json_tree(json.loads(shown)) == value
    assert json_text(json.loads(shown)) == shown


@pytest.mark.parametrize(
    "given",
    [
        *('{"b":1,"a":2}', '{"a":1,"a":1}', '{"a": 1}', " 1", "1 ", "1.0", "-0", "-0.0", "1e2", "1E+22", "1e22"),
        *("1e-07", "0.10", "NaN", "Infinity", "-Infinity", "[NaN]", "", "x", "[1,]", '"\\u0041"', '"\\/"', "'a'"),
        *('"\\ud800"', "99999999999999999999999", "18446744073709551617", "nul", "\ufeff1", '"\x01"', "{1:2}"),
        *("[" * 65 + "]" * 65, "[" * 100_000, '{"a":' * 65 + "1" + "}" * 65, "1" * 5000),
    ],
)
def test_non_canonical_json_is_detected(given: str) -> None:
    with pytest.raises(ValidationError, match="canonical JSON"):
        check_json_text(given)


@given(JSONS)
def test_json_of_other_writers_is_detected_as_non_canonical(value: Any) -> None:
    for written in (json.dumps(value), json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False)):
        if written == json_text(value):
            assert check_json_text(written) == written
        else:
            with pytest.raises(ValidationError):
                check_json_text(written)


def nested(depth: int) -> Any:
    """So many lists, one in another."""
    tree: Any = 1
    for _ in range(depth):
        tree = [tree]
    return tree


def test_json_has_a_greatest_depth() -> None:
    assert json_text(nested(MAX_DEPTH)) == "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH
    assert check_json_text(json_text(nested(MAX_DEPTH)))
    with pytest.raises(ValidationError, match=f"deeper than {MAX_DEPTH} levels"):
        json_text(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("value", [b"x", {1: "a"}, {None: 1}, object(), {1, 2}, [b"x"], 1j, math.nan, [math.inf]])
def test_values_without_a_json_form_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"^patch\.a"):
        json_text(value, "patch.a")


def test_refusal_names_the_inner_path() -> None:
    with pytest.raises(ValidationError) as caught:
        json_text({"rows": [{"n": 1}, {"n": math.nan}]}, "patch.a")
    assert str(caught.value) == "patch.a.rows[1].n: NaN and infinity are not values; given nan"


def test_cut_may_have_integer_keys() -> None:
    tree = {"p": {300: 1, 2: 5, 24: 0}}
    assert encode(tree) == bytes.fromhex("a16170a30205181800") + bytes.fromhex("19012c01")
    assert cbor2.loads(encode(tree)) == tree


class Text(str):
    """A string that is no plain one."""


ODD = (
    JSONS | st.none() | st.booleans() | INTEGERS | st.integers() | st.floats() | st.text().map(Text) | st.just("\ud800")
)
ODD_TREES = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.just("\ud800") | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def outcome(function: Any, tree: Any) -> Any:
    """What comes of it: the tree to the type of each value, or the refusal."""
    try:
        return repr(function(tree, "json", 0))
    except ValidationError as error:
        return str(error)


@given(ODD_TREES)
def test_plain_trees_take_the_fast_path_with_the_same_result(tree: Any) -> None:
    assert outcome(json_tree, tree) == outcome(_checked_tree, tree)
