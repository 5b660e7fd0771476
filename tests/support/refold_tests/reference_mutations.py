"""Mutations: the difference of whole folds before and after each distinct observation in log order.

A mutation is {offset, version, field, key, op, old, new, observation, by}; old and new are None if there is
no value.

- A scalar (latest, first, min, max, sum, count, custom): key None; `set` if there is a value that is new or
  differs, `clear` if none is left.
- map: key is the map key; `add`, `set` (another value), `remove`.
- union: key None; `add` with new, or `remove` with old, the element.
- append: key [Q of the holder as [observed_at, agent, run, seq, id in hex], index in its list]; `add`,
  `remove`, also if an item only leaves or enters the last n.
- links: field `links`, key [relation, target], old and new {valid_from?, valid_to?}; `add`, `set`,
  `remove`.
- `by` is the id of the observation that caused it. `observation` is the id of the current holder: for custom
  the live assertion with the greatest Q. For sum and count, which have no single holder, and after clear and
  remove, it is `by`.
- A change of the holder with an equal value is not a mutation.
- Order within one version: by field name (UTF-8), within a field by place (map keys as UTF-8, elements and
  links by their CBOR, append by its key), links last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from refold_tests.reference_cbor import encode
from refold_tests.reference_fold import Cell, Definition, Log, Seen, distinct, field_cells, link_cells

Mutation = dict[str, Any]
Replayed = dict[str, dict[Any, tuple[Any, Any]]]

LINKS = "links"
COLLECTIONS = ("map", "union", "append")


def reference_mutations(definition: Definition, entity: str, log: Log) -> list[Mutation]:
    """Return every mutation of `entity`, in log order."""
    seen = distinct(entity, log)
    found: list[Mutation] = []
    for version, cause in enumerate(seen, start=1):
        before, after = seen[: version - 1], seen[:version]
        for field in sorted(definition, key=lambda name: name.encode("utf-8")):
            spec = definition[field]
            collection = spec.reducer in COLLECTIONS
            old, new = field_cells(spec, before, field), field_cells(spec, after, field)
            found += _difference(field, collection, old, new, version, cause)
        found += _difference(LINKS, True, link_cells(before), link_cells(after), version, cause)
    return found


def reference_difference(
    definition: Definition, before: Sequence[Seen], after: Sequence[Seen], last: Seen
) -> list[Mutation]:
    """Return the mutations from the fold of some observations of an entity to the fold of others.

    `by` is the observation that holds a place now, or `last` if none holds it; the offset is that of `by`, the version
    that of `after`.
    """
    found: list[Mutation] = []
    for field in sorted(definition, key=lambda name: name.encode("utf-8")):
        spec = definition[field]
        old, new = field_cells(spec, before, field), field_cells(spec, after, field)
        found += _difference(field, spec.reducer in COLLECTIONS, old, new, len(after), last)
    found += _difference(LINKS, True, link_cells(before), link_cells(after), len(after), last)
    by_id = {one.id: one for one in (*before, *after)}
    for each in found:
        cause = by_id.get(each["observation"], last)
        each |= {"by": cause.id, "offset": cause.offset}
    return found


def _difference(
    field: str, collection: bool, before: list[Cell], after: list[Cell], version: int, cause: Seen
) -> Iterable[Mutation]:
    olds = {cell.place: cell for cell in before}
    news = {cell.place: cell for cell in after}
    for place in sorted(olds.keys() | news.keys()):
        old, new = olds.get(place), news.get(place)
        if old and new and encode(old.value) == encode(new.value):
            continue
        cell = new or old
        assert cell is not None
        gone, come = ("remove", "add") if collection else ("clear", "set")
        op = gone if new is None else come if old is None else "set"
        yield {
            "offset": cause.offset,
            "version": version,
            "field": field,
            "key": cell.key,
            "op": op,
            "old": old.value if old else None,
            "new": new.value if new else None,
            "observation": new.by if new and isinstance(new.by, bytes) else cause.id,
            "by": cause.id,
        }


def apply_mutations(definition: Definition, replayed: Replayed, mutations: Iterable[Mutation]) -> Replayed:
    """Apply mutations to `replayed` (at first {}), using only what the mutations say.

    Returns:
        field -> place -> (key, value). `replayed_fields` turns it into plain fields.

    Raises:
        AssertionError: An op or an `old` does not fit the previous value.
    """
    result: Replayed = {field: dict(cells) for field, cells in replayed.items()}
    for mutation in mutations:
        field, op, key = mutation["field"], mutation["op"], mutation["key"]
        cells = result.setdefault(field, {})
        element = mutation["old"] if op == "remove" else mutation["new"]
        place = _place(definition, field, key, element)
        held = place in cells
        collection = field == LINKS or definition[field].reducer in COLLECTIONS
        assert op in (("add", "set", "remove") if collection else ("set", "clear")), mutation
        assert held or op in ("add", "set"), mutation
        assert not held or op != "add", mutation
        assert held or op != "set" or not collection, mutation
        assert encode(cells[place][1] if held else None) == encode(mutation["old"]), mutation
        if op in ("remove", "clear"):
            assert mutation["new"] is None, mutation
            del cells[place]
        else:
            cells[place] = (key, mutation["new"])
    return result


def replayed_fields(definition: Definition, replayed: Replayed) -> dict[str, Any]:
    """Return `fields` of a state, as the mutations built them."""
    fields: dict[str, Any] = {}
    for field, spec in definition.items():
        cells = [cell for _, cell in sorted(replayed.get(field, {}).items(), key=lambda entry: entry[0])]
        if not cells:
            continue
        if spec.reducer == "map":
            fields[field] = dict(cells)
        elif spec.reducer in ("union", "append"):
            fields[field] = [value for _, value in cells]
        else:
            fields[field] = cells[0][1]
    return fields


def replayed_links(replayed: Replayed) -> list[dict[str, Any]]:
    """Return `links` of a state without their `by`, as the mutations built them."""
    cells: Mapping[Any, tuple[Any, Any]] = replayed.get(LINKS, {})
    ordered = [cell for _, cell in sorted(cells.items(), key=lambda entry: entry[0])]
    return [{"relation": key[0], "target": key[1], **validity} for key, validity in ordered]


def _place(definition: Definition, field: str, key: Any, element: Any) -> Any:
    """Return what orders and identifies a cell in its field, from the mutation alone."""
    if field == LINKS:  # no field may have this name
        return encode(key)
    reducer = definition[field].reducer
    if reducer == "map":
        return key.encode("utf-8")
    if reducer == "union":
        return encode(element)
    if reducer == "append":
        (observed_at, agent, run, seq, identity), index = key
        return (
            (observed_at, agent.encode("utf-8"), run.encode("utf-8"), seq, bytes.fromhex(identity)),
            index,
        )
    return ()
