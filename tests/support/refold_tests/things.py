"""The type `thing`, a field for every reducer, and random histories of a few things: what tests of logs write.

A history holds clears, links, repeats, retractions before and after their target, and observations that come late.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from refold.avro.definition import TypeDefinition, parse
from refold.avro.ids import identify
from refold.avro.observation import Link, Observation, Source
from refold.reducers.custom import code_of
from refold_tests.reference import Definition, FieldSpec

BEGIN = 1_700_000_000_000_000
"""When the first observation was made, in microseconds."""

NAMES = ("thing/a", "thing/a/b", "thing/aa", "thing/a ", "thing/ä", "thing/" + "long" * 200)
"""Entities whose names begin with one another, and a long one."""


def joined(value: str | None, assertion: Any) -> str:
    """A custom reducer that depends on the order: every value, one after the other."""
    return f"{value or ''}{assertion.value}"


def document(**more: Mapping[str, Any]) -> dict[str, Any]:
    """The type file of `thing`, with further fields by name."""
    fields: dict[str, Mapping[str, Any]] = {
        "newest": {"type": ["null", "long"], "refold.reducer": "latest"},
        "oldest": {"type": "string", "refold.reducer": "first"},
        "least": {"type": "double", "refold.reducer": "min"},
        "most": {"type": "string", "refold.reducer": "max"},
        "total": {"type": "double", "refold.reducer": "sum"},
        "times": {"type": "boolean", "refold.reducer": "count"},
        "kinds": {"type": {"type": "array", "items": "string"}, "refold.reducer": "union"},
        "recent": {"type": {"type": "array", "items": "long"}, "refold.reducer": "append", "refold.limit": 3},
        "settings": {"type": {"type": "map", "values": ["null", "string"]}, "refold.reducer": "map"},
        "story": {
            "type": "string",
            "refold.reducer": "custom",
            "refold.function": f"{__name__}:{joined.__name__}",
        },
        **more,
    }
    return {
        "type": "record",
        "namespace": "refold.types",
        "name": "thing",
        "fields": [{"name": name, **field} for name, field in fields.items()],
    }


def defined(given: Mapping[str, Any]) -> TypeDefinition:
    """The definition in a type file."""
    return parse(given, code_of)


THING = defined(document())


def reference_definition(definition: TypeDefinition) -> Definition:
    """The same fields as the naive fold wants them."""
    return {
        each.first_name: FieldSpec(
            each.reducer, each.limit or None, joined if each.reducer == "custom" else None
        )
        for each in definition.fields.values()
    }


def said(entity: str, number: int, **patch: Any) -> Observation:
    """The number-th observation of an agent, a second after the one before it."""
    source = Source("agent", "run", seq=number)
    return Observation(entity, BEGIN + number * 1_000_000, source=source, patch=patch or {"newest": number})


def history(rng: random.Random, length: int, names: Sequence[str] = NAMES[:4]) -> list[Observation]:
    """A log's worth of observations in the order they are recorded; about one in ten is a repeat."""
    made: list[Observation] = []
    for number in range(length):
        made.append(_observation(rng, number, rng.choice(names), made))
    for _ in range(length // 3):  # some come late, and so do targets of retractions
        here = rng.randrange(length)
        there = min(length - 1, here + rng.randrange(8))
        made[here], made[there] = made[there], made[here]
    for number in range(1, length):
        if rng.random() < 0.1:
            made[number] = made[rng.randrange(number)]
    return made


def _observation(rng: random.Random, number: int, name: str, made: Sequence[Observation]) -> Observation:
    # Few agents and many runs: the residue holds sixteen sources, and more than that must be let go.
    agent = rng.choice("xyz")
    run = f"{rng.randrange(30)}" if agent == "z" else ""
    statement = Observation(
        entity=name,
        observed_at=BEGIN + number * 1_000 - rng.choice((0, 0, 0, rng.randrange(20_000))),
        priority=rng.choice((0, 0, 0, 0, 5, -1)),
        source=Source(agent, run, rng.choice(("", "step")), "", number),
        causes=_ids(rng, made, 0.2),
    )
    if rng.random() < 0.12:
        link = Link(
            rng.choice(("uses", "owns")), rng.choice(NAMES), rng.choice((None, BEGIN)), rng.choice((None, 5))
        )
        unlinked = Link(link.relation, link.target)
        return replace(
            statement, **rng.choice(({"kind": "link", "link": link}, {"kind": "unlink", "link": unlinked}))
        )
    own = [each for each in made if each.entity == name]
    retracts = _ids(rng, own, 0.15)
    cleared = tuple(sorted(rng.sample(sorted(VALUES), 2))) if rng.random() < 0.08 else ()
    fields = rng.sample(sorted(VALUES), rng.randint(0 if retracts or cleared else 1, 4))
    patch = {field: VALUES[field](rng) for field in fields}
    return replace(statement, patch=patch, cleared=cleared, retracts=retracts)


def _ids(rng: random.Random, of: Sequence[Observation], chance: float) -> tuple[bytes, ...]:
    if not of or rng.random() >= chance:
        return ()
    return tuple(sorted({identify(each) for each in rng.choices(of, k=2)}))


VALUES: dict[str, Any] = {
    "newest": lambda rng: rng.randrange(5),
    "oldest": lambda rng: rng.choice("abc"),
    "least": lambda rng: rng.choice((1, 2.5, -3, 0.1)),
    "most": lambda rng: rng.choice(("", "a", "ä", "ab")),
    "total": lambda rng: rng.choice((1, 0.1, 2.5, -0.3, 1e300)),
    "times": lambda rng: rng.random() < 0.5,
    "kinds": lambda rng: rng.choices("pqrs", k=2),
    "recent": lambda rng: [rng.randrange(9) for _ in range(rng.randrange(3))],
    "settings": lambda rng: {rng.choice("kl"): rng.choice((None, "u", "v")), rng.choice("mn"): "w"},
    "story": lambda rng: rng.choice("abc"),
}
