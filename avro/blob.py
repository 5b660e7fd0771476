"""Blobs and sealed values, which replace a field's value that is too large or too private to be in the record.

Ids cover the stored form, so the definition alone decides whether a value becomes a Blob.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from refold.avro.canonical import decode, encode, text
from refold.avro.errors import ValidationError
from refold.avro.observation import ID_BYTES, Value

Blobs: TypeAlias = MutableMapping[bytes, bytes]
"""Contents by SHA-256, collected for the store before the observation is sent."""

BLOB_FIELDS = {"hash", "size", "media_type"}
SEALED_FIELDS = {"key_id", "ciphertext"}
TEXT, JSON_TEXT, BYTES, CBOR = "text/plain", "application/json", "application/octet-stream", "application/cbor"

EXPIRED = b""
"""Replaces a content that was removed because it had expired, in exports and archives."""
_EMPTY = hashlib.sha256(b"").digest()


def is_expired(digest: bytes, content: bytes) -> bool:
    """Whether `content` is the marker of an expired content: empty, under a digest that is not that of empty bytes."""
    return content == EXPIRED and len(digest) == ID_BYTES and digest != _EMPTY


def is_content_of(digest: bytes, content: bytes) -> bool:
    """Whether `content` has this digest, or is the marker of an expired content."""
    return hashlib.sha256(content).digest() == digest or is_expired(digest, content)


@dataclass(frozen=True, slots=True)
class Blob:
    """A content-addressed reference: SHA-256 of the content (32 bytes), size in bytes, media type."""

    hash: bytes
    size: int
    media_type: str

    def tree(self, path: str) -> dict[str, Value]:
        """The canonical form.

        Raises:
            ValidationError: The reference is invalid.
        """
        raw, size, media_type = _untyped(self.hash, self.size, self.media_type)
        whole = type(raw) is bytes and type(size) is int and isinstance(media_type, str)
        if not whole or len(raw) != ID_BYTES or not 0 <= size < 2**63:
            raise ValidationError(path, "a Blob has a 32-byte hash, a size and a media type", self)
        return {"hash": raw, "size": size, "media_type": text(media_type, path)}


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted value: the id of its key, and the ciphertext. The fold never looks inside."""

    key_id: str
    ciphertext: bytes

    def tree(self, path: str) -> dict[str, Value]:
        """The canonical form.

        Raises:
            ValidationError: The sealed value is invalid.
        """
        key_id, ciphertext = _untyped(self.key_id, self.ciphertext)
        if not isinstance(key_id, str) or type(ciphertext) is not bytes:
            raise ValidationError(path, "a Sealed has the text of a key id, and ciphertext bytes", self)
        return {"key_id": text(key_id, path), "ciphertext": ciphertext}


def _untyped(*parts: Any) -> tuple[Any, ...]:
    """The parts without static types, because callers may not use a type checker."""
    return parts


# Called for every value; isinstance with an abstract class takes ten times as long.
_PLAIN = frozenset({str, bytes, int, float, bool, list, type(None)})


def option_of(tree: Any) -> Blob | Sealed | None:
    """Return the Blob or Sealed of a canonical value, or None.

    It is recognised by its exact set of fields and their mix of bytes and other types. That is unambiguous: a union
    with it may not have a record with these fields (avro/nodes.py), and a map's values all have one type.
    """
    if type(tree) not in _PLAIN and isinstance(tree, Mapping):
        if tree.keys() == BLOB_FIELDS and type(tree["hash"]) is bytes and type(tree["size"]) is int:
            return Blob(**tree)
        if tree.keys() == SEALED_FIELDS and type(tree["ciphertext"]) is bytes and type(tree["key_id"]) is str:
            return Sealed(**tree)
    return None


def references(values: Iterable[Value], content_of: Callable[[bytes], bytes | None]) -> Iterator[Blob]:
    """Yield every Blob in these values once, at any depth, and also in the content of a Blob that replaces a list or
    record.

    Args:
        values: The values, in canonical form.
        content_of: Returns a content by its SHA-256, or None if it is not available; its references are then not found.
    """
    waiting: list[Any] = [*values]
    found: set[bytes] = set()
    while waiting:
        value = waiting.pop()
        option = option_of(value)
        if isinstance(option, Blob):
            if option.hash not in found:
                found.add(option.hash)
                yield option
                waiting.append(_content_tree(option, content_of))
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _content_tree(blob: Blob, content_of: Callable[[bytes], bytes | None]) -> object:
    content = content_of(blob.hash) if blob.media_type == CBOR else None
    if content is None:
        return None
    try:
        tree = decode(content)
        return tree if encode(tree) == content else None
    except Exception:  # an author may give a Blob of any bytes; only canonical CBOR holds references of ours
        return None


def claim(canonical: Value, is_json: bool, blobs: Blobs) -> Blob:
    """Store a canonical value's content, and return its reference.

    Args:
        canonical: The value.
        is_json: It is JSON text, which decides its media type.
        blobs: Gets the content, by its SHA-256.
    """
    if isinstance(canonical, str):
        content, media_type = canonical.encode(), JSON_TEXT if is_json else TEXT
    elif isinstance(canonical, bytes):
        content, media_type = canonical, BYTES
    else:
        content, media_type = encode(canonical), CBOR
    digest = hashlib.sha256(content).digest()
    blobs[digest] = content
    return Blob(digest, len(content), media_type)
