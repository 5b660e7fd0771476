"""Changes: the feed of what happened to each entity, as `.changes` holds it.

A change takes an entity from one version to a later one, with the hashes before and after, and one step for each
observation between; how steps are grouped into changes is not promised. A change without steps and with
`redefined` set says that the type's definition changed and the same observations now fold to another state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from refold.avro.binary import write_items, write_long, write_text, writer
from refold.avro.definition import FieldDefinition
from refold.avro.derive import DOUBLE, OP, change_node
from refold.avro.nodes import Node, nullable, value_of
from refold.avro.observation import Source
from refold.avro.registry import TypeVersion
from refold.avro.wire import from_wire, to_wire
from refold.reducers.cells import Mutation
from refold.reducers.links import FIELD as LINKS
from refold.reducers.order import order_key_of, place_of


class Step(NamedTuple):
    """One observation and what it changed. observed_at in microseconds, recorded_at in milliseconds."""

    offset: int
    version: int
    observation: bytes
    observed_at: int
    recorded_at: int
    source: Source
    mutations: Sequence[Mutation]


class Change(NamedTuple):
    """One entity from `from_version` to `to_version`; `through` is the next offset of the batch that made it."""

    entity: str
    definition: bytes
    from_version: int
    to_version: int
    hash_before: bytes | None
    hash_after: bytes
    through: int
    redefined: bool
    steps: Sequence[Step]


_NULL, _PRESENT = b"\0", b"\2"  # the branches of [null, T]
_ONE, _END = _PRESENT + b"\2", b"\0"  # around an array of one
_OPS = {op: write_long(index) for index, op in enumerate(OP["symbols"])}


class ChangeCodec:
    """Changes of one type version to and from framed bytes."""

    def __init__(self, version: TypeVersion) -> None:
        self._codec = version.changes
        fields = version.definition.fields.values()
        step = _member(change_node(version.definition), "steps")["items"]
        changed = _member(step, "fields")
        nodes = {each["name"]: value_of(each["type"])["items"] for each in changed["fields"]}
        places = {name: index for index, name in enumerate(nodes)}
        self._write = {
            each.first_name: (places[each.first_name], _mutation_writer(each, nodes[each.first_name]))
            for each in fields
        }
        self._write_link = writer(_member(step, "links")["items"])
        self._absent = [_NULL] * len(nodes)
        self._read = {each.first_name: (each.reducer, from_wire(_element(each))) for each in fields}

    def encode(self, change: Change) -> bytes:
        """Framed bytes, laid out as avro/derive.py has it."""
        steps = [self._step_bytes(step) for step in change.steps]
        before = change.hash_before
        return self._codec.framed(
            b"".join((
                write_text(change.entity), change.definition, write_long(change.from_version),
                write_long(change.to_version), _NULL if before is None else _PRESENT + before, change.hash_after,
                write_long(change.through), b"\1" if change.redefined else b"\0", write_items(steps),
            ))
        )  # fmt: skip

    def decode(self, data: bytes) -> Change:
        """The change behind framed bytes; raises UndecodableError."""
        datum = self._codec.decode(data)
        return Change(**{**datum, "steps": [self._step(step) for step in datum["steps"]]})

    def _step_bytes(self, step: Step) -> bytes:
        """One step. Written at once: as datums for a writer of the schema it took twice the time, for every record."""
        offset, version, own, observed_at, recorded_at, source, mutations = step
        agent, run, agents_step, tool, seq = source
        several: dict[int, list[bytes]] = {}
        links: list[bytes] = []
        changed = self._absent.copy()
        for mutation in mutations:
            field = mutation[0]
            if field == LINKS:
                links.append(self._write_link(_link_datum(mutation, own)))
                continue
            place, write = self._write[field]
            written = write(mutation, own)
            if changed[place] == _NULL:  # the only one, nearly always
                changed[place] = _ONE + written + _END
            elif place in several:
                several[place].append(written)
            else:
                several[place] = [changed[place][len(_ONE) : -len(_END)], written]
        for place, found in several.items():
            changed[place] = _PRESENT + write_items(found)
        return b"".join((
            write_long(offset), write_long(version), own, write_long(observed_at), write_long(recorded_at),
            _said_by(agent, run, agents_step, tool), write_long(seq), *changed, write_items(links),
        ))  # fmt: skip

    def _step(self, datum: Mapping[str, Any]) -> Step:
        own = datum["observation"]
        mutations = [each for field, found in datum["fields"].items() if found
                     for each in self._mutations(field, found, own)]  # fmt: skip
        for link in datum["links"]:
            old, new = (None if link[side] is None else _present(link[side]) for side in ("old", "new"))
            key = (link["relation"], link["target"])
            mutations.append(Mutation(LINKS, link["op"], key, old, new, link["observation"] or own))
        rest = {name: datum[name] for name in ("offset", "version", "observation", "observed_at", "recorded_at")}
        return Step(**rest, source=Source(**datum["source"]), mutations=mutations)

    def _mutations(self, field: str, found: Iterable[Mapping[str, Any]], own: bytes) -> list[Mutation]:
        reducer, read = self._read[field]
        result = []
        for datum in found:
            key, old, new = datum.get("key"), datum["old"], datum["new"]
            if reducer == "append" and key is not None:
                place = dict(key)
                index = place.pop("index")
                key = (order_key_of(**place), index)
            if read is not None:
                old, new = None if old is None else read(old), None if new is None else read(new)
            result.append(Mutation(field, datum["op"], key, old, new, datum["observation"] or own))
        return result


def _member(record: Mapping[str, Any], name: str) -> Any:
    """The type of a record's field."""
    (found,) = (each["type"] for each in record["fields"] if each["name"] == name)
    return found


def _mutation_writer(field: FieldDefinition, node: Mapping[str, Any]) -> Callable[[Mutation, bytes], bytes]:
    """One mutation's bytes, by the step's own observation, for which null stands."""
    reducer, adapt = field.reducer, to_wire(_element(field))
    write_value = writer(_member(node, "old"))
    write_key = writer(_member(node, "key")) if reducer in ("map", "append") else None

    def write(mutation: Mutation, own: bytes) -> bytes:
        _, op, key, old, new, observation = mutation
        if adapt is not None:
            old, new = None if old is None else adapt(old), None if new is None else adapt(new)
        head = _OPS[op]
        if write_key is not None:
            head += write_key((*place_of(key[0]), key[1]) if reducer == "append" else key)
        holder = _NULL if observation == own else _PRESENT + observation
        before, after = _NULL if old is None else write_value(old), _NULL if new is None else write_value(new)
        return head + before + after + holder

    return write


@lru_cache(maxsize=1024)  # a run says the same with every observation
def _said_by(agent: str, run: str, step: str, tool: str) -> bytes:
    return b"".join(map(write_text, (agent, run, step, tool)))


def _element(field: FieldDefinition) -> Node:
    """What one mutation carries, or null; a sum and a count are numbers whatever the field's own type."""
    return nullable(DOUBLE if field.reducer in ("sum", "count") else field.element)


def _link_datum(mutation: Mutation, own: bytes) -> tuple[Any, ...]:
    relation, target = mutation.key
    holder = None if mutation.observation == own else mutation.observation
    return (mutation.op, relation, target, mutation.old, mutation.new, holder)


def _present(validity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in validity.items() if value is not None}
