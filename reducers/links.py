"""Links: typed relations of an entity, each folded under its own key (relation, target).

Cell: [linked, valid_from, valid_to, priority, q] of the greatest (priority, Q). An unlink stays as a winner that is
not linked. Validity is in microseconds, or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from refold.avro.canonical import encode
from refold.avro.observation import Observation, Value
from refold.reducers.cells import Mutation

FIELD = "links"
Key: TypeAlias = tuple[str, str]
Links: TypeAlias = dict[Key, list[Any]]


def fold_link(links: Links, observation: Observation, q: bytes, out: list[Mutation]) -> None:
    """Fold a link or unlink; mutations are appended to `out`."""
    link = observation.link
    assert link is not None
    key = (link.relation, link.target)
    held = links.get(key)
    if held is not None and (observation.priority, q) <= (held[3], held[4]):
        return
    linked = observation.kind == "link"
    after = [linked, link.valid_from if linked else None, link.valid_to if linked else None, observation.priority, q]
    links[key] = after
    _difference(key, held, after, q[-32:], out)


def link_differences(before: Links, after: Links, by: bytes, out: list[Mutation]) -> None:
    """Append to `out` a mutation for each difference between two sets of links, with its cause."""
    for key in sorted(before.keys() | after.keys()):
        _difference(key, before.get(key), after.get(key), by, out)


def _difference(key: Key, before: list[Any] | None, after: list[Any] | None, by: bytes, out: list[Mutation]) -> None:
    old = before is not None and before[0]
    new = after is not None and after[0]
    if new:
        assert after is not None
        if not old:
            out.append(Mutation(FIELD, "add", key, None, _validity(after), after[4][-32:]))
        elif before is not None and before[1:3] != after[1:3]:
            out.append(Mutation(FIELD, "set", key, _validity(before), _validity(after), after[4][-32:]))
    elif old and before is not None:
        out.append(Mutation(FIELD, "remove", key, _validity(before), None, by))


def _validity(cell: list[Any]) -> dict[str, Value]:
    return {name: value for name, value in (("valid_from", cell[1]), ("valid_to", cell[2])) if value is not None}


def links_tree(links: Links) -> list[Mapping[str, Value]]:
    """Return the state's `links`: the live ones, in the order of the CBOR of [relation, target]."""
    live = [(encode(key), key, cell) for key, cell in links.items() if cell[0]]
    return [
        {"relation": key[0], "target": key[1], "by": cell[4][-32:], **_validity(cell)}
        for _, key, cell in sorted(live, key=lambda item: item[0])
    ]


def without_holders(tree: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a state's links as external stores take them: without the observations that hold them."""
    return [{name: value for name, value in each.items() if name != "by"} for each in tree]
