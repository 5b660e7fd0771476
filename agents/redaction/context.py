"""Secrets that only their surroundings give away: `password=...`, `Authorization: Bearer ...`, `postgres://user:pass@host`.

What is found is the value; what says so stays readable. A name counts if `Names` says it does. An unquoted value has
to look like one: code that passes `token=get_token()` or `password=os.environ["X"]` holds no secret, and prose that
says `Password: please` neither.

A name's end is searched for first, and the value behind it read only where the name is a secret's: so no value is read
twice, and one in another's text is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from refold.agents.redaction.names import Names, normal
from refold.agents.redaction.patterns import Span
from refold.agents.redaction.tokens import TOKEN_PATTERN

# Schemes after which credentials stand. Basic is an everyday word, and counts under a name alone.
_SCHEME = re.compile(
    r"\s*(?:bearer|basic|token|apikey|api-key|digest|negotiate|aws4-hmac-sha256)\s+(?=\S)", re.IGNORECASE
)
_URL = re.compile(r"://[^\s/:@\[\]\"'<>]*:([^\s/@\[\]\"'<>]+)@")
_BEARER = re.compile(rf"\bbearer\s+((?:{TOKEN_PATTERN}|[\w.~+/=-]){{8,}})", re.IGNORECASE)
_SIGN = re.compile(r"[=:\uff1a]")
# JSON in JSON in JSON puts 2^n - 1 signs before a quote. Each character of a value is compared with the quote, so
# there is a bound.
_OPENING = re.compile(r"\s*(\\{0,63}[\"'])")
_BARE_VALUE = re.compile(rf"(?P<value>(?:{TOKEN_PATTERN}|[^\s&\"'#;<>,()\[\]{{}}])+)(?P<next>.?)")
_HEADER = re.compile(r"(?P<name>authorization|cookie)\s*:[ \t]*(?P<value>[^\s\"'][^\r\n\"']*)", re.IGNORECASE)
_NAME_CHARACTERS_MAX = 64
# With quotes and white space between it and the sign.
_WINDOW = 2 * _NAME_CHARACTERS_MAX
_NAME_REVERSED = re.compile(r"[\w.\u0300-\u036f-]*")
# Names of several words, and what they end in.
_SEVERAL_WORDS = (
    "motdepasse", "motsdepasse", "codesecret", "phrasesecrète", "phrasesecrete", "clavedeacceso", "clavesecreta",
    "paroladordine", "parolasegreta", "codicesegreto", "chiavesegreta", "palavrapasse", "geheimewoord",
)  # fmt: skip
_LAST_WORDS = frozenset({
    "passe", "secret", "secrète", "secrete", "acceso", "secreta", "ordine", "segreta", "segreto", "woord",
})  # fmt: skip
# A name in code, a shell's variable, a place for a value.
_IDENTIFIER = re.compile(r"\$?[A-Za-z_][A-Za-z_.]*|%s")


def scheme_of(value: str) -> int:
    """How many characters in front of credentials say of what sort they are: 7 in `Bearer abc`."""
    match = _SCHEME.match(value)
    return match.end() if match else 0


def urls_in(text: str) -> Iterator[Span]:
    """The passwords in URLs."""
    return (match.span(1) for match in _URL.finditer(text))


def bearers_in(text: str) -> Iterator[Span]:
    """What stands after the word bearer and is no word of prose."""
    for match in _BEARER.finditer(text):
        if any(each.isdigit() for each in match[1]) or len(match[1]) >= 20:
            yield match.span(1)


def assigned_in(text: str, names: Names) -> Iterator[Span]:
    """The values that are said to be a secret's by the name before them, in order and apart."""
    found = [*_headers(text, names), *_after_signs(text, names)]
    end = 0
    for start, after in sorted(found, key=lambda span: (span[0], -span[1])):
        if start >= end:
            end = after
            yield start, after


def _headers(text: str, names: Names) -> Iterator[Span]:
    for match in _HEADER.finditer(text):
        value = match["value"]
        is_cookie = "=" in value.split(";")[0]
        if names.is_secret(_name_before(text, match.end("name"))) and (is_cookie or scheme_of(value)):
            yield match.span("value")


def _after_signs(text: str, names: Names) -> Iterator[Span]:
    """The values after = and :, quoted or bare. No value of either sort is read twice."""
    quoted_until = bare_until = 0
    for sign in _SIGN.finditer(text):
        at = sign.start()
        if at < quoted_until:
            continue
        first = max(0, at - _WINDOW)
        before = text[first:at].rstrip()
        is_apart = first + len(before) < at
        unquoted = before[:-1].rstrip("\\") if before[-1:] in ('"', "'") else before
        name = _name_before(unquoted, len(unquoted))
        if not name or not _is_secret(name, unquoted, names):
            continue
        opening = _OPENING.match(text, at + 1)
        if opening:
            value = _up_to(opening[1]).match(text, opening.end())
            if value:
                quoted_until = value.end()
                yield value.span()
        elif unquoted is before and at >= bare_until:
            start = at + 1
            while text[start : start + 1].isspace():
                start += 1
            if sign[0] == "=" and is_apart != (start > at + 1):
                continue
            value = _BARE_VALUE.match(text, start)
            if value:
                bare_until = value.end("value")
                is_assigned = sign[0] == "=" and not is_apart
                if _is_value(value, name, before[-len(name) - 1 : -len(name)] if is_assigned else None):
                    yield value.span("value")


@lru_cache(maxsize=128)
def _up_to(quote: str) -> re.Pattern[str]:
    """What stands before the next such quote, or the end of the line."""
    return re.compile(rf"(?:(?!{re.escape(quote)})(?:\\.|[^\n]))+")


def _name_before(text: str, end: int) -> str:
    """The name that ends at a place. From its end backwards, for forwards each beginning would be tried."""
    found = _NAME_REVERSED.match(text[max(0, end - _NAME_CHARACTERS_MAX) : end][::-1])
    return found[0][::-1] if found else ""


def _is_secret(name: str, before: str, names: Names) -> bool:
    """Whether the name is a secret's, alone or with the words before it (mot de passe)."""
    if names.is_secret(name):
        return True
    return name.lower() in _LAST_WORDS and normal(before[-_NAME_CHARACTERS_MAX:]).endswith(_SEVERAL_WORDS)


def _is_value(found: re.Match[str], name: str, before_name: str | None) -> bool:
    """Whether a bare value looks like a secret. before_name: what `name=` follows; None after a colon or spaces."""
    value, following = found["value"], found["next"]
    if following in ("(", "[") or (following in ("'", '"') and not value.strip("\\")):  # \" opens what is quoted
        return False
    is_word = _IDENTIFIER.fullmatch(value) is not None
    if before_name is not None:
        is_of_url_or_shell = before_name in ("?", "&") or name[-3:].isupper()
        return not is_word or (is_of_url_or_shell and "." not in value)
    return (
        not is_word
        and len(value) >= 6
        and any(each.isalpha() for each in value)
        and any(each.isdigit() for each in value)
    )
