"""Bodies in Amazon's event stream encoding (application/vnd.amazon.eventstream), which Bedrock uses for streams.

A body is frames, one after another; numbers are big-endian:

    length of the frame (4 bytes), length of the headers (4), CRC-32 of these eight bytes (4)
    headers: length of the name (1), name, type of the value (1), value; type 7 is text, with its length (2)
    payload, and the CRC-32 of all before it (4)

A record stores a frame as {"headers": [[name, value], ...], "payload": PAYLOAD}, from which the same bytes are made
again. PAYLOAD is text, or {"before": TEXT, "bytes": TEXT, "after": TEXT} if the payload's JSON holds base64 of text
under `bytes`, as in InvokeModelWithResponseStream. So names of secrets and redaction reach the text itself. A frame
that cannot be stored so (another type of header, a wrong CRC, not UTF-8) is stored as bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from refold.agents.journal.record import Plain

CONTENT_TYPE = "application/vnd.amazon.eventstream"
FRAME_BYTES_MAX = 24 << 20
_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_TEXT = 7
_BYTES = re.compile(r'"bytes"\s*:\s*"([A-Za-z0-9+/]+={0,2})"')


class Frames:
    """Splits a body that arrives in pieces into frames. A body that has no frames is returned unchanged."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._is_raw = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that are complete now, or the piece itself if the body has no frames."""
        self._waiting += data
        found: list[bytes] = []
        while len(self._waiting) >= _PRELUDE.size and not self._is_raw:
            length, headers, crc = _PRELUDE.unpack_from(self._waiting)
            is_frame = zlib.crc32(self._waiting[:8]) == crc and headers + 16 <= length <= FRAME_BYTES_MAX
            if not is_frame:
                self._is_raw = True
                break
            if len(self._waiting) < length:
                break
            found.append(bytes(self._waiting[:length]))
            del self._waiting[:length]
        return [*found, *self.rest()] if self._is_raw else found

    def rest(self) -> list[bytes]:
        """Return the rest at the end: the beginning of a frame, or nothing."""
        left, self._waiting = bytes(self._waiting), bytearray()
        return [left] if left else []


def frame_kept(data: bytes) -> dict[str, Plain] | None:
    """Return the record of a frame; None if the same bytes could not be built from it."""
    try:
        length, headers_length, _ = _PRELUDE.unpack_from(data)
        headers = _headers(data[_PRELUDE.size : _PRELUDE.size + headers_length])
        payload = data[_PRELUDE.size + headers_length : -_CRC.size].decode()
        found: dict[str, Plain] = {"headers": headers, "payload": _payload_json(payload)}
        return found if length == len(data) and frame_bytes(found) == data else None
    except (struct.error, ValueError, IndexError):
        return None


def frame_bytes(frame: Mapping[str, Any]) -> bytes:
    """Return the bytes of a stored frame.

    Raises:
        ValueError: It is not a frame. An error of a lookup means the same.
    """
    headers = b"".join(
        bytes([len(name.encode())]) + name.encode() + bytes([_TEXT]) + len(value.encode()).to_bytes(2) + value.encode()
        for name, value in frame["headers"]
    )
    payload = _payload_bytes(frame["payload"])
    prelude = struct.pack(">II", len(headers) + len(payload) + 16, len(headers))
    message = prelude + _CRC.pack(zlib.crc32(prelude)) + headers + payload
    return message + _CRC.pack(zlib.crc32(message))


def frame_text(frame: Mapping[str, Any]) -> str:
    """Return the text of a stored frame: its payload, or the text in its `bytes`."""
    payload = frame["payload"]
    text: str = payload if isinstance(payload, str) else payload["bytes"]
    return text


def with_frame_text(frame: Mapping[str, Any], text: str) -> dict[str, Plain]:
    """Return a stored frame with another text."""
    payload = frame["payload"]
    return {**frame, "payload": text if isinstance(payload, str) else {**payload, "bytes": text}}


def frame_event(frame: Mapping[str, Any]) -> str:
    """Return the name of the event in a stored frame; "" if it has none."""
    return str(next((value for name, value in frame["headers"] if name == ":event-type"), ""))


def frame_changed(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return the frame with its text changed, and with new lengths and checksums. Bytes without frames are changed
    directly."""
    frame = frame_kept(data)
    if frame is None:
        return change(data)
    text = frame_text(frame)
    changed = change(text.encode()).decode("utf-8", "replace")
    return data if changed == text else frame_bytes(with_frame_text(frame, changed))


def _headers(data: bytes) -> Plain:
    found: list[Plain] = []
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        if data[name_end] != _TEXT:
            raise ValueError("a header is not text")
        value_at = name_end + 3
        value_end = value_at + int.from_bytes(data[name_end + 1 : value_at])
        found.append([data[at + 1 : name_end].decode(), data[value_at:value_end].decode()])
        at = value_end
    return found


def _payload_json(payload: str) -> Plain:
    found = _BYTES.search(payload)
    if found is None:
        return payload
    try:
        text = base64.b64decode(found[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return payload
    return {"before": payload[: found.start(1)], "bytes": text, "after": payload[found.end(1) :]}


def _payload_bytes(payload: Any) -> bytes:
    if isinstance(payload, str):
        return payload.encode()
    text = base64.b64encode(payload["bytes"].encode()).decode()
    return f"{payload['before']}{text}{payload['after']}".encode()
