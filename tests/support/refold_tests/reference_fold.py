"""The fold of one entity, computed again from the whole set each time. It is slow and simple, and judges other folds.

A log here is a sequence of (offset, observation) in log order; it may contain duplicates and other entities.
Two observations are the same if and only if their ids are equal.

The rules, as interpreted here:

- A retracted observation contributes nothing except its own `retracts`. It counts in `version`.
- An assertion of a field is live unless its observation is retracted, or a clear of that field has a greater Q
  and comes from an observation that is not retracted. A clear does not hide an assertion of its own
  observation.
- A field's folded form is a list of cells: one for a scalar, one for each element of a collection, none if
  absent.
- A null value of a map removes its key if it wins. A patch cannot assert null for a whole field: there null
  means "not asserted".
- A field that the definition does not name is ignored everywhere.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from refold.avro.ids import identify
from refold.avro.observation import Observation, Source
from refold_tests.reference_cbor import canonical, encode

Log = Sequence[tuple[int, Observation]]
Order = tuple[int, bytes, bytes, int, bytes]
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Assertion:
    """The assertion of one observation about one field. A custom function gets this."""

    id: bytes
    order: Order
    observed_at: int
    source: Source
    priority: int
    causes: tuple[bytes, ...]
    value: Any


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """How a field folds.

    limit: the n of append. function: of custom, (value or None, assertion) -> value or None.
    """

    reducer: str
    limit: int | None = None
    function: Callable[[Any, Assertion], Any] | None = None


Definition = Mapping[str, FieldSpec]


@dataclass(frozen=True, slots=True)
class Seen:
    """A distinct observation at its first offset. `order` is its Q."""

    offset: int
    id: bytes
    order: Order
    observation: Observation


@dataclass(frozen=True, slots=True)
class Cell:
    """A scalar or one element.

    `place` orders and identifies it in its field, `key` names it in mutations. `by` is the id of its holder; for sum
    and count it is the number of live assertions.
    """

    place: Any
    key: Any
    value: Any
    by: bytes | int


def order_key(order: Order) -> list[Any]:
    """Return Q as mutations show it: [observed_at micros, agent, run, seq, id in hex]."""
    observed_at, agent, run, seq, identity = order
    return [observed_at, agent.decode("utf-8"), run.decode("utf-8"), seq, identity.hex()]


# By the observation's address, which it keeps while it is here: tests fold every beginning of a history.
_ORDERS: dict[int, tuple[Observation, Order]] = {}
_ORDERS_MAX = 50_000


def order_of(observation: Observation) -> Order:
    """Return Q of an observation."""
    kept = _ORDERS.get(id(observation))
    if kept is None:
        source = observation.source
        kept = (
            observation,
            (
                observation.observed_at,
                source.agent.encode("utf-8"),
                source.run.encode("utf-8"),
                source.seq,
                identify(observation),
            ),
        )
        if len(_ORDERS) == _ORDERS_MAX:
            _ORDERS.clear()
        _ORDERS[id(observation)] = kept
    return kept[1]


def distinct(entity: str, log: Log) -> list[Seen]:
    """Return the entity's observations in log order, each at its first offset."""
    found: dict[bytes, Seen] = {}
    for offset, observation in log:
        if observation.entity == entity:
            order = order_of(observation)
            found.setdefault(order[-1], Seen(offset, order[-1], order, observation))
    return list(found.values())


def retracted_ids(seen: Iterable[Seen]) -> set[bytes]:
    """Return every id that any of these retracts, including ids of observations that also retract."""
    return {identity for one in seen for identity in one.observation.retracts}


def unretracted(seen: Iterable[Seen]) -> list[Seen]:
    """Return the observations that contribute, in Q order."""
    everything = list(seen)
    retracted = retracted_ids(everything)
    return sorted((one for one in everything if one.id not in retracted), key=lambda one: one.order)


def live_assertions(seen: Iterable[Seen], field: str) -> list[Assertion]:
    """Return the live assertions of `field`, in Q order."""
    asserting = [one for one in unretracted(seen) if one.observation.kind == "assert"]
    clears = [one.order for one in asserting if field in one.observation.cleared]
    return [
        Assertion(
            id=one.id,
            order=one.order,
            observed_at=one.observation.observed_at,
            source=one.observation.source,
            priority=one.observation.priority,
            causes=one.observation.causes,
            value=canonical(one.observation.patch[field]),
        )
        for one in asserting
        if one.observation.patch.get(field) is not None and not any(one.order < clear for clear in clears)
    ]


def by_priority(assertion: Assertion) -> tuple[int, Order]:
    """The key of which latest and map take the greatest."""
    return (assertion.priority, assertion.order)


def first_of(assertions: Sequence[Assertion]) -> Assertion:
    """Return the winner under `first`: the least Q within the greatest priority."""
    greatest = max(assertion.priority for assertion in assertions)
    return min((one for one in assertions if one.priority == greatest), key=lambda one: one.order)


def latest_of(assertions: Sequence[Assertion]) -> Assertion:
    """Return the winner under `latest`: the greatest (priority, Q)."""
    return max(assertions, key=by_priority)


def exact_sum(values: Iterable[int | float]) -> int | float:
    """Return the exact sum, rounded once.

    It is an integer if it is one in [-2^63, 2^64), else the nearest double, with ties to even; beyond the largest
    double it is that one. A double that rounding made integral is an integer again.
    """
    total = sum((Fraction(value) for value in values), Fraction(0))
    if total.denominator == 1 and -(2**63) <= total < 2**64:
        return int(total)
    try:
        rounded = float(total)
    except OverflowError:
        rounded = sys.float_info.max if total > 0 else -sys.float_info.max
    result: int | float = canonical(rounded)
    return result


def _scalar(value: Any, by: bytes | int) -> list[Cell]:
    return [Cell(place=(), key=None, value=value, by=by)]


def _latest(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    winner = latest_of(live)
    return _scalar(winner.value, winner.id)


def _first(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    winner = first_of(live)
    return _scalar(winner.value, winner.id)


def _extreme(choose: Callable[[Iterable[Any]], Any], live: list[Assertion]) -> list[Cell]:
    # Python compares integers with doubles exactly, and strings by code point, which is the order of their UTF-8.
    extreme = choose(one.value for one in live)
    holder = next(one for one in live if one.value == extreme)
    return _scalar(holder.value, holder.id)


def _min(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    return _extreme(min, live)


def _max(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    return _extreme(max, live)


def _sum(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    return _scalar(exact_sum(one.value for one in live), len(live))


def _count(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    return _scalar(len(live), len(live))


def _union(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    cells: dict[bytes, Cell] = {}
    for one in live:
        for element in one.value:
            place = encode(element)
            cells.setdefault(place, Cell(place=place, key=None, value=element, by=one.id))
    return [cells[place] for place in sorted(cells)]


def _append(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    assert spec.limit, "append needs a limit of at least 1"
    cells = [
        Cell(place=(one.order, index), key=[order_key(one.order), index], value=item, by=one.id)
        for one in live
        for index, item in enumerate(one.value)
    ]
    return cells[-spec.limit :]


def _map(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    cells = []
    for key in sorted({key for one in live for key in one.value}, key=lambda key: key.encode("utf-8")):
        winner = latest_of([one for one in live if key in one.value])
        if winner.value[key] is not None:
            cells.append(Cell(place=key.encode("utf-8"), key=key, value=winner.value[key], by=winner.id))
    return cells


def _custom(spec: FieldSpec, live: list[Assertion]) -> list[Cell]:
    assert spec.function is not None, "custom needs a function"
    value = None
    for one in live:
        with suppress(Exception):  # if the function fails on an assertion, the value stays as it was
            value = spec.function(canonical(value), one)
    return [] if value is None else _scalar(canonical(value), live[-1].id)


_REDUCERS: dict[str, Callable[[FieldSpec, list[Assertion]], list[Cell]]] = {
    "latest": _latest,
    "first": _first,
    "min": _min,
    "max": _max,
    "sum": _sum,
    "count": _count,
    "union": _union,
    "append": _append,
    "map": _map,
    "custom": _custom,
}


def field_cells(spec: FieldSpec, seen: Iterable[Seen], field: str) -> list[Cell]:
    """Return the folded form of one field, ordered by place."""
    live = live_assertions(seen, field)
    return _REDUCERS[spec.reducer](spec, live) if live else []


def link_cells(seen: Iterable[Seen]) -> list[Cell]:
    """Return the links in effect, ordered by the CBOR of [relation, target]. An unlink that wins leaves none."""
    claims: dict[bytes, list[Seen]] = {}
    for one in unretracted(seen):
        if one.observation.kind in ("link", "unlink"):
            link = one.observation.link
            assert link is not None, "a link and an unlink name a link"
            claims.setdefault(encode([link.relation, link.target]), []).append(one)
    cells = []
    for place in sorted(claims):
        winner = max(claims[place], key=lambda one: (one.observation.priority, one.order))
        link = winner.observation.link
        if winner.observation.kind == "link" and link is not None:
            validity = {"valid_from": link.valid_from, "valid_to": link.valid_to}
            value = {name: at for name, at in validity.items() if at is not None}
            cells.append(Cell(place=place, key=[link.relation, link.target], value=value, by=winner.id))
    return cells


def fold(definition: Definition, entity: str, seen: Sequence[Seen]) -> State:
    """Return the state of `entity` from its distinct observations, in any order."""
    fields: dict[str, Any] = {}
    by: dict[str, Any] = {}
    left = unretracted(seen)
    for name, spec in definition.items():
        cells = field_cells(spec, left, name)
        if not cells:
            continue
        if spec.reducer == "map":
            fields[name] = {cell.key: cell.value for cell in cells}
            by[name] = {cell.key: cell.by for cell in cells}
        elif spec.reducer in ("union", "append"):
            fields[name] = [cell.value for cell in cells]
            by[name] = [cell.by for cell in cells]
        else:
            fields[name] = cells[0].value
            by[name] = cells[0].by
    links = [{"relation": cell.key[0], "target": cell.key[1], "by": cell.by, **cell.value} for cell in link_cells(left)]
    return {"format": 1, "entity": entity, "version": len(seen), "fields": fields, "by": by, "links": links}


def reference_state(definition: Definition, entity: str, log: Log) -> State:
    """Return the state of `entity`, with ids as 32 bytes.

    Raises:
        LookupError: The log has no observation of it.
    """
    seen = distinct(entity, log)
    if not seen:
        raise LookupError(f"no observation of {entity}")
    return fold(definition, entity, seen)


def reference_states(definition: Definition, log: Log) -> dict[str, State]:
    """Return the state of every entity in the log."""
    return {entity: reference_state(definition, entity, log) for entity in {one.entity for _, one in log}}


def reference_true_at(definition: Definition, entity: str, log: Log, true_at: int) -> State | None:
    """Return what was true at T (micros).

    It is the fold of the observations with observed_at <= T, without every id that any observation of the entity in the
    log retracts, whenever that one was observed. `version` counts the observations that are left; None if none is left.
    """
    everything = distinct(entity, log)
    retracted = retracted_ids(everything)
    left = [one for one in everything if one.observation.observed_at <= true_at and one.id not in retracted]
    return fold(definition, entity, left) if left else None


def reference_hash(state: Mapping[str, Any]) -> bytes:
    """Return the state hash, 32 bytes."""
    return hashlib.sha256(encode(state)).digest()
