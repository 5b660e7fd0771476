"""The envelope at the door: what an observation must say of itself, and how what it may not say is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given

from refold.avro.envelope import FUTURE_MICROS, ObservationValidator, check_entity, check_id, check_name
from refold.avro.errors import InputError, ValidationError
from refold.avro.ids import identify
from refold.avro.observation import Link, Observation, Source
from refold.avro.times import TIME_MAX, TIME_MIN
from refold_tests.specimens import built, given_observations, typed

TYPE = typed(
    {"name": "a", "type": "long"},
    {"name": "title", "type": "string", "refold.name": "heading", "aliases": ["heading"]},
)
ID_A, ID_B = b"a" * 32, b"b" * 32
NOW = 1_700_000_000_000_000
LINK = Link("uses", "tool_config/acme")


def build(**given: Any) -> Observation:
    """An observation of t/1 that says a = 1 unless told otherwise."""
    every = {"entity": "t/1", "patch": {"a": 1}, "observed_at": NOW, "now": NOW, "source": Source(), **given}
    return ObservationValidator(TYPE).build(**every)


def linking(kind: str = "link", link: Any = LINK, **given: Any) -> Observation:
    """A link or unlink."""
    return build(patch=None, kind=kind, link=link, **given)


@pytest.mark.parametrize(
    ("given", "field", "rule"),
    [
        ({"entity": "t"}, "entity", "TYPE/ID, such as tool_config/acme"),
        ({"entity": "t/"}, "entity", "TYPE/ID, such as tool_config/acme"),
        ({"entity": "/1"}, "entity", "TYPE/ID, such as tool_config/acme"),
        ({"entity": "t-t/1"}, "entity", "TYPE/ID, such as tool_config/acme"),
        ({"entity": "t\n/1"}, "entity", "no control characters"),
        ({"entity": ""}, "entity", "must not be empty"),
        ({"entity": None}, "entity", "a string"),
        ({"entity": b"t/1"}, "entity", "a string"),
        ({"entity": "u/1"}, "entity", "an entity of type t"),
        ({"entity": "t/" + "x" * 1023}, "entity", "at most 1024 bytes of UTF-8"),
        ({"entity": "t/" + "\u00e9" * 512}, "entity", "at most 1024 bytes of UTF-8"),
        ({"entity": "t/" + "x" * 100_000}, "entity", "at most 1024 bytes of UTF-8"),
        ({"entity": "t/a\tb"}, "entity", "no control characters"),
        ({"entity": "t/\x7f"}, "entity", "no control characters"),
        ({"entity": "t/\x85"}, "entity", "no control characters"),
        ({"entity": "t/\ud800"}, "entity", "a string must be Unicode text without lone surrogates"),
        ({"observed_at": None}, "observed_at", "microseconds since 1970, within the years 1 to 9999"),
        ({"observed_at": 1.5}, "observed_at", "microseconds since 1970, within the years 1 to 9999"),
        ({"observed_at": True}, "observed_at", "microseconds since 1970, within the years 1 to 9999"),
        ({"observed_at": TIME_MAX + 1}, "observed_at", "microseconds since 1970, within the years 1 to 9999"),
        ({"observed_at": TIME_MIN - 1}, "observed_at", "microseconds since 1970, within the years 1 to 9999"),
        ({"kind": "retract"}, "kind", "one of assert, link, unlink"),
        ({"kind": None}, "kind", "one of assert, link, unlink"),
        ({"kind": ["assert"]}, "kind", "one of assert, link, unlink"),
        ({"priority": 2**31}, "priority", "an integer in [-2147483648, 2147483647]"),
        ({"priority": 1.0}, "priority", "an integer in [-2147483648, 2147483647]"),
        ({"priority": True}, "priority", "an integer in [-2147483648, 2147483647]"),
        ({"priority": None}, "priority", "an integer in [-2147483648, 2147483647]"),
        ({"source": None}, "source", "a Source"),
        ({"source": {"agent": "a"}}, "source", "a Source"),
        ({"source": Source(agent="a\nb")}, "source.agent", "no control characters"),
        ({"source": Source(run=5)}, "source.run", "a string"),  # type: ignore[arg-type]
        ({"source": Source(step=None)}, "source.step", "a string"),  # type: ignore[arg-type]
        ({"source": Source(tool="x" * 1025)}, "source.tool", "at most 1024 bytes of UTF-8"),
        ({"source": Source(seq=-1)}, "source.seq", "an integer from 0, below 2^63"),
        ({"source": Source(seq=2**63)}, "source.seq", "an integer from 0, below 2^63"),
        ({"source": Source(seq=True)}, "source.seq", "an integer from 0, below 2^63"),
        ({"source": Source(seq=1.0)}, "source.seq", "an integer from 0, below 2^63"),  # type: ignore[arg-type]
        ({"causes": [ID_A[:31]]}, "causes", "an observation's id: 64 hexadecimal digits"),
        ({"causes": ["zz" * 32]}, "causes", "an observation's id: 64 hexadecimal digits"),
        ({"causes": ["aa " * 32]}, "causes", "an observation's id: 64 hexadecimal digits"),
        ({"causes": [32]}, "causes", "an observation's id: 64 hexadecimal digits"),
        ({"causes": [10**15]}, "causes", "an observation's id: 64 hexadecimal digits"),
        ({"causes": [None]}, "causes", "an observation's id: 64 hexadecimal digits"),
        ({"causes": [[1] * 32]}, "causes", "an observation's id: 64 hexadecimal digits"),
        ({"causes": ID_A}, "causes", "a list of ids"),
        ({"causes": ID_A.hex()}, "causes", "a list of ids"),
        ({"causes": 5}, "causes", "a list of ids"),
        ({"retracts": [ID_A.hex()[:-1]]}, "retracts", "an observation's id: 64 hexadecimal digits"),
        ({"retracts": ID_A.hex()}, "retracts", "a list of ids"),
        ({"cleared": "a"}, "cleared", "a list of field names"),
        ({"cleared": ["b"]}, "cleared", "t has the fields a, title"),
        ({"cleared": [["a"]]}, "cleared", "t has the fields a, title"),
        ({"cleared": [None]}, "cleared", "t has the fields a, title"),
        ({"subject": None}, "subject", "a string"),
        ({"subject": 0}, "subject", "a string"),
        ({"subject": "a\0b"}, "subject", "no control characters"),
        ({"patch": ["a"]}, "patch", "an object of fields and their values"),
        ({"patch": {"b": 1}}, "patch.b", "t has the fields a, title"),
        ({"patch": {1: 1}}, "patch.1", "t has the fields a, title"),
        ({"patch": {"a": None}}, "patch.a", "an assertion has a value; to take a field back, name it in cleared"),
        (
            {"patch": {"title": "x", "heading": "y"}},
            "patch.heading",
            "heading is given twice, by its first name and its later one",
        ),
        ({"patch": {}}, "patch", "an assert says something: fields, cleared or retracts"),
        ({"patch": None}, "patch", "an assert says something: fields, cleared or retracts"),
        ({"link": LINK}, "link", "goes with the kinds link and unlink"),
        ({"kind": "link"}, "link", "the kind link needs a Link: a relation and a target"),
        ({"kind": "link", "link": ("a", "t/1")}, "link", "the kind link needs a Link: a relation and a target"),
        ({"kind": "link", "link": LINK}, "kind", "link has no patch, no cleared and no retracts"),
        ({"kind": "unlink", "patch": None}, "link", "the kind unlink needs a Link: a relation and a target"),
    ],
)
def test_invalid_envelope_parts(given: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(**given)
    assert (caught.value.field, caught.value.rule) == (field, rule)
    assert str(caught.value).startswith(f"{field}: {rule}; given ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("given", "field", "rule"),
    [
        ({"cleared": ["a"]}, "kind", "link has no patch, no cleared and no retracts"),
        ({"retracts": [ID_A]}, "kind", "link has no patch, no cleared and no retracts"),
        ({"link": Link("", "t/1")}, "link.relation", "must not be empty"),
        ({"link": Link("r\n", "t/1")}, "link.relation", "no control characters"),
        ({"link": Link("r", "t")}, "link.target", "TYPE/ID, such as tool_config/acme"),
        ({"link": Link("r", None)}, "link.target", "a string"),  # type: ignore[arg-type]
        (
            {"link": Link("r", "t/1", valid_from=TIME_MAX + 1)},
            "link.valid_from",
            "microseconds since 1970, within the years 1 to 9999",
        ),
        (
            {"link": Link("r", "t/1", valid_to="2026")},  # type: ignore[arg-type]
            "link.valid_to",
            "microseconds since 1970, within the years 1 to 9999",
        ),
    ],
)
def test_invalid_link_parts(given: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        linking(**given)
    assert (caught.value.field, caught.value.rule) == (field, rule)


def test_longest_names_are_accepted() -> None:
    assert check_entity("t/" + "x" * 1022)
    assert check_entity("t/a/b c\u2028\U0001f680")
    assert check_name("", "subject", empty=True) == ""
    assert check_id(ID_A.hex().upper(), "id") == check_id(bytearray(ID_A), "id") == ID_A


def test_time_too_far_in_the_future_is_refused_unless_allowed() -> None:
    assert build(observed_at=NOW + FUTURE_MICROS).observed_at == NOW + FUTURE_MICROS
    with pytest.raises(ValidationError) as caught:
        build(observed_at=NOW + FUTURE_MICROS + 1)
    assert str(caught.value) == (
        "observed_at: at most 5 minutes ahead of this clock (2023-11-14T22:13:20.000000Z), unless allowed "
        "(--allow-future); given '2023-11-14T22:18:20.000001Z'"
    )
    assert build(observed_at=TIME_MAX, allow_future=True).observed_at == TIME_MAX


def test_sets_are_sorted_without_repeats() -> None:
    found = build(causes=[ID_B, ID_A.hex(), ID_A], retracts=iter([ID_B, ID_A]), cleared=["title", "heading", "a"])
    assert found.causes == found.retracts == (ID_A, ID_B)
    assert found.cleared == ("a", "heading")


def test_field_is_accepted_under_either_name() -> None:
    assert build(patch={"title": "x"}) == build(patch={"heading": "x"})
    assert build(patch={"title": "x"}).patch == {"heading": "x"}


@given(given_observations())
def test_same_statement_has_the_same_id(parts: dict[str, Any]) -> None:
    assert identify(built(parts)) == identify(built(dict(reversed(parts.items()))))


CHANGED: dict[str, Any] = {
    "entity": "t/2",
    "observed_at": NOW + 1,
    "priority": 1,
    "causes": [ID_A],
    "patch": {"a": 2},
    "cleared": ["title"],
    "retracts": [ID_A],
    "subject": "s",
    **{f"source.{each}": 1 if each == "seq" else "x" for each in Source._fields},
}


def test_every_part_of_an_observation_changes_the_id() -> None:
    ids = {identify(build())}
    for name, value in CHANGED.items():
        outer, _, part = name.partition(".")
        ids.add(identify(build(**{outer: Source(**{part: value}) if part else value})))
    links = [LINK, Link("used", LINK.target), Link(LINK.relation, "t/2")]
    links += [
        dataclasses.replace(LINK, valid_from=start, valid_to=end) for start, end in ((0, None), (None, 0), (0, 0))
    ]
    for kind in ("link", "unlink"):
        ids |= {identify(linking(kind, link)) for link in links}
    assert len(ids) == 1 + len(CHANGED) + 2 * len(links)
    envelope = set(Observation._fields) - {"kind", "link", "source"}
    assert envelope == {name for name in CHANGED if "." not in name}


def test_every_refusal_is_an_input_error() -> None:
    with pytest.raises(InputError):
        build(entity="")
