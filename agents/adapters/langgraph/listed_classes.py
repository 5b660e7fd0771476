"""LangGraph's serializer, restricted to listed classes: a checkpoint names classes, and data must not load code.

LangGraph's own default imports the module of any class that a checkpoint names, and calls the class. LangGraph's strict
mode replaces a value of an unlisted class by plain values, which changes a graph's state without an error. This
serializer refuses such a value, both when it is read and when it is written. So a graph whose state needs an unlisted
class fails in its first step, and not when it is resumed.

When a value is written, each object in it is read back, but only once: the digests of objects that could be read are
kept.

The list of all messages of a thread is written at each step, and all but the last of them are known. So the bytes of a
message are kept by its class and its fields, and a list of messages is joined of these: the same bytes as LangGraph's,
in less time. A message with other members than plain values, or of another class, is written by LangGraph. A list that
begins with the objects of one that was written is continued, if none of them has changed.
"""

from __future__ import annotations

import hashlib
import marshal
import operator
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from refold.avro.errors import InputError

_BLOCKED = ("msgpack_blocked", "msgpack_method_blocked")
_MSGPACK = "msgpack"
_KNOWN_MAX = 1 << 15
_PACKED_BYTES_MAX = 32 << 20
_LISTS_MAX, _LIST_BYTES_MAX = 8, 4 << 20
_MESSAGES = frozenset({AIMessage, HumanMessage, SystemMessage, ToolMessage})
_SIMPLE = frozenset({str, bool, dict, list, type(None)})
_MARSHAL_VERSION = 2  # without references between values, so equal fields have equal bytes
_reading = threading.local()


class _KnownList:
    """A list of messages that was written: its messages, and the bytes of all. simple: those whose fields are texts or
    empty, with the values of their fields. others: with their fields, as marshal writes them."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.body = b""
        self._simple: list[Any] = []
        self._values: list[dict[str, Any]] = []
        self._others: list[tuple[Any, bytes]] = []

    def is_continued_by(self, messages: list[Any]) -> bool:
        """Whether a list begins with the same objects, none of which has changed. Texts are compared by identity."""
        return (
            len(messages) >= len(self.messages)
            and all(map(operator.is_, messages, self.messages))
            and not any(map(_extra_of, self.messages))
            and [*map(_fields_of, self._simple)] == self._values
            and all(_marshal(each) == fields for each, fields in self._others)
        )

    def add(self, message: Any, fields: bytes) -> None:
        """Add a message. fields: as marshal writes them."""
        self.messages.append(message)
        values = _values_if_simple(message)
        if values is None:
            self._others.append((message, fields))
        else:
            self._simple.append(message)
            self._values.append(values)


_fields_of, _extra_of = operator.attrgetter("__dict__"), operator.attrgetter("__pydantic_extra__")


def _marshal(message: Any) -> bytes:
    """Return the fields of a message. Raises ValueError if they are not plain values."""
    return marshal.dumps(message.__dict__, _MARSHAL_VERSION)


def _values_if_simple(message: Any) -> dict[str, Any] | None:
    """Return the values of a message's fields, if they are texts, None, False, or empty dicts or lists."""
    values = {}
    for name, value in message.__dict__.items():
        if type(value) not in _SIMPLE or (value and type(value) is not str):
            return None
        values[name] = type(value)() if type(value) in (dict, list) else value  # the message's own may be filled later
    return values


def _note(event: SerdeEvent) -> None:
    """Note what LangGraph blocks while this thread reads a value."""
    blocked: list[SerdeEvent] | None = getattr(_reading, "blocked", None)
    if blocked is not None and event["kind"] in _BLOCKED:
        blocked.append(event)


register_serde_event_listener(_note)


class ListedClassesSerializer(JsonPlusSerializer):
    """LangGraph's serializer for its own classes, those of messages, and listed ones."""

    def __init__(self, classes: Iterable[type] = (), *, packed_bytes_max: int = _PACKED_BYTES_MAX) -> None:
        """List the classes that checkpoints may hold.

        Args:
            classes: The dataclasses, enums and pydantic models that a graph's state has.
            packed_bytes_max: How many bytes of serialized messages are kept, to serialize them once.
        """
        super().__init__(allowed_msgpack_modules=tuple(classes) or None)
        self._known: set[tuple[int, bytes]] = set()
        self._packed: dict[tuple[type, bytes], bytes] = {}  # of messages that could be read, by class and fields
        self._packed_bytes = 0
        self._packed_bytes_max = packed_bytes_max
        self._lists: OrderedDict[int, _KnownList] = OrderedDict()  # by the id of the first message

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serialize a value.

        Returns:
            The name of the serialization, and the bytes.

        Raises:
            InputError: The value contains a value of an unlisted class.
        """
        packed = self._packed_list(obj) if type(obj) is list else None
        return self._dump_checked(obj) if packed is None else (_MSGPACK, packed)

    def _packed_list(self, messages: list[Any]) -> bytes | None:
        """Return a list of messages as msgpack; None if LangGraph has to write it."""
        first = id(messages[0]) if messages else 0
        known = self._lists.pop(first, None)
        try:
            if known is None or not known.is_continued_by(messages):
                known = _KnownList()
            parts = [known.body]
            for message in messages[len(known.messages) :]:
                if type(message) not in _MESSAGES or message.__pydantic_extra__:
                    return None
                fields = _marshal(message)
                packed = self._packed.get((type(message), fields))
                if packed is None:
                    kind, packed = self._dump_checked(message)
                    if kind != _MSGPACK:
                        return None
                    self._keep_packed((type(message), fields), packed)
                known.add(message, fields)
                parts.append(packed)
        except ValueError:  # not of plain values
            return None
        known.body = b"".join(parts)
        if len(known.body) <= _LIST_BYTES_MAX:
            self._lists[first] = known
            if len(self._lists) > _LISTS_MAX:
                self._lists.popitem(last=False)
        return _array_header(len(messages)) + known.body

    def _keep_packed(self, key: tuple[type, bytes], packed: bytes) -> None:
        self._packed_bytes += len(key[1]) + len(packed)
        if self._packed_bytes > self._packed_bytes_max:
            self._packed.clear()
            self._packed_bytes = len(key[1]) + len(packed)
        self._packed[key] = packed

    def _dump_checked(self, obj: Any) -> tuple[str, bytes]:
        """Serialize a value by LangGraph, and read its objects back. Raises InputError as `dumps_typed`."""
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
            clone._known, clone._packed, clone._packed_bytes, clone._lists = set(), {}, 0, OrderedDict()
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


def _array_header(length: int) -> bytes:
    """Return the header of a msgpack array."""
    if length < 1 << 4:
        return bytes([0x90 | length])
    return b"\xdc" + length.to_bytes(2, "big") if length < 1 << 16 else b"\xdd" + length.to_bytes(4, "big")
