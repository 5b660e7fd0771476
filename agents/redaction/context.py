"""Find secrets by the text around them: `password=...`, `Authorization: Bearer ...`, `postgres://user:pass@host`.

Only the value is replaced; the name stays readable. `Names` decides which names are secrets'. An unquoted value must
look like a secret: code such as `token=get_token()` or `password=os.environ["X"]` holds none, nor does prose such as
`Password: please`.

The end of a name is searched for first. The value after it is read only if the name is a secret's. So no value is read
twice, and a value inside another value's text is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from refold.agents.redaction.names import Names, normal
from refold.agents.redaction.patterns import Span
from refold.agents.redaction.tokens import TOKEN_PATTERN

# Schemes before credentials. Basic is an everyday word, and counts only after a secret's name.
_SCHEME = re.compile(
    r"\s*(?:bearer|basic|token|apikey|api-key|digest|negotiate|aws4-hmac-sha256)\s+(?=\S)", re.IGNORECASE
)
_URL = re.compile(r"://[^\s/:@\[\]\"'<>]*:([^\s/@\[\]\"'<>]+)@")
_BEARER = re.compile(rf"\bbearer\s+((?:{TOKEN_PATTERN}|[\w.~+/=-]){{8,}})", re.IGNORECASE)
_SIGN = re.compile(r"[=:\uff1a]")
# JSON in JSON in JSON puts 2^n - 1 backslashes before a quote. Each character of a value is compared with the quote, so
# their number is bounded.
_OPENING = re.compile(r"\s*(\\{0,63}[\"'])")
_BARE_VALUE = re.compile(rf"(?P<value>(?:{TOKEN_PATTERN}|[^\s&\"'#;<>,()\[\]{{}}])+)(?P<next>.?)")
_HEADER = re.compile(r"(?P<name>authorization|cookie)\s*:[ \t]*(?P<value>[^\s\"'][^\r\n\"']*)", re.IGNORECASE)
_NAME_CHARACTERS_MAX = 64
# A name with the quotes and white space between it and the sign.
_WINDOW = 2 * _NAME_CHARACTERS_MAX
_NAME_REVERSED = re.compile(r"[\w.\u0300-\u036f-]*")
# Names of several words, and the words that they end in.
_SEVERAL_WORDS = (
    "motdepasse", "motsdepasse", "codesecret", "phrasesecrète", "phrasesecrete", "clavedeacceso", "clavesecreta",
    "paroladordine", "parolasegreta", "codicesegreto", "chiavesegreta", "palavrapasse", "geheimewoord",
)  # fmt: skip
_LAST_WORDS = frozenset({
    "passe", "secret", "secrète", "secrete", "acceso", "secreta", "ordine", "segreta", "segreto", "woord",
})  # fmt: skip
# A name in code, a shell variable, or a placeholder.
_IDENTIFIER = re.compile(r"\$?[A-Za-z_][A-Za-z_.]*|%s")


def scheme_of(value: str) -> int:
    """Return the length of the scheme before credentials: 7 for `Bearer abc`, 0 if there is none."""
    match = _SCHEME.match(value)
    return match.end() if match else 0


def urls_in(text: str) -> Iterator[Span]:
    """Yield start and end of the passwords in URLs."""
    return (match.span(1) for match in _URL.finditer(text))


def bearers_in(text: str) -> Iterator[Span]:
    """Yield start and end of what follows the word bearer, unless it is a word of prose."""
    for match in _BEARER.finditer(text):
        if any(each.isdigit() for each in match[1]) or len(match[1]) >= 20:
            yield match.span(1)


def assigned_in(text: str, names: Names) -> Iterator[Span]:
    """Yield start and end of the values whose name, before them, is a secret's; in order and without overlaps."""
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
    """Yield the values after = and :, quoted or bare. No value is read twice."""
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
    """Return a pattern for the text before the next such quote, or before the end of the line."""
    return re.compile(rf"(?:(?!{re.escape(quote)})(?:\\.|[^\n]))+")


def _name_before(text: str, end: int) -> str:
    """Return the name that ends at `end`. It is matched backwards; forwards, every start would have to be tried."""
    found = _NAME_REVERSED.match(text[max(0, end - _NAME_CHARACTERS_MAX) : end][::-1])
    return found[0][::-1] if found else ""


def _is_secret(name: str, before: str, names: Names) -> bool:
    """Return whether the name is a secret's, alone or with the words before it (mot de passe)."""
    if names.is_secret(name):
        return True
    return name.lower() in _LAST_WORDS and normal(before[-_NAME_CHARACTERS_MAX:]).endswith(_SEVERAL_WORDS)


def _is_value(found: re.Match[str], name: str, before_name: str | None) -> bool:
    """Return whether a bare value looks like a secret.

    before_name: the character before the name in `name=value`; None after a colon or spaces.
    """
    value, following = found["value"], found["next"]
    if following in ("(", "[") or (following in ("'", '"') and not value.strip("\\")):  # \" opens a quoted value
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
