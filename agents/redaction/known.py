"""Secrets that are known as they are, and found where nothing names them.

A password that stands under `password` in a run's input stands alone in the traceback that a tool leaves, and in the
prompt that tells a model of it. A text of 8 characters or more is taken up, unless it is one short word: `production`
under `secret` is no reason to take the word out of every text. The newest HELD_MAX are held.
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
