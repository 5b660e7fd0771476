"""What a text may hold, told from it in a few microseconds: most texts hold no secret, and are not looked at further.

A hint is one bit. `hints_in` never misses one of a secret that a rule would find; it may give one for nothing. It looks
for single characters and for one repeated class of them, which C does at a gigabyte a second: searching for some sixty
prefixes and words one by one took 300 us for 2 KB.

`KnownSecrets` are found wherever they occur, also where nothing names them: the password under `password` in a run's
input is alone in the traceback of a tool, and in a model's prompt. A text of 8 characters or more is taken up, unless
it is one short word: `production` under `secret` is no reason to replace the word in every text. The newest HELD_MAX
are held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

CHARACTERS_MIN = 8
WORD_CHARACTERS_MIN = 16
HELD_MAX = 256
# JSON in a text writes these in another way; the rest of a secret says whether it may be there.
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')


class KnownSecrets:
    """What is known; never changed."""

    def __init__(self, given: Iterable[str] = (), shown: Iterable[str] = ()) -> None:
        """given: held for good. shown: came up under way; of these the newest are held."""
        self._given = tuple(given)
        self.shown = tuple(shown)[-HELD_MAX:]
        # The longest first, so that a secret within another leaves no rest of it.
        self._in_order = sorted({*self._given, *self.shown}, key=lambda each: (-len(each), each))
        self._held = frozenset(self._in_order)
        # Of each, what stands in a text also if that is JSON.
        self._plain = [max(_ESCAPED.split(each), key=len) for each in self._in_order]

    def extended(self, texts: Iterable[str]) -> KnownSecrets:
        """With those of the texts that are to be known; itself where none is new."""
        new = [each for each in dict.fromkeys(texts) if each not in self._held and _is_telling(each)]
        return KnownSecrets(self._given, (*self.shown, *new)) if new else self

    def may_be_in(self, text: str) -> bool:
        """Whether the text may hold one of them."""
        return any(each in text for each in self._plain)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each of them in the text.

        One secret after the other is searched for: a pattern of all of them begins anew at every character, and takes
        the square of the text's length where they begin alike.
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


def _is_telling(text: str) -> bool:
    return len(text) >= (WORD_CHARACTERS_MIN if text.isalpha() else CHARACTERS_MIN)


RUN, DIGITS, AT, SIGN, BEARER, ARMOUR, ESCAPE, KNOWN, OWN, TAG, OPTION, IBAN, NUMBER, NEIGHBOUR = (
    1 << place for place in range(14)
)
ALL = (1 << 14) - 1
LONG = RUN | DIGITS
"""Of these, what hints at least is DIGITS_MIN long."""
RUN_CHARACTERS_MIN = 16
# pin=1 and the like; only a user's own rule finds anything in less.
SHORTEST = 5
DIGITS_MIN = 13

_WORD_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
_WORDS = bytes(ord("w") if each in _WORD_BYTES else ord(" ") for each in range(256))
_RUN = b"w" * RUN_CHARACTERS_MIN
_NUMBERS = bytes(ord("0") if 48 <= each <= 57 else ord("x") for each in range(256))
# Between the groups of a card: space, point, hyphen, and the bytes of UTF-8's three other spaces.
_SPACES = " .-\u00a0\u2009\u202f".encode()
_NUMBER = b"0" * DIGITS_MIN
# A country and its check digits.
_ACCOUNTS = bytes(ord("0") if 48 <= each <= 57 else ord("U") if 65 <= each <= 90 else ord("x") for each in range(256))
_ACCOUNT = b"UU00"
_PHONE_SIGNS = b" .-()/+"
_PHONE = b"0" * 7
_NAME_CHARACTERS = 40
_ASSIGNING = "=:\uff1a"
_SIGNS_IN_NAMES = str.maketrans("", "", "_-. '")
_OPTION = re.compile(r"-(?<![\w-]-)-?[A-Za-z]")


class Endings:
    """What the names of secrets end in, by their letters and digits alone."""

    def __init__(self, whole: Iterable[str]) -> None:
        self.whole = tuple(whole)
        self.last_two = frozenset(each[-2:] for each in self.whole)


def hints_in(text: str, among: int, endings: Endings, known: KnownSecrets) -> int:
    """The hints, of those asked for, that the text gives."""
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
    # A name in another item or member of JSON; a comma or a bracket follows it.
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
    """Whether the name of a secret stands before one of the signs, quotes and spaces apart."""
    for piece in text.split(sign)[:-1]:
        before = piece[-_NAME_CHARACTERS:].rstrip(" \t\r\n\"'\\")
        if before[-2:].lower() in endings.last_two:
            name = before.lower().translate(_SIGNS_IN_NAMES)
            if name.endswith(endings.whole):
                return True
    return False
