"""Decide in a few microseconds which kinds of secrets a text may hold. Most texts hold none and are not searched.

A hint is one bit. `hints_in` never misses a hint of a secret that a rule would find; it may give a hint for a text
without secrets. It searches for single characters and for one repeated class of them, which C does at a gigabyte per
second. Searching for some sixty prefixes and words one by one took 300 us for 2 KB.

`KnownSecrets` are found wherever they occur, even without a name: the value of `password` in a run's input appears
without the name in the traceback of a tool and in a model's prompt. A text becomes a known secret if it has at least 8
characters, or at least 16 if it is a single word of letters: `production` under the name `secret` is no reason to
replace that word in every text. The newest HELD_MAX are held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

CHARACTERS_MIN = 8
WORD_CHARACTERS_MIN = 16
HELD_MAX = 256
# JSON in a text escapes these. The longest part between them decides whether a secret may be in the text.
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')


class KnownSecrets:
    """The known secrets. Immutable."""

    def __init__(self, given: Iterable[str] = (), shown: Iterable[str] = ()) -> None:
        """Build the set of known secrets.

        Args:
            given: Secrets that are held for ever.
            shown: Secrets that were met during the run; only the newest HELD_MAX are held.
        """
        self._given = tuple(given)
        self.shown = tuple(shown)[-HELD_MAX:]
        # Longest first, so that a secret within another leaves no rest of the longer one.
        self._in_order = sorted({*self._given, *self.shown}, key=lambda each: (-len(each), each))
        self._known = frozenset(self._in_order)
        # The part of each secret that is the same in JSON.
        self._plain = [max(_ESCAPED.split(each), key=len) for each in self._in_order]

    def extended(self, texts: Iterable[str]) -> KnownSecrets:
        """Return a set that also knows these texts, as far as they qualify; this object itself if none is new."""
        new = [each for each in dict.fromkeys(texts) if each not in self._known and _is_distinctive(each)]
        return KnownSecrets(self._given, (*self.shown, *new)) if new else self

    def may_be_in(self, text: str) -> bool:
        """Return whether the text may hold one of them."""
        return any(each in text for each in self._plain)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each known secret in the text, sorted and without overlaps.

        The secrets are searched one after the other. A pattern of all of them would start again at every character, and
        take quadratic time if the secrets begin alike.
        """
        found: list[tuple[int, int]] = []
        free = [(0, len(text))]
        for secret in self._in_order:
            if secret not in text:
                continue
            left: list[tuple[int, int]] = []
            for first, end in free:
                start = first
                while (at := text.find(secret, start, end)) >= 0:
                    found.append((at, at + len(secret)))
                    left.append((start, at))
                    start = at + len(secret)
                left.append((start, end))
            free = left
        return sorted(found)


def _is_distinctive(text: str) -> bool:
    return len(text) >= (WORD_CHARACTERS_MIN if text.isalpha() else CHARACTERS_MIN)


RUN, DIGITS, AT, SIGN, BEARER, ARMOUR, ESCAPE, KNOWN, OWN, TAG, OPTION, IBAN, NUMBER, NEIGHBOUR = (
    1 << place for place in range(14)
)
ALL = (1 << 14) - 1
LONG = RUN | DIGITS
"""Hints that need a text of at least DIGITS_MIN characters."""
RUN_CHARACTERS_MIN = 16
# Such as pin=1. Only a user's own rule can find anything in a shorter text.
SHORTEST = 5
DIGITS_MIN = 13

_WORD_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
_WORDS = bytes(ord("w") if each in _WORD_BYTES else ord(" ") for each in range(256))
_RUN = b"w" * RUN_CHARACTERS_MIN
_NUMBERS = bytes(ord("0") if 48 <= each <= 57 else ord("x") for each in range(256))
# Between the groups of a card number: space, dot, hyphen, and the UTF-8 bytes of three other spaces.
_SPACES = " .-\u00a0\u2009\u202f".encode()
_NUMBER = b"0" * DIGITS_MIN
# A country code and check digits.
_ACCOUNTS = bytes(ord("0") if 48 <= each <= 57 else ord("U") if 65 <= each <= 90 else ord("x") for each in range(256))
_ACCOUNT = b"UU00"
_PHONE_SIGNS = b" .-()/+"
_PHONE = b"0" * 7
_NAME_CHARACTERS = 40
_ASSIGNING = "=:\uff1a"
_SIGNS_IN_NAMES = str.maketrans("", "", "_-. '")
_OPTION = re.compile(r"-(?<![\w-]-)-?[A-Za-z]")


class Endings:
    """The endings of the names of secrets, by their letters and digits only."""

    def __init__(self, whole: Iterable[str]) -> None:
        self.whole = tuple(whole)
        self.last_two = frozenset(each[-2:] for each in self.whole)


def hints_in(text: str, among: int, endings: Endings, known: KnownSecrets) -> int:
    """Return the hints that the text gives, of those in `among`.

    Args:
        text: The text.
        among: The bits of the hints to look for.
        endings: The endings of the names of secrets.
        known: The known secrets, for the hint KNOWN.
    """
    found = 0
    if among & AT and ("@" in text or "%40" in text):
        found |= AT
    if among & (RUN | DIGITS | IBAN) and len(text) >= DIGITS_MIN:
        data = text.encode("utf-8", "surrogatepass")
        if among & RUN and _RUN in data.translate(_WORDS):
            found |= RUN
        if among & DIGITS and _NUMBER in data.translate(_NUMBERS, _SPACES):
            found |= DIGITS
        if among & IBAN and _ACCOUNT in data.translate(_ACCOUNTS):
            found |= IBAN
    if among & NUMBER and _PHONE in text.encode("utf-8", "surrogatepass").translate(_NUMBERS, _PHONE_SIGNS):
        found |= NUMBER
    if among & TAG and ("</" in text or "&lt;/" in text or ("value" in text and "<" in text)):
        found |= TAG
    if among & OPTION and "-" in text and _OPTION.search(text):
        found |= OPTION
    if among & SIGN and any(_is_named(text, each, endings) for each in _ASSIGNING):
        found |= SIGN
    # The name may be in another item or member of JSON; then a comma or a bracket follows it.
    if among & NEIGHBOUR and ("[" in text or "alue" in text) and any(_is_named(text, each, endings) for each in ",}"):
        found |= NEIGHBOUR
    if among & BEARER and ("earer" in text or "EARER" in text):
        found |= BEARER
    if among & ARMOUR and "-----" in text:
        found |= ARMOUR
    if among & ESCAPE and "\\u" in text:
        found |= ESCAPE
    if among & KNOWN and known.may_be_in(text):
        found |= KNOWN
    return found


def _is_named(text: str, sign: str, endings: Endings) -> bool:
    """Return whether a secret's name is before one of the signs, ignoring quotes and spaces between them."""
    for piece in text.split(sign)[:-1]:
        before = piece[-_NAME_CHARACTERS:].rstrip(" \t\r\n\"'\\")
        if before[-2:].lower() in endings.last_two:
            name = before.lower().translate(_SIGNS_IN_NAMES)
            if name.endswith(endings.whole):
                return True
    return False
