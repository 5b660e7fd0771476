"""What of a run or a person is to be erasable, on its way into the log and out of it.

`seal` gives what stands in a patch instead of a JSON value; `open` takes what a view shows of it and gives the value:

1. The value's text: of a string itself, else JSON with sorted keys; in front of it one byte, its form. From
   DEFLATED_BYTES_MIN on it is deflated where that is smaller: once it is sealed nothing else makes it smaller, and a
   value that stands in a record stands in the log several times.
2. AES-SIV under the data key of the run or person, with the entity and the field's first name as associated data: so a
   ciphertext opens where it was sealed and nowhere else, equal values at one place seal to equal bytes, and an
   observation that is sent again has the same id.
3. A text whose CBOR is over the field's `refold.inline` stands as a Blob: content is CBOR {key_id, ciphertext}, the
   same as of the Sealed that a shorter one stands as, and its address the hash of that.

The value has to be a JSON tree in canonical form already (avro/canonical.json_tree); None stays None, which is no
value. What was recorded in the clear opens as it is: a log may have both.

Destroying the key, or removing the content, erases the value in every state, history, snapshot and archive. Asked
for, it is Expired; ids, hashes and roots cover ciphertext, and hold.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from typing import Any, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from refold.agents.journal.record import Plain
from refold.agents.keys.ring import KeyRing
from refold.avro.blob import CBOR, JSON_TEXT, SEALED_FIELDS, TEXT, Blob, Sealed
from refold.avro.canonical import decode, encode
from refold.avro.definition import INLINE_DEFAULT, FieldDefinition
from refold.avro.errors import CorruptionError, Expired, NotAnswerable
from refold.avro.jsonform import shower
from refold.avro.observation import type_of
from refold.streams.client import Log

SEALED_CONTENT = "application/vnd.refold.sealed"
# Where a run's metadata is sealed as a whole: what it is called would outlive its key otherwise.
ALL_METADATA = "*"
DEFLATED_BYTES_MIN = 512
KEYS_HELD_MAX = 1024

_TEXT, _JSON, _DEFLATED = 0, 1, 2
_FORMS = frozenset({_TEXT, _JSON, _TEXT | _DEFLATED, _JSON | _DEFLATED})
_encoder = msgspec.json.Encoder(order="sorted")


class ValueCipher(Protocol):
    """Puts values into patches and takes them out of views: sealed (Vault), or as they are (ClearVault)."""

    def seal(self, key_id: str, entity: str, field: str, tree: Plain) -> Any:
        """What to give as the field's value in a patch, or as an element or part of it. field: its first name."""

    def open(self, entity: str, field: str, stored: Any) -> Plain:
        """The value behind what a view shows in a field, at any depth of it. Expired, CorruptionError."""

    @property
    def ring(self) -> KeyRing | None:
        """Where its keys are; None where nothing is sealed."""

    def close(self) -> None:
        """Let go of the ring. Once more is nothing."""


class ClearVault:
    """Nothing is sealed; contents over the limit are contents in the clear, which the log makes by itself."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._fields: dict[tuple[str, str], FieldDefinition | None] = {}

    @property
    def ring(self) -> KeyRing | None:
        """None."""
        return None

    def close(self) -> None:
        """There is nothing to let go of."""

    def seal(self, key_id: str, entity: str, field: str, tree: Plain) -> Any:
        """The value itself."""
        return tree

    def open(self, entity: str, field: str, stored: Any) -> Plain:
        """As Keeper; NotAnswerable where it is sealed."""
        kind = type(stored)
        if kind is Blob:
            return self._content(entity, field, stored)
        if kind is Sealed:
            return self._unsealed(entity, field, stored)
        if kind is list:
            return [self.open(entity, field, each) for each in stored]
        if isinstance(stored, dict):
            return {key: self.open(entity, field, each) for key, each in stored.items()}
        return stored

    def _content(self, entity: str, field: str, blob: Blob) -> Plain:
        content = self._log.port.blobs.get(blob.hash)
        if content is None:
            raise Expired(f"{entity} {field}: expired: the content {blob.hash.hex()} is no longer in the log's store")
        if blob.media_type == SEALED_CONTENT:
            return self._unsealed(entity, field, _sealed_in(content, entity, field))
        if blob.media_type == CBOR:
            definition = self._definition(entity, field)
            shown = decode(content) if definition is None else shower(definition.element, python=True)(decode(content))
            return self.open(entity, field, shown)
        if blob.media_type == JSON_TEXT:
            return json.loads(content)
        return content.decode() if blob.media_type == TEXT else content

    def _unsealed(self, entity: str, field: str, sealed: Sealed) -> Plain:
        raise NotAnswerable(
            f"{entity} {field}: sealed under the key {sealed.key_id}, and no key ring is open here; name it with "
            "REFOLD_KEYS, or set REFOLD_MASTER_KEY"
        )

    def _definition(self, entity: str, field: str) -> FieldDefinition | None:
        name = type_of(entity)
        if (name, field) not in self._fields:
            found = self._log.types.get(name)
            self._fields[name, field] = None if found is None else found.by_first_name.get(field)
        return self._fields[name, field]


class Vault(ClearVault):
    """Values are sealed under keys of a ring."""

    def __init__(self, log: Log, ring: KeyRing) -> None:
        super().__init__(log)
        self._ring = ring
        self._ciphers: OrderedDict[str, AESSIV] = OrderedDict()
        self._opened: tuple[bytes, AESSIV] | None = None  # the key opened with last

    @property
    def ring(self) -> KeyRing:
        """Where its keys are."""
        return self._ring

    def close(self) -> None:
        """As Keeper."""
        self._ring.close()

    def seal(self, key_id: str, entity: str, field: str, tree: Plain) -> Any:
        """As Keeper; makes the key where there is none."""
        if tree is None:
            return None
        form, text = (_TEXT, tree.encode()) if isinstance(tree, str) else (_JSON, _encoder.encode(tree))
        size = len(text)
        if size >= DEFLATED_BYTES_MIN and len(deflated := zlib.compress(text, 1)) < size:
            form, text = form | _DEFLATED, deflated
        ciphertext = self._cipher(key_id).encrypt(bytes((form,)) + text, _place(entity, field))
        definition = self._definition(entity, field)
        if not _is_over(size, INLINE_DEFAULT if definition is None else definition.inline_bytes):
            return Sealed(key_id, ciphertext)
        content = encode({"key_id": key_id, "ciphertext": ciphertext})
        return self._log.put_blob(content, SEALED_CONTENT)

    def _unsealed(self, entity: str, field: str, sealed: Sealed) -> Plain:
        key = self._ring.get(sealed.key_id)
        if key is None:
            raise Expired(
                f"{entity} {field}: expired: there is no key {sealed.key_id} in {self._ring.place}. It was destroyed, "
                "or REFOLD_KEYS names another key ring than the one this was sealed with"
            )
        if self._opened is None or self._opened[0] != key:
            self._opened = key, AESSIV(key)
        cipher = self._opened[1]
        try:
            plain = cipher.decrypt(sealed.ciphertext, _place(entity, field))
        except (InvalidTag, ValueError):
            raise damaged(entity, field, sealed.key_id) from None
        self._hold(sealed.key_id, cipher)
        form, text = plain[0], plain[1:]
        if form not in _FORMS:
            raise NotAnswerable(f"{entity} {field}: sealed by a later refold (form {form}); read it with that")
        if form & _DEFLATED:
            text = zlib.decompress(text)
        return msgspec.json.decode(text) if form & _JSON else text.decode()

    def _cipher(self, key_id: str) -> AESSIV:
        """For sealing alone: whoever seals has the run open, and an open run's key is not destroyed."""
        return self._ciphers.get(key_id) or self._hold(key_id, AESSIV(self._ring.create(key_id)))

    def _hold(self, key_id: str, cipher: AESSIV) -> AESSIV:
        """What was opened is gone on with under the same key, though that be destroyed in between: a run that is
        resumed while it expires is expired then, and has no two keys."""
        held = self._ciphers.setdefault(key_id, cipher)
        if len(self._ciphers) > KEYS_HELD_MAX:
            self._ciphers.popitem(last=False)
        return held


def is_sealed(stored: Any) -> bool:
    """Whether a value is sealed, as it stands in a patch or in a view."""
    return isinstance(stored, Sealed) or (isinstance(stored, Blob) and stored.media_type == SEALED_CONTENT)


def run_key(run_id: str) -> str:
    """The id of the key that a run's content is under."""
    return f"run:{run_id}"


def damaged(entity: str, field: str, key_id: str) -> CorruptionError:
    """What is said of a ciphertext that does not open with its key."""
    return CorruptionError(
        f"{entity} {field}: what stands there was not sealed for it under the key {key_id}: it was changed, or moved "
        "from another entity or field; run refold verify, and restore it from a copy"
    )


def key_of(content: bytes) -> str | None:
    """The id of the key that a sealed content is under; None where it is no sealed content."""
    sealed = _sealed_of(content)
    return None if sealed is None else sealed.key_id


def _sealed_of(content: bytes) -> Sealed | None:
    try:
        found = decode(content)
        if isinstance(found, dict) and found.keys() == SEALED_FIELDS:
            return Sealed(**found)
    except Exception:  # cbor2 raises whatever comes of odd bytes
        return None
    return None


def _sealed_in(content: bytes, entity: str, field: str) -> Sealed:
    sealed = _sealed_of(content)
    if sealed is None:
        raise damaged(entity, field, "it names")
    return sealed


def _place(entity: str, field: str) -> list[bytes]:
    return [entity.encode(), field.encode()]


def _is_over(size: int, limit: int) -> bool:
    """Whether the CBOR of a text of so many bytes is over a limit."""
    head = 1 if size < 24 else 2 if size < 1 << 8 else 3 if size < 1 << 16 else 5
    return size + head > limit
