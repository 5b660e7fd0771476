"""The words of a text for the search index: letters, digits and _, case-folded.

In a script without spaces each character is a word.

Sealed content is indexed by hashes of its words, under a key derived from the run's key. Without that key a hash can
neither be computed nor reversed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

WORD_CHARACTERS_MAX = 64
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_PARTS = re.compile(r'"([^"]*)"|(\S+)')
_SNIPPET = 80


class SearchText(NamedTuple):
    """A parsed search text.

    Attributes:
        words: The words, each of which must occur.
        phrases: The phrases, whose words must follow one another.
    """

    words: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]

    def is_in(self, text: str) -> bool:
        """Whether a text contains all words and phrases."""
        there = words_of(text)
        if not set(self.words) <= set(there):
            return False
        line = f" {' '.join(there)} "
        return all(f" {' '.join(phrase)} " in line for phrase in self.phrases)


def words_of(text: str) -> list[str]:
    """Return the words of a text in order. Long words are cut."""
    return [word[:WORD_CHARACTERS_MAX] for word in _WORD.findall(text.casefold())]


def search_text(given: str) -> SearchText:
    """Parse a search text: words, and phrases in quotes. A word with several parts, such as `o-7`, is a phrase."""
    phrases = [tuple(words_of(quoted or plain)) for quoted, plain in _PARTS.findall(given)]
    every = dict.fromkeys(word for phrase in phrases for word in phrase)
    return SearchText(tuple(every), tuple(dict.fromkeys(each for each in phrases if len(each) > 1)))


def search_key(run_key: bytes) -> bytes:
    """Derive the key under which a run's words are hashed."""
    return hashlib.blake2b(b"refold-search/1", key=run_key, digest_size=32).digest()


def blinded(key: bytes, words: Iterable[str]) -> Iterator[int]:
    """The hash of each word, as a number that SQLite holds."""
    for word in words:
        digest = hashlib.blake2b(word.encode(), key=key, digest_size=8).digest()
        yield int.from_bytes(digest, "big", signed=True)


def snippet(text: str, asked: SearchText) -> str:
    """Return the text around the first match, in one line."""
    for found in _WORD.finditer(text):
        if found[0].casefold()[:WORD_CHARACTERS_MAX] in asked.words:
            begin, end = max(0, found.start() - _SNIPPET), found.end() + _SNIPPET
            line = " ".join(text[begin:end].split())
            return f"{'...' if begin else ''}{line}{'...' if end < len(text) else ''}"
    return ""
