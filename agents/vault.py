"""Erasable content of a run or a person: it is sealed (encrypted) on its way into the log and opened on its way out.

`seal` returns what a patch stores instead of a JSON value; `open` takes what a view shows and returns the value:

1. The value becomes text: a string itself, else JSON with sorted keys. One byte before it names its form. From
   DEFLATED_BYTES_MIN on it is deflated if that is smaller, because nothing can compress it after sealing, and a value
   in a record is stored in the log several times.
2. It is encrypted by AES-SIV with the data key of the run or person. The entity and the field's first name are the
   associated data. So a ciphertext opens only in the field where it was sealed, equal values in one field seal to equal
   bytes, and an observation that is sent again has the same id.
3. A text whose CBOR is larger than the field's `refold.inline` is stored as a Blob. Its content is CBOR {key_id,
   ciphertext}, the same as in the Sealed of a shorter text, and its address is the hash of that content.

The value must already be a JSON tree in canonical form (avro/canonical.json_tree). None stays None, which is no value.
A value recorded in clear opens unchanged: a log may hold both.

Destroying the key, or removing the content, erases the value in every state, history, snapshot and archive. Reading it
then raises Expired. Ids, hashes and roots cover ciphertext, and stay valid.
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
from refold.avro.jsonform import formatter
from refold.avro.observation import type_of
from refold.streams.client import Log

SEALED_CONTENT = "application/vnd.refold.sealed"
# A run's metadata is sealed as a whole, because its names would otherwise outlive its key.
ALL_METADATA = "*"
DEFLATED_BYTES_MIN = 512
KEYS_HELD_MAX = 1024

_TEXT, _JSON, _DEFLATED = 0, 1, 2
_FORMS = frozenset({_TEXT, _JSON, _TEXT | _DEFLATED, _JSON | _DEFLATED})
_encoder = msgspec.json.Encoder(order="sorted")


class ValueCipher(Protocol):
    """Converts values for patches and back from views: sealed (Vault), or unchanged (ClearVault)."""

    def seal(self, key_id: str, entity: str, field: str, tree: Plain) -> Any:
        """Return the form in which a patch stores a value.

        Args:
            key_id: The id of the key.
            entity: The entity.
            field: The first name of the field that holds the value, or of which it is an element or part.
            tree: The value, a JSON tree in canonical form.
        """

    def open(self, entity: str, field: str, stored: Any) -> Plain:
        """Return the value of what a view shows in a field, at any depth of it.

        Args:
            entity: The entity.
            field: The field's first name.
            stored: What the view shows.

        Raises:
            Expired: The content or its key is gone.
            NotAnswerable: It is sealed, and no key ring is open here.
            CorruptionError: The stored value was changed.
        """

    @property
    def ring(self) -> KeyRing | None:
        """The ring of its keys; None if nothing is sealed."""

    def close(self) -> None:
        """Release the ring. Idempotent."""


class ClearVault:
    """Seals nothing. The log itself stores values over the size limit as contents in clear."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._fields: dict[tuple[str, str], FieldDefinition | None] = {}

    @property
    def ring(self) -> KeyRing | None:
        """None."""
        return None

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def seal(self, key_id: str, entity: str, field: str, tree: Plain) -> Any:
        """Return the value unchanged."""
        return tree

    def open(self, entity: str, field: str, stored: Any) -> Plain:
        """As ValueCipher. A sealed value raises NotAnswerable."""
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
            shown = (
                decode(content) if definition is None else formatter(definition.element, python=True)(decode(content))
            )
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
    """Seals values with the keys of a ring."""

    def __init__(self, log: Log, ring: KeyRing) -> None:
        super().__init__(log)
        self._ring = ring
        self._ciphers: OrderedDict[str, AESSIV] = OrderedDict()
        self._opened: tuple[bytes, AESSIV] | None = None  # the key used last to open a value

    @property
    def ring(self) -> KeyRing:
        """The ring of its keys."""
        return self._ring

    def close(self) -> None:
        """As ValueCipher."""
        self._ring.close()

    def seal(self, key_id: str, entity: str, field: str, tree: Plain) -> Any:
        """As ValueCipher.seal. Creates the key if there is none."""
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
            raise NotAnswerable(
                f"{entity} {field}: sealed by a later release of refold (form {form}); read it with that release"
            )
        if form & _DEFLATED:
            text = zlib.decompress(text)
        return msgspec.json.decode(text) if form & _JSON else text.decode()

    def _cipher(self, key_id: str) -> AESSIV:
        """Return the cipher for sealing. The caller has the run open, and an open run's key is not destroyed."""
        return self._ciphers.get(key_id) or self._hold(key_id, AESSIV(self._ring.create(key_id)))

    def _hold(self, key_id: str, cipher: AESSIV) -> AESSIV:
        """Cache the cipher of an opened run, even if its key is destroyed meanwhile. A run that is resumed while it
        expires is then expired, and does not get a second key."""
        held = self._ciphers.setdefault(key_id, cipher)
        if len(self._ciphers) > KEYS_HELD_MAX:
            self._ciphers.popitem(last=False)
        return held


def is_sealed(stored: Any) -> bool:
    """Return whether a value in a patch or in a view is sealed."""
    return isinstance(stored, Sealed) or (isinstance(stored, Blob) and stored.media_type == SEALED_CONTENT)


def run_key(run_id: str) -> str:
    """Return the id of the key that seals a run's content."""
    return f"run:{run_id}"


def damaged(entity: str, field: str, key_id: str) -> CorruptionError:
    """Return the error for a ciphertext that does not open with its key."""
    return CorruptionError(
        f"{entity} {field}: its value was not sealed for it under the key {key_id}: it was changed, or moved "
        "from another entity or field; run refold verify, and restore it from a copy"
    )


def key_of(content: bytes) -> str | None:
    """Return the id of the key with which a content is sealed; None if it is not sealed."""
    sealed = _sealed_of(content)
    return None if sealed is None else sealed.key_id


def _sealed_of(content: bytes) -> Sealed | None:
    try:
        found = decode(content)
        if isinstance(found, dict) and found.keys() == SEALED_FIELDS:
            return Sealed(**found)
    except Exception:  # cbor2 may raise anything for invalid bytes
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
    """Return whether the CBOR of a text of this size, in bytes, exceeds a limit."""
    head = 1 if size < 24 else 2 if size < 1 << 8 else 3 if size < 1 << 16 else 5
    return size + head > limit
