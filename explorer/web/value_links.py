"""Links from the ids in a page's values to what they name.

1. While a page is rendered, each word of a value that may be an id is replaced by a mark, and collected: TYPE/ID of a
   type of the log, and any text without spaces that is a whole value or a whole member, which may be a run's id.
2. After that the first LOOKED_UP_MAX of them are looked up at once, at the page's cut.
3. The marks are replaced: by a link if the id names an entity or a run, else by the word.

A mark has a random number, so no recorded value and no form's field contains one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

from markupsafe import Markup, escape

from refold.avro.envelope import check_entity
from refold.avro.errors import ValidationError
from refold.explorer.web.addresses import entity_link, link
from refold.streams.client import Log
from refold.streams.cut import Cut

LOOKED_UP_MAX = 100
_WORD = re.compile(r"[^\s\"'<>,;()\[\]{}=\\]{3,200}")
_END = ".:!?"


class ValueLinks:
    """The links of one page.

    Args:
        types: The names of the log's types.
        known: Returns which of some entities exist.
        at: The page's cut.
    """

    def __init__(self, types: Iterable[str], known: Callable[[list[str]], Iterable[str]], at: str) -> None:
        self._types = frozenset(types)
        self._known = known
        self._at = at
        self._mark = f"\N{NULL}{secrets.token_hex(8)}:"
        self._words: list[tuple[str, str]] = []

    @classmethod
    def of(cls, log: Log, cut: Cut) -> ValueLinks:
        """Return the links of a page at a cut."""
        types = {version.definition.name for version in log.port.registry}
        return cls(types, lambda names: log.states(names, cut), str(cut))

    def marked(self, text: str) -> Markup:
        """Return a value's text as markup, with marks in place of what may be ids."""
        parts, done = [], 0
        for found in _WORD.finditer(text):
            word = found[0].rstrip(_END)
            entity = self._entity(word, text, found.start(), found.start() + len(word))
            if entity:
                parts += [escape(text[done : found.start()]), Markup(f"{self._mark}{len(self._words)};")]
                self._words.append((word, entity))
                done = found.start() + len(word)
        return Markup("").join([*parts, escape(text[done:])])

    def filled(self, page: str) -> str:
        """Return a rendered page with links or words in place of its marks."""
        if not self._words:
            return page
        names = list(dict.fromkeys(entity for _, entity in self._words))[:LOOKED_UP_MAX]
        known = set(self._known(names))
        return re.sub(f"{self._mark}(\\d+);", lambda found: self._link_html(*self._words[int(found[1])], known), page)

    def _entity(self, word: str, text: str, begin: int, end: int) -> str:
        """Return the entity that a word may name; empty if it is no id."""
        kind, slash, _ = word.partition("/")
        is_member = text[max(begin - 1, 0) : begin] == text[end : end + 1] == '"' and text[end + 1 : end + 2] != ":"
        is_whole = is_member or (begin == 0 and end == len(text))
        name = word if slash and kind in self._types else f"run/{word}" if is_whole and not slash else ""
        with suppress(ValidationError):
            if name:
                check_entity(name)
                return name
        return ""

    def _link_html(self, word: str, entity: str, known: set[str]) -> str:
        if entity not in known:
            return str(escape(word))
        address = link("run", entity.removeprefix("run/"), at=self._at) if entity.startswith("run/") else entity_link(
            entity, at=self._at
        )  # fmt: skip
        return f'<a href="{escape(address)}">{escape(word)}</a>'
