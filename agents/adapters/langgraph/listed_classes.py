"""LangGraph's serializer, restricted to listed classes: a checkpoint names classes, and data must not load code.

LangGraph's own default imports the module of any class that a checkpoint names, and calls the class. LangGraph's strict
mode replaces a value of an unlisted class by plain values, which changes a graph's state without an error. This
serializer refuses such a value, both when it is read and when it is written. So a graph whose state needs an unlisted
class fails in its first step, and not when it is resumed.

When a value is written, each object in it is read back, but only once: the digests of objects that could be read are
kept. The list of all messages of a thread is written at each step, and all but the last of them are known.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from refold.avro.errors import InputError

_BLOCKED = ("msgpack_blocked", "msgpack_method_blocked")
_MSGPACK = "msgpack"
_KNOWN_MAX = 1 << 15
_reading = threading.local()


def _note(event: SerdeEvent) -> None:
    """Note what LangGraph blocks while this thread reads a value."""
    blocked: list[SerdeEvent] | None = getattr(_reading, "blocked", None)
    if blocked is not None and event["kind"] in _BLOCKED:
        blocked.append(event)


register_serde_event_listener(_note)


class ListedClassesSerializer(JsonPlusSerializer):
    """LangGraph's serializer for its own classes, those of messages, and listed ones."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        """List the classes that checkpoints may hold.

        Args:
            classes: The dataclasses, enums and pydantic models that a graph's state has.
        """
        super().__init__(allowed_msgpack_modules=tuple(classes) or None)
        self._known: set[tuple[int, bytes]] = set()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serialize a value.

        Returns:
            The name of the serialization, and the bytes.

        Raises:
            InputError: The value contains a value of an unlisted class.
        """
        data = super().dumps_typed(obj)
        if data[0] == _MSGPACK:
            self._check(data[1])
        else:
            self.loads_typed(data)
        return data

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> JsonPlusSerializer:
        """As JsonPlusSerializer. What the new serializer may read differs, so it starts without known objects."""
        clone = super().with_msgpack_allowlist(extra_allowlist)
        if clone is not self and isinstance(clone, ListedClassesSerializer):
            clone._known = set()
        return clone

    def _check(self, data: bytes) -> None:
        """Read the objects of a value back, but for those that were read before. Raises InputError as `dumps_typed`."""
        new: dict[tuple[int, bytes], bytes] = {}

        def noted(code: int, content: bytes) -> tuple[int, bytes]:
            key = code, hashlib.sha256(content).digest()
            if key not in self._known:
                new[key] = content
            return key

        ormsgpack.unpackb(data, ext_hook=noted, option=ormsgpack.OPT_NON_STR_KEYS)
        for key, content in new.items():
            self.loads_typed((_MSGPACK, ormsgpack.packb(ormsgpack.Ext(key[0], content))))
        if len(self._known) + len(new) > _KNOWN_MAX:
            self._known.clear()
        self._known.update(new)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value of serialized data.

        Raises:
            InputError: The data names an unlisted class, which is then not imported; or the data cannot be read.
        """
        blocked: list[SerdeEvent] = []
        _reading.blocked = blocked
        try:
            value = super().loads_typed(data)
        except Exception as error:  # decoders, and constructors of listed classes, may raise anything for such data
            raise InputError(f"a value of a checkpoint cannot be read: {' '.join(str(error).split()):.500}") from error
        finally:
            _reading.blocked = None
        if blocked:
            module, name = blocked[0]["module"], blocked[0]["name"]
            raise InputError(
                f"a checkpoint holds a value of the class {module}.{name}, which RefoldSaver may not load; if the "
                f"class is yours, list it: RefoldSaver(log, classes=[{name.rpartition('.')[2]}])"
            )
        return value
