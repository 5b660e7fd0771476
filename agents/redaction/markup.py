"""Secrets in markup: `<password>x</password>`, also escaped (`&lt;`), and `<add key="password" value="x"/>`.

`<login password="x"/>` is an assignment (context.py). A value is never read past the next `<`, and a tag's attributes
never past 256 characters, so that no text is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from refold.agents.redaction.names import Names
from refold.agents.redaction.shapes import Span

_ELEMENT = re.compile(
    r"(?:<|&lt;)(?P<name>[\w:.-]{1,64})(?:\s[^<>&]{0,256})?(?:>|&gt;)(?:<!\[CDATA\[)?"
    r"(?P<value>(?:[^<&\]]|&(?!lt;)|\](?!\]>))++)(?=</(?P=name)\s*>|&lt;/(?P=name)\s*&gt;|\]\]>)"
)
_PAIR = re.compile(
    r"\b(?:name|key|id|type)\s{0,4}=\s{0,4}(?P<quote>\\{0,7}[\"'])(?P<name>[^\"'<>\\]{1,64})(?P=quote)"
    r"[^<>]{0,256}?\bvalue\s{0,4}=\s{0,4}(?P<other>\\{0,7}[\"'])(?P<value>[^\"'<>\\]++)(?P=other)",
    re.IGNORECASE,
)


def elements_in(text: str, names: Names) -> Iterator[Span]:
    """The texts of elements, and the values of pairs, whose name is a secret's; in order and apart."""
    found = [
        match.span("value")
        for pattern in (_ELEMENT, _PAIR)
        for match in pattern.finditer(text)
        if names.is_secret(match["name"])
    ]
    end = 0
    for start, after in sorted(found):
        if start >= end:
            end = after
            yield start, after
