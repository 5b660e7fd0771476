"""Secrets that only their surroundings give away: `password=...`, `Authorization: Bearer ...`, `postgres://user:pass@host`.

What is found is the value; what says so stays readable. A name counts if `Names` says it does. An unquoted value has
to look like one: code that passes `token=get_token()` or `password=os.environ["X"]` holds no secret, and prose that
says `Password: please` neither.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from refold.agents.redaction.names import Names
from refold.agents.redaction.shapes import Span
from refold.agents.redaction.tokens import TOKEN_PATTERN

# Schemes after which credentials stand. Basic is an everyday word, and counts under a name alone.
_SCHEME = re.compile(
    r"\s*(?:bearer|basic|token|apikey|api-key|digest|negotiate|aws4-hmac-sha256)\s+(?=\S)", re.IGNORECASE
)
_URL = re.compile(r"://[^\s/:@\[\]\"'<>]*:([^\s/@\[\]\"'<>]+)@")
_BEARER = re.compile(rf"\bbearer\s+((?:{TOKEN_PATTERN}|[\w.~+/=-]){{8,}})", re.IGNORECASE)
_NAME_END = (
    r"(?:pass|passw(?:or)?d|passphrase|passcode|pwd|hash|secrets?|tokens?|keys?|credentials?|authorization|cookies?|code"
    r"|cvv2?|cvc2?|pin|otp|ssn|number|auth|header)"
)
_QUOTED = re.compile(
    rf"{_NAME_END}(?:\\*[\"'])?\s*[=:]\s*(?P<quote>\\*[\"'])(?P<value>(?:(?!(?P=quote))(?:\\.|[^\n]))+)", re.IGNORECASE
)
_BARE = re.compile(
    rf"{_NAME_END}(?P<sign>=|\s*:\s*|\s+=\s+)(?P<value>(?:{TOKEN_PATTERN}|[^\s&\"'#;<>,()\[\]{{}}])+)(?P<next>.?)",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(?:authorization|cookie)\s*:[ \t]*(?P<value>[^\s\"'][^\r\n\"']*)", re.IGNORECASE)
_NAME_CHARACTERS_MAX = 64
_NAME_CHARACTERS = string.ascii_letters + string.digits + "_-."
_NAME_TAIL = re.compile(r"[\w.-]*\Z", re.ASCII)
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
    found = [*_headers(text, names), *_named(_QUOTED, text, names), *_named(_BARE, text, names)]
    end = 0
    for start, after in sorted(found, key=lambda span: (span[0], -span[1])):
        if start >= end:
            end = after
            yield start, after


def _headers(text: str, names: Names) -> Iterator[Span]:
    for match in _HEADER.finditer(text):
        value = match["value"]
        is_cookie = "=" in value.split(";")[0]
        if names.is_secret(_name_up_to(text, match.start(), match[0])) and (is_cookie or scheme_of(value)):
            yield match.span("value")


def _named(pattern: re.Pattern[str], text: str, names: Names) -> Iterator[Span]:
    for match in pattern.finditer(text):
        if names.is_secret(_name_up_to(text, match.start(), match[0])) and (pattern is _QUOTED or _is_value(match)):
            yield match.span("value")


def _name_up_to(text: str, start: int, matched: str) -> str:
    """The whole name whose end was matched."""
    before = _NAME_TAIL.search(text[max(0, start - _NAME_CHARACTERS_MAX) : start])
    end = re.match(r"[\w.-]*", matched)
    return (before[0] if before else "") + (end[0] if end else "")


def _is_value(match: re.Match[str]) -> bool:
    value, following = match["value"], match["next"]
    if following in ("(", "["):
        return False
    is_word = _IDENTIFIER.fullmatch(value) is not None
    if match["sign"] == "=":
        start = match.start()
        before = match.string[max(0, start - _NAME_CHARACTERS_MAX) : start].rstrip(_NAME_CHARACTERS)
        is_of_url_or_shell = before[-1:] in ("?", "&") or match[0].split("=")[0].isupper()
        return not is_word or (is_of_url_or_shell and "." not in value)
    return (
        not is_word
        and len(value) >= 6
        and any(each.isalpha() for each in value)
        and any(each.isdigit() for each in value)
    )
