"""`.changes` for Faust: an entity as the key, a Change as the value.

What cannot be decoded is handed on as an Unreadable, not raised: Faust would log it, acknowledge it and go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import faust
from faust.types import AppT, CodecArg
from faust.types.tuples import Message

from refold.streams.changes import Change

Decode = Callable[[bytes], Change]


class Unreadable(NamedTuple):
    """A record of `.changes` that is no change, and why."""

    error: Exception


class ChangeSchema(faust.Schema[Any, Any]):
    """Decodes the records of `.changes`."""

    def __init__(self, decode: Decode) -> None:
        super().__init__(key_serializer="raw", value_serializer="raw")
        self._decode = decode

    def loads_key(
        self, app: AppT, message: Message, *, loads: Callable[..., Any] | None = None, serializer: CodecArg = None
    ) -> str | Unreadable:
        """The entity, TYPE/ID."""
        try:
            return bytes(message.key or b"").decode()
        except UnicodeDecodeError as error:
            return Unreadable(error)

    def loads_value(
        self, app: AppT, message: Message, *, loads: Callable[..., Any] | None = None, serializer: CodecArg = None
    ) -> Change | Unreadable:
        """The change."""
        try:
            return self._decode(bytes(message.value or b""))
        except Exception as error:  # whatever it is, it is the agents' loop that ends the process
            return Unreadable(error)
