"""The master key: wraps keys that are stored where others may read them.

REFOLD_MASTER_KEY is base64 of at least 32 random bytes, or file:PATH of a file that holds it. Several are separated by
commas or lines. The first wraps, and all unwrap, so that a new one can take over while keys that the old one wrapped
still have to be read. A wrapped key names its master key by the first bytes of a hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from urllib.parse import unquote

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from refold.agents.keys.ring import KEY_BYTES
from refold.avro.errors import InputError, KeyUnreadable
from refold.avro.files import read_bounded

MASTER_ENVIRONMENT = "REFOLD_MASTER_KEY"
SECRET_BYTES_MIN = 32
NAME_BYTES = 6
TAG_BYTES = 16
_HOW = "make one with `openssl rand -base64 48`, and keep it where backups of the log are not"


class MasterKeys:
    """Master keys by name; the first of them wraps."""

    def __init__(self, secrets: list[bytes]) -> None:
        self._by_name: dict[bytes, AESSIV] = {}
        for each in secrets:
            key = hashlib.sha512(b"refold-master/1\0" + each).digest()
            self._by_name[hashlib.sha256(key).digest()[:NAME_BYTES]] = AESSIV(key)

    @property
    def names(self) -> list[str]:
        """Their names, in hex; a name reveals nothing of the key."""
        return [each.hex() for each in self._by_name]

    def wrap(self, key_id: str, key: bytes) -> bytes:
        """Encrypt a key for storage. It can be decrypted only together with its id."""
        name, cipher = next(iter(self._by_name.items()))
        return name + cipher.encrypt(key, [key_id.encode()])

    def is_wrapped(self, given: bytes) -> bool:
        """Return whether a value has the length of a wrapped key; any other value is damaged, or was never wrapped."""
        return len(given) == NAME_BYTES + TAG_BYTES + KEY_BYTES

    def is_of(self, wrapped: bytes) -> bool:
        """Return whether one of these master keys wrapped it."""
        return wrapped[:NAME_BYTES] in self._by_name

    def unwrap(self, key_id: str, wrapped: bytes, place: str) -> bytes:
        """Decrypt a key.

        Args:
            key_id: The key's id.
            wrapped: The encrypted key.
            place: Where it is stored, for error messages.

        Raises:
            InputError: The master key that wrapped it is missing; the message names it.
            KeyUnreadable: The wrapped key was changed.
        """
        cipher = self._by_name.get(wrapped[:NAME_BYTES])
        if cipher is None and self.is_wrapped(wrapped):
            raise self.missing(key_id, wrapped, place)
        try:
            if cipher is None:
                raise ValueError
            return cipher.decrypt(wrapped[NAME_BYTES:], [key_id.encode()])
        except (InvalidTag, ValueError):
            raise KeyUnreadable(
                f"{place}: the key {key_id} is not the one that was wrapped; restore the topic's data to read what it "
                "sealed"
            ) from None

    def missing(self, key_id: str, wrapped: bytes, place: str) -> InputError:
        """Return the error for a key that none of these master keys wrapped."""
        return InputError(
            f"{place}: the key {key_id} is wrapped by the master key {wrapped[:NAME_BYTES].hex()}, and "
            f"{MASTER_ENVIRONMENT} is {' and '.join(self.names)}; give the right one, or both with a comma between "
            "them, the one that wraps from now on first"
        )


def read_masters(given: str) -> MasterKeys:
    """Read the master keys from the value of REFOLD_MASTER_KEY.

    Raises:
        InputError: The value is invalid. The message says why, and never contains the value.
    """
    where, text = MASTER_ENVIRONMENT, given.strip()
    if text.startswith("file:"):
        path = Path(unquote(text.removeprefix("file:").removeprefix("//")))
        where = f"{MASTER_ENVIRONMENT} ({path})"
        try:
            text = read_bounded(path).decode("ascii")
        except (OSError, ValueError) as error:
            raise InputError(f"{where}: cannot be read: {error}") from None
    secrets = [_secret(each, where) for each in text.replace(",", " ").split()]
    if not secrets:
        raise InputError(f"{where}: it holds no key; {_HOW}")
    return MasterKeys(secrets)


def _secret(text: str, where: str) -> bytes:
    try:
        secret = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"{where}: give base64, or file:PATH; {_HOW}") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise InputError(f"{where}: a master key of {len(secret)} bytes; at least {SECRET_BYTES_MIN} are safe: {_HOW}")
    return secret
