"""Reads a plain observation, checks it and computes its id, in one pass over its bytes.

Nearly all observations are plain: an assert of some fields, with no causes, clears, retractions, link or subject. For
such a record this module replaces three passes (read, check, encode again for the id) by one:
1. Read the envelope, as avro/decoder.py does, and check it by the rules of avro/envelope.py.
2. Keep each field's value and its canonical CBOR. The CBOR of a text is its Avro bytes with another head.
3. Join these as avro/ids.py does, and hash them. For an observation that is not plain or breaks a rule the result is
None, and the slow path decides (avro/codec.py): the fast path never rejects a record. Results for frequent source names
and small texts are cached. tests/avro/test_decoder.py compares both paths on observations of every kind and on damaged
ones.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from refold.avro.canonical import TEXT_HEADS, encode, encode_name, map_head
from refold.avro.decoder import REFUSED, Read, read_long, read_text
from refold.avro.envelope import NAME_BYTES_MAX, PRIORITY_RANGE, check_names
from refold.avro.ids import DOMAIN, source_parts
from refold.avro.observation import Observation, Source
from refold.avro.times import TIME_MAX, TIME_MIN

TEXT, INTEGER, BOOLEAN, OTHER = range(4)
END = b"\0\0\0\0"
"""The last bytes of a plain observation: nothing cleared, nothing retracted, no link, no subject."""
_SOURCES_MAX = 4096
_PRIORITY_MIN, _PRIORITY_END = PRIORITY_RANGE
_U64 = struct.Struct(">BQ").pack
_ENTITY, _PATCH, _KIND, _OBSERVED_AT, _PRIORITY, _SOURCE, _TYPE = (encode_name(letter) for letter in "efkopst")
_ASSERT = _KIND + encode_name("assert")
_SEQ = encode_name("seq")
_TRUE, _FALSE = encode(True), encode(False)
_HASH = hashlib.sha256(DOMAIN)
# What a named tuple's own constructor does, without a call in between: it is made for every record.
_new = tuple.__new__


class UnionBranch(NamedTuple):
    """How one branch of a field is read. `low` and `end` bound an INTEGER; the rest is for `read`."""

    first: str
    key: bytes
    kind: int
    low: int
    end: int
    read: Read


class _SourceParts(NamedTuple):
    """A source without its seq, cached by its bytes."""

    agent: str
    run: str
    step: str
    tool: str
    members: int
    before: bytes
    after: bytes


class PlainReader:
    """Reads the plain observations of one type version. branches: the union branches of each field, by their byte."""

    def __init__(self, type_name: str, fields: Sequence[dict[int, UnionBranch]]) -> None:
        self._prefix = f"{type_name}/".encode()
        self._fields = list(fields)
        self._type = _TYPE + encode_name(type_name)
        self._sources: dict[bytes, _SourceParts] = {}

    def read(self, data: bytes, start: int) -> tuple[Observation, bytes] | None:
        """Return the observation whose body begins at `start`, and its id; None if it is not plain or not valid."""
        try:
            return self._read(data, start)
        except REFUSED:  # what breaks a rule is among them
            return None

    def _read(self, data: bytes, at: int) -> tuple[Observation, bytes] | None:
        length = data[at]
        if length & 0x81 or length < 2:  # 64 bytes or more: rare
            entity, begin = read_text(data, at)
            entity_bytes = entity.encode()
            at = begin
        else:
            begin = at + 1
            at = begin + (length >> 1)
            entity_bytes = data[begin:at]
            entity = entity_bytes.decode()
        if not (
            entity.isascii() and entity.isprintable() and entity_bytes.startswith(self._prefix)
            and len(self._prefix) < len(entity_bytes) <= NAME_BYTES_MAX and data[at] == 0
        ):  # fmt: skip
            return None
        observed_at, at = read_long(data, at + 1)
        priority = 0
        if data[at]:
            priority, at = read_long(data, at)
        else:
            at += 1
        if not (TIME_MIN <= observed_at <= TIME_MAX and _PRIORITY_MIN <= priority < _PRIORITY_END):
            return None
        begin = at
        for _ in range(4):
            length = data[at]
            if length & 0x81:
                _, at = read_text(data, at)
            else:
                at += 1 + (length >> 1)
        origin = self._sources.get(data[begin:at])
        if origin is None:
            origin = self._learn(data, begin, at)
        seq, at = read_long(data, at)
        if seq < 0 or data[at]:
            return None
        at += 1
        patch: dict[str, Any] = {}
        parts: list[bytes] = []
        for branches in self._fields:
            branch = data[at]
            at += 1
            if branch:
                first, key, kind, low, end, read = branches[branch]
                if kind == TEXT:
                    length = data[at]
                    if length & 0x81:
                        value, at = read(data, at)
                        patch[first] = value
                        parts.append(key + encode(value))
                    else:
                        begin = at + 1
                        at = begin + (length >> 1)
                        text = data[begin:at]
                        patch[first] = text.decode()
                        parts.append(key + TEXT_HEADS[len(text)] + text)
                elif kind == INTEGER:
                    number = data[at]
                    if number > 0x7F:
                        number, at = read_long(data, at)
                    else:
                        number = (number >> 1) ^ -(number & 1)
                        at += 1
                    if not low <= number < end:
                        return None
                    patch[first] = number
                    parts.append(key + encode(number))
                elif kind == BOOLEAN:
                    truth = data[at]
                    if truth > 1:
                        return None
                    at += 1
                    patch[first] = truth == 1
                    parts.append(key + (_TRUE if truth else _FALSE))
                else:
                    value, at = read(data, at)
                    patch[first] = value
                    parts.append(key + encode(value))
        if not parts or data[at:] != END:
            return None
        # A key's CBOR begins with its length. So sorting these sorts by key, and no key is a prefix of another.
        parts.sort()
        members = origin.members
        count = 4
        source = b""
        if seq:
            source = map_head(members + 1) + origin.before + _SEQ + encode(seq) + origin.after
        elif members:
            source = map_head(members) + origin.before + origin.after
        head = [_ENTITY, encode(entity), _PATCH, map_head(len(parts)), *parts, _ASSERT]
        if observed_at:
            count += 1
            head += _OBSERVED_AT, _U64(0x1B, observed_at) if observed_at >> 32 > 0 else encode(observed_at)
        if priority:
            count += 1
            head += _PRIORITY, encode(priority)
        if source:
            count += 1
            head += _SOURCE, source
        head.append(self._type)
        hashed = _HASH.copy()
        hashed.update(map_head(count) + b"".join(head))
        by = _new(Source, (origin.agent, origin.run, origin.step, origin.tool, seq))
        observation = _new(
            Observation, (entity, observed_at, "assert", priority, by, (), patch, (), (), None, "")
        )  # fmt: skip
        return observation, hashed.digest()

    def _learn(self, data: bytes, begin: int, end: int) -> _SourceParts:
        agent, at = read_text(data, begin)
        run, at = read_text(data, at)
        step, at = read_text(data, at)
        tool, at = read_text(data, at)
        if at > len(data):
            raise ValueError("the bytes end here")
        check_names(agent, run, step, tool)
        if len(self._sources) >= _SOURCES_MAX:
            self._sources.clear()
        origin = self._sources[data[begin:end]] = _SourceParts(
            agent, run, step, tool, *source_parts(agent, run, step, tool)
        )
        return origin
