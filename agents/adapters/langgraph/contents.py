"""Stored values of channels: short ones in their checkpoint, others as separate contents.

A content is an entity, `langgraph_content/<SHA-256>`. Checkpoints, threads and copies of threads with the same bytes
share it, so deleting one of them does not remove it for another.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from refold.agents.adapters.langgraph.pieces import Piece, cut
from refold.avro.blob import Blob, option_of
from refold.avro.errors import CorruptionError
from refold.streams.client import Log
from refold.streams.log.port import observation_in

# A value up to this size is stored in its checkpoint: a separate content would take more space.
IN_CHECKPOINT_BYTES = 512
# So many values are kept whole, because the next step's is compared with them.
VALUES_KEPT = 8
CACHE_BYTES = 64 << 20


class StoredValue(NamedTuple):
    """A serialized value: the type name that the serializer gave it, its first bytes, and the contents that follow."""

    type: str
    head: bytes
    pieces: tuple[Piece, ...] = ()

    def tree(self) -> dict[str, Any]:
        """Return the value as JSON."""
        found: dict[str, Any] = {"type": self.type}
        if self.head:
            found["head"] = base64.b64encode(self.head).decode()
        if self.pieces:
            found["contents"] = [f"{piece.hash}:{piece.size}" for piece in self.pieces]
        return found


def stored_value(tree: Mapping[str, Any]) -> StoredValue:
    """Return the value that `StoredValue.tree` wrote."""
    named = (each.partition(":") for each in tree.get("contents", ()))
    pieces = tuple(Piece(name, int(size)) for name, _, size in named)
    return StoredValue(tree["type"], base64.b64decode(tree.get("head", "")), pieces)


class Contents:
    """Writes and reads values in a log; caches the bytes used last. The caller must hold `Log.lock`."""

    def __init__(self, log: Log, agent: str) -> None:
        """Use a log.

        Args:
            log: The log.
            agent: The source of the observations that are written.
        """
        self._log = log
        self._agent = agent
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._values: OrderedDict[tuple[Piece, ...], bytes] = OrderedDict()

    def store(self, type_name: str, data: bytes, before: StoredValue | None = None) -> StoredValue:
        """Record the parts of a serialized value that are not stored yet.

        Args:
            type_name: The type that the serializer gave.
            data: The serialized value.
            before: A value that may share bytes with it: the same channel's value in the parent checkpoint.

        Returns:
            The value as its checkpoint stores it.
        """
        if len(data) <= IN_CHECKPOINT_BYTES:
            return StoredValue(type_name, data)
        known = () if before is None else before.pieces
        found = cut(data, self._load_bytes(before) if before is not None and known else b"", known)
        for name, piece in found.new.items():
            if name in self._cache:
                continue
            self._log.observe(f"langgraph_content/{name}", {"data": piece}, source=self._agent)
            self._keep(name, piece)
        self._values[found.pieces] = data
        if len(self._values) > VALUES_KEPT:
            self._values.popitem(last=False)
        return StoredValue(type_name, found.head, found.pieces)

    def _load_bytes(self, value: StoredValue) -> bytes:
        """As `load`. Of a value that is kept, the header may be another one."""
        kept = self._values.pop(value.pieces, None)
        return self.load(value) if kept is None else kept

    def load(self, value: StoredValue) -> bytes:
        """Return a value's bytes.

        Raises:
            CorruptionError: The log does not hold one of its contents.
        """
        return value.head + b"".join(map(self._content, value.pieces))

    def _content(self, piece: Piece) -> bytes:
        data = self._cache.get(piece.hash)
        if data is None:
            data = self._read(piece)
            self._keep(piece.hash, data)
        else:
            self._cache.move_to_end(piece.hash)
        return data

    def _read(self, piece: Piece) -> bytes:
        entity, port = f"langgraph_content/{piece.hash}", self._log.port
        for record in port.entity_records(entity, port.ends()[port.partition_of(entity)]):
            held = observation_in(port.registry, record).patch.get("data")
            data = opened(self._log, held)
            if len(data) == piece.size and hashlib.sha256(data).hexdigest() == piece.hash:
                return data
        raise CorruptionError(f"{entity}: the log lacks these {piece.size} bytes of a checkpoint; run refold verify")

    def _keep(self, name: str, data: bytes) -> None:
        self._cache[name] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])


def opened(log: Log, held: Any) -> bytes:
    """Return the bytes of a field, or its text in UTF-8. They come from the patch, or from the log's content store.

    Args:
        log: The log.
        held: The field's value in an observation's patch.
    """
    reference = option_of(held)
    if isinstance(reference, Blob):
        return log.blob(reference)
    return held.encode() if isinstance(held, str) else bytes(held or b"")
