"""Cuts: a cut is a point of a whole log, and its text contains all of it.

The text is `cut:1.` and the base64url (unpadded) of deterministic CBOR {l: log id, p: {partition: next offset},
s: next offset of schemas, o: observed_until in microseconds (absent without one), t: digest of the type fingerprints,
v: fold version}. Offsets are exclusive.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import InputError

FOLD_VERSION = 1
PREFIX = "cut:"
FORMAT = "1."
SHORT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Cut:
    """A point of a log: the observations and definitions below some offsets.

    Attributes:
        log_id: The log's id, 16 bytes.
        offsets: The next offset of the observations, by partition.
        schemas: The next offset of `.schemas`.
        observed_until: Only observations observed at or before this time, in microseconds since 1970; None for all.
    """

    log_id: bytes
    offsets: Mapping[int, int]
    schemas: int
    types_digest: bytes
    observed_until: int | None = None
    fold_version: int = FOLD_VERSION

    def __str__(self) -> str:
        return PREFIX + FORMAT + base64.urlsafe_b64encode(self._encoded()).rstrip(b"=").decode()

    def __hash__(self) -> int:
        return hash(self._encoded())

    @property
    def short(self) -> str:
        """The first digits of the cut's SHA-256: a short name in addition to the text, not a replacement of it."""
        return hashlib.sha256(self._encoded()).hexdigest()[:SHORT_DIGITS]

    @property
    def records(self) -> int:
        """The number of log records below the cut."""
        return sum(self.offsets.values())

    def until(self, observed_until: int | None) -> Cut:
        """The same point with another observed time."""
        return replace(self, observed_until=observed_until)

    def _encoded(self) -> bytes:
        tree: dict[str, object] = {
            "l": self.log_id,
            "p": dict(self.offsets),
            "s": self.schemas,
            "t": self.types_digest,
            "v": self.fold_version,
        }
        if self.observed_until is not None:
            tree["o"] = self.observed_until
        return encode(tree)


def parse_cut(text: str) -> Cut:
    """Parse a cut's text, with or without the prefix `cut:`. Raises InputError, also for a cut of another fold
    version.
    """
    return require_fold_version(read_cut(text))


def require_fold_version(cut: Cut) -> Cut:
    """Return the cut.

    Raises:
        InputError: Another fold version than this release's made it.
    """
    if cut.fold_version != FOLD_VERSION:
        raise InputError(
            f"{_brief(str(cut))}: a cut of fold version {cut.fold_version}, this release folds by version "
            f"{FOLD_VERSION}; open it with the release that made it"
        )
    return cut


def read_cut(text: str) -> Cut:
    """Decode a cut's text, of any fold version.

    Raises:
        InputError: It is not a whole cut, or of a format that this release does not read.
    """
    body = text.removeprefix(PREFIX)
    if not body.startswith(FORMAT):
        raise InputError(f"{_brief(text)}: not a cut that this release reads; a cut starts with {PREFIX}{FORMAT}")
    encoded = body.removeprefix(FORMAT)
    try:
        tree = cbor2.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        offsets = tree["p"]
        numbers = [*offsets.keys(), *offsets.values(), tree["s"], tree["v"]]
        if not all(type(number) is int and number >= 0 for number in numbers) or type(tree.get("o", 0)) is not int:
            raise ValueError("parts out of range")
        if not all(type(tree[name]) is bytes and len(tree[name]) == size for name, size in (("l", 16), ("t", 32))):
            raise ValueError("parts out of range")
        cut = Cut(tree["l"], dict(sorted(offsets.items())), tree["s"], tree["t"], tree.get("o"), tree["v"])
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError, EOFError, cbor2.CBORDecodeError):
        raise InputError(f"{_brief(text)}: a damaged cut; copy its text whole, from cut: to its last letter") from None
    if str(cut).removeprefix(PREFIX) != body:
        raise InputError(f"{_brief(text)}: a damaged cut; copy its text whole, from cut: to its last letter")
    return cut


def _brief(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:36]}..."
