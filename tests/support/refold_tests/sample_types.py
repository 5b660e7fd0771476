"""The type `everything` (histories.py) as logs use it, variants of it, and simple observations."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from refold.avro.definition import TypeDefinition, parse
from refold.avro.observation import Observation, Source
from refold.reducers.custom import code_of
from refold_tests.histories import EVERYTHING_AVSC, TYPE, folded
from refold_tests.reference import Definition, FieldSpec

BEGIN = 1_700_000_000_000_000
"""The time of the first simple observation, in microseconds."""

A = f"{TYPE}/a"
NAMES = (A, f"{A}/b", f"{A}a", f"{A} ", f"{TYPE}/ä", f"{TYPE}/{'long' * 200}", f"{TYPE}s/a")
"""Entities whose names are prefixes of one another, a long one, and one of another type."""


def document(name: str = TYPE, **fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type file of `everything`, optionally with another name, and with some fields replaced or added."""
    base = json.loads(EVERYTHING_AVSC)
    every = {field["name"]: field for field in base["fields"]}
    every.update({field: {"name": field, **given} for field, given in fields.items()})
    return {**base, "name": name, "fields": list(every.values())}


def defined(given: Mapping[str, Any]) -> TypeDefinition:
    """Return the definition in a type file."""
    return parse(given, code_of)


def custom(function: Callable[..., Any]) -> dict[str, str]:
    """Return a text field that a function of this module folds."""
    name = f"{__name__}:{function.__name__}"
    return {"type": "string", "refold.reducer": "custom", "refold.function": name}


THING = defined(document())
OTHER = defined(document(f"{TYPE}s"))


def reference_definition(definition: TypeDefinition) -> Definition:
    """Return the same fields in the naive fold's form. `folded` is the only custom reducer that it knows."""
    return {
        each.first_name: FieldSpec(each.reducer, each.limit or None, folded if each.reducer == "custom" else None)
        for each in definition.fields.values()
    }


def said(entity: str, number: int, **patch: Any) -> Observation:
    """Return the number-th observation of an agent, one second after the previous one."""
    source = Source("agent", "run", seq=number)
    return Observation(entity, BEGIN + number * 1_000_000, source=source, patch=patch or {"last": number})


def picky(value: str | None, assertion: Any) -> str:
    """A custom reducer that fails on "bad", and whose process fails on "no file"."""
    if assertion.value == "no file":
        raise FileNotFoundError("not here")
    if assertion.value == "bad":
        raise ValueError("not that")
    return f"{value or ''}{assertion.value}"


def holding(value: str | None, assertion: Any) -> str:
    """A custom reducer that holds its process up where REFOLD_HOLD_AT calls of it are made, for a test to end it."""
    _holding_calls.append(None)
    if len(_holding_calls) == int(os.environ.get("REFOLD_HOLD_AT", "0")):
        print("holding", flush=True)
        signal.pause()
    return f"{value or ''}{assertion.value}"


_holding_calls: list[None] = []

PICKY = defined(document(start=custom(picky)))
HOLDING = defined(document(start=custom(holding)))


def versions(count: int) -> Iterator[TypeDefinition]:
    """Yield versions of `everything` that can follow one another in any order. `last` folds differently in each."""
    for number in range(count):
        reducer = ("max", "latest", "min", "first")[number % 4]
        last = {"type": "long", "refold.reducer": reducer, "refold.inline": 1000 + number}
        yield defined(document(last=last))
