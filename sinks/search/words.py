"""The words of a text, as the search index has them: letters, digits and _, in one case.

A text in a script without spaces has no words to be found by, so each of its characters is one.

Sealed content is indexed by the words' hashes under a key that is made of the run's own key. Without that nobody can
say what a hash is of, or find it.
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
    """What is searched for. words: each has to be there; phrases: words that have to follow one another."""

    words: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]

    def is_in(self, text: str) -> bool:
        """Whether a text has all of it."""
        there = words_of(text)
        if not set(self.words) <= set(there):
            return False
        line = f" {' '.join(there)} "
        return all(f" {' '.join(phrase)} " in line for phrase in self.phrases)


def words_of(text: str) -> list[str]:
    """The words of a text in their order. A long one is cut."""
    return [word[:WORD_CHARACTERS_MAX] for word in _WORD.findall(text.casefold())]


def search_text(given: str) -> SearchText:
    """What somebody typed: words, and phrases in quotes. A word of several, such as `o-7`, is a phrase."""
    phrases = [tuple(words_of(quoted or plain)) for quoted, plain in _PARTS.findall(given)]
    every = dict.fromkeys(word for phrase in phrases for word in phrase)
    return SearchText(tuple(every), tuple(dict.fromkeys(each for each in phrases if len(each) > 1)))


def search_key(run_key: bytes) -> bytes:
    """The key that a run's words are hashed under."""
    return hashlib.blake2b(b"refold-search/1", key=run_key, digest_size=32).digest()


def blinded(key: bytes, words: Iterable[str]) -> Iterator[int]:
    """The hash of each word, as a number that SQLite holds."""
    for word in words:
        digest = hashlib.blake2b(word.encode(), key=key, digest_size=8).digest()
        yield int.from_bytes(digest, "big", signed=True)


def snippet(text: str, asked: SearchText) -> str:
    """The place where the first of the words is found, in one line."""
    for found in _WORD.finditer(text):
        if found[0].casefold()[:WORD_CHARACTERS_MAX] in asked.words:
            begin, end = max(0, found.start() - _SNIPPET), found.end() + _SNIPPET
            line = " ".join(text[begin:end].split())
            return f"{'...' if begin else ''}{line}{'...' if end < len(text) else ''}"
    return ""
