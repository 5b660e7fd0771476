"""Encodes and decodes changes as framed Avro, with the layout of avro/derive.py.

A change is encoded from its tuples, and decoded to them, without intermediate datums: with datums of the schema,
writing takes twice as long, and reading one and a half times as long. Bytes that this decoder does not recognise are
decoded by the schema's codec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from refold.avro.codec import FRAME_BYTES
from refold.avro.decoder import REFUSED, read_count, read_long, read_text, reader
from refold.avro.definition import FieldDefinition
from refold.avro.derive import DOUBLE, OP, change_node
from refold.avro.encoder import write_items, write_long, write_text, writer
from refold.avro.errors import UndecodableError
from refold.avro.nodes import Node, nullable, value_of
from refold.avro.observation import ID_BYTES, Source
from refold.avro.registry import TypeVersion
from refold.avro.wire import from_wire, to_wire
from refold.reducers.cells import Mutation, new_tuple
from refold.reducers.links import FIELD as LINKS
from refold.reducers.order import order_key_of, split_order_key
from refold.streams.changes import Change, ChangeStep

_NULL, _PRESENT = b"\0", b"\2"  # the branches of [null, T]
_ONE, _END = _PRESENT + b"\2", b"\0"  # around an array of one
_OPS = {op: write_long(index) for index, op in enumerate(OP["symbols"])}
_OP_NAMES = tuple(OP["symbols"])
_BOOLEANS = (False, True)


class ChangeCodec:
    """Converts changes of one type version to and from framed bytes. `change_codec_of` returns it."""

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
        self._readers = [_mutation_reader(each, nodes[each.first_name]) for each in fields]
        self._read_links = reader(_member(step, "links"))

    def encode(self, change: Change) -> bytes:
        """Return a change's framed bytes, with the layout of avro/derive.py."""
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
        """Decode a change.

        Raises:
            UndecodableError: the bytes are not a change.
        """
        try:
            change, end = self._change(data, FRAME_BYTES)
            if end == len(data):
                return change
        except REFUSED:
            pass
        # Not this encoder's bytes: the schema's codec decodes them, or raises.
        datum = self._codec.decode(data)
        try:
            return self._change(self._codec.encode(datum), FRAME_BYTES)[0]
        except Exception as error:  # a datum that the schema allows, but that refold never writes
            raise UndecodableError(f"it is not a change as refold writes them ({type(error).__name__})") from error

    def _step_bytes(self, step: ChangeStep) -> bytes:
        """Encode one step directly: through datums and the schema's writer every record took twice as long."""
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
            if changed[place] == _NULL:  # the field's first mutation, and nearly always its only one
                changed[place] = _ONE + written + _END
            elif place in several:
                several[place].append(written)
            else:
                several[place] = [changed[place][len(_ONE) : -len(_END)], written]
        for place, found in several.items():
            changed[place] = _PRESENT + write_items(found)
        return b"".join((
            write_long(offset), write_long(version), own, write_long(observed_at), write_long(recorded_at),
            _encoded_source(agent, run, agents_step, tool), write_long(seq), *changed, write_items(links),
        ))  # fmt: skip

    def _change(self, data: bytes, at: int) -> tuple[Change, int]:
        """Decode a change, and return its end. A slice past the end is silently short, so the caller checks the end."""
        entity, at = read_text(data, at)
        definition, at = data[at : at + ID_BYTES], at + ID_BYTES
        from_version, at = read_long(data, at)
        to_version, at = read_long(data, at)
        before, at = _read_id(data, at)
        after, at = data[at : at + ID_BYTES], at + ID_BYTES
        through, at = read_long(data, at)
        redefined, at = _BOOLEANS[data[at]], at + 1
        steps: list[ChangeStep] = []
        count, at = read_count(data, at)
        while count:
            for _ in range(count):
                step, at = self._step(data, at)
                steps.append(step)
            count, at = read_count(data, at)
        parts = (entity, definition, from_version, to_version, before, after, through, redefined, steps)
        return new_tuple(Change, parts), at

    def _step(self, data: bytes, at: int) -> tuple[ChangeStep, int]:
        offset, at = read_long(data, at)
        version, at = read_long(data, at)
        own, at = data[at : at + ID_BYTES], at + ID_BYTES
        observed_at, at = read_long(data, at)
        recorded_at, at = read_long(data, at)
        agent, at = read_text(data, at)
        run, at = read_text(data, at)
        agents_step, at = read_text(data, at)
        tool, at = read_text(data, at)
        seq, at = read_long(data, at)
        source = new_tuple(Source, (agent, run, agents_step, tool, seq))
        mutations: list[Mutation] = []
        for read in self._readers:
            is_there, at = _is_present(data, at)
            if not is_there:
                continue
            count, at = read_count(data, at)
            while count:
                for _ in range(count):
                    mutation, at = read(data, at, own)
                    mutations.append(mutation)
                count, at = read_count(data, at)
        if data[at]:
            links, at = self._read_links(data, at)
            mutations += [_link_mutation(each, own) for each in links]
        else:
            at += 1
        return new_tuple(ChangeStep, (offset, version, own, observed_at, recorded_at, source, mutations)), at


def _member(record: Mapping[str, Any], name: str) -> Any:
    """Return the type of a record's field."""
    (found,) = (each["type"] for each in record["fields"] if each["name"] == name)
    return found


def _mutation_writer(field: FieldDefinition, node: Mapping[str, Any]) -> Callable[[Mutation, bytes], bytes]:
    """Return an encoder of one mutation. Its second argument is the id of the step's observation, encoded as null."""
    reducer, adapt = field.reducer, to_wire(_element(field))
    write_value = writer(_member(node, "old"))  # also None: it is nullable
    write_key = writer(_member(node, "key")) if reducer in ("map", "append") else None

    def write(mutation: Mutation, own: bytes) -> bytes:
        _, op, key, old, new, observation = mutation
        head = _OPS[op]
        if adapt is not None:
            old, new = None if old is None else adapt(old), None if new is None else adapt(new)
        if write_key is not None:
            head += write_key((*split_order_key(key[0]), key[1]) if reducer == "append" else key)
        holder = _NULL if observation == own else _PRESENT + observation
        return head + write_value(old) + write_value(new) + holder

    return write


def _mutation_reader(
    field: FieldDefinition, node: Mapping[str, Any]
) -> Callable[[bytes, int, bytes], tuple[Mutation, int]]:
    """Return a decoder of one mutation: takes the bytes, the mutation's start and the id of the step's observation;
    returns the mutation and its end."""
    name, is_append, adapt = field.first_name, field.reducer == "append", from_wire(_element(field))
    read_value = reader(_member(node, "old"))
    read_key = reader(_member(node, "key")) if field.reducer in ("map", "append") else None

    def read_side(data: bytes, at: int) -> tuple[Any, int]:
        if not data[at]:
            return None, at + 1
        value, at = read_value(data, at)
        return value if adapt is None else adapt(value), at

    def read(data: bytes, at: int, own: bytes) -> tuple[Mutation, int]:
        op, at = read_count(data, at)
        key: Any = None
        if read_key is not None:
            key, at = read_key(data, at)
            if is_append:
                index = key.pop("index")
                key = (order_key_of(**key), index)
        old, at = read_side(data, at)
        new, at = read_side(data, at)
        holder, at = _read_id(data, at)
        return new_tuple(Mutation, (name, _OP_NAMES[op], key, old, new, holder or own)), at

    return read


def _is_present(data: bytes, at: int) -> tuple[bool, int]:
    """Read the branch of [null, T]: returns whether T is present, and the end."""
    branch = data[at]
    if branch and branch != _PRESENT[0]:
        raise ValueError("no branch of [null, T]")
    return branch != 0, at + 1


_codecs: WeakKeyDictionary[TypeVersion, ChangeCodec] = WeakKeyDictionary()


def change_codec_of(version: TypeVersion) -> ChangeCodec:
    """Return the codec of a type version's changes. All partitions share it: building one takes some milliseconds."""
    found = _codecs.get(version)
    if found is None:
        found = _codecs[version] = ChangeCodec(version)
    return found


def _read_id(data: bytes, at: int) -> tuple[bytes | None, int]:
    is_there, at = _is_present(data, at)
    return (data[at : at + ID_BYTES], at + ID_BYTES) if is_there else (None, at)


def _link_mutation(datum: Mapping[str, Any], own: bytes) -> Mutation:
    old, new = (None if datum[side] is None else _present(datum[side]) for side in ("old", "new"))
    key = (datum["relation"], datum["target"])
    return Mutation(LINKS, datum["op"], key, old, new, datum["observation"] or own)


@lru_cache(maxsize=1024)  # all observations of a run have the same names
def _encoded_source(agent: str, run: str, step: str, tool: str) -> bytes:
    return b"".join(map(write_text, (agent, run, step, tool)))


def _element(field: FieldDefinition) -> Node:
    """Return the nullable type of a mutation's values; a sum and a count are numbers whatever the field's type."""
    return nullable(DOUBLE if field.reducer in ("sum", "count") else field.element)


def _link_datum(mutation: Mutation, own: bytes) -> tuple[Any, ...]:
    relation, target = mutation.key
    holder = None if mutation.observation == own else mutation.observation
    return (mutation.op, relation, target, mutation.old, mutation.new, holder)


def _present(validity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in validity.items() if value is not None}
