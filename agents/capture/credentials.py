"""Remove credentials from the copy of an exchange before any of it is written; the forwarded bytes are not changed.

1. Headers: the record of an exchange keeps only harmless ones (exchange.py).
2. URLs: values with the name of a secret, and a user and password, are replaced (exchange.py).
3. Bodies: a JSON text with the name of a secret, at any depth and also in JSON inside a JSON text, becomes HIDDEN; so
   does a list of texts with such a name, and such a value of a form. All other bytes stay unchanged.
4. A secret in the request's headers or URL is replaced wherever it occurs in either body; so is the signature of a
   cloud's signed request, and the password of a basic authorization.

Each piece of a stream is searched separately: a secret that is split over pieces is not found.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlsplit

from refold.agents.capture.exchange import HIDDEN, NAMES
from refold.agents.redaction.names import Names

_HIDDEN = HIDDEN.encode()
# In a body, `key` and `signature` are not secrets: models sign their thinking, and it is sent back to them.
_NAMES = Names()
_SCHEMES = re.compile(r"^(?:Bearer|Basic|Token|ApiKey|Key)\s+", re.IGNORECASE)
_CHARACTERS_MIN = 8
# A name, and the quote or the bracket that begins its value. In JSON within a text each quote has as many backslashes
# before it. The pattern begins with a quote, because the search for a fixed byte is many times faster than for any
# other beginning; the backslashes before that quote are checked after the match.
_NAMED = re.compile(rb'"([^"\\\x00-\x1f]{1,80}+)(\\*+)"\s*+:\s*+(\2"|\[)')
_FIELD = re.compile(rb"(?:^|(?<=&))([^=&\s]{1,80})=([^&\s]+)")
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/"
# The head of a part with its name, and its content. The content ends before the next boundary.
_PART = re.compile(
    rb'(content-disposition:[^\r\n]*?[; ]name="([^"\r\n]{1,80})"[^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*\r?\n)'
    rb"(.*?)(?=\r?\n--|\Z)",
    re.IGNORECASE | re.DOTALL,
)
# In the Authorization of signed requests: AWS4-HMAC-SHA256 Credential=..., SignedHeaders=..., Signature=...
_SIGNED = re.compile(r"\b(?:Credential|Signature)=([^,\s/]+)")


def known_secrets(headers: Iterable[tuple[str, str]], url: str) -> tuple[bytes, ...]:
    """Return the secrets in a request's headers and URL, to be replaced wherever else they occur."""
    parts = urlsplit(url)
    headers = list(headers)
    found = [value for name, value in headers if _NAMES.is_secret(name)]
    # A browser can send a key for a WebSocket only as a subprotocol, such as openai-insecure-api-key.KEY.
    protocols = (value for name, value in headers if name.lower() == "sec-websocket-protocol")
    found += [each.partition(".")[2] for value in protocols for each in value.split(",") if "key." in each]
    found += [value for name, value in parse_qsl(parts.query) if NAMES.is_secret(name)]
    found += [each for each in (parts.password,) if each]
    found += [part for each in [*found] for part in (*_SIGNED.findall(each), _password_of(each))]
    texts = [_SCHEMES.sub("", each).strip() for each in found]
    forms = {form for each in texts if len(each) >= _CHARACTERS_MIN for form in (each, quote(each, safe=""))}
    return tuple(each.encode("utf-8", "surrogateescape") for each in sorted(forms, key=len, reverse=True))


def _password_of(authorization: str) -> str:
    """Return the password of a basic authorization; "" for any other."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def url_without_credentials(url: str, known: Iterable[bytes] = ()) -> str:
    """Return a URL in the form in which it may be written.

    Args:
        url: The URL.
        known: As for `without_credentials`: secrets that are replaced wherever they occur.
    """
    return without_credentials(url.encode("utf-8", "replace"), known).decode()


def without_credentials(data: bytes, known: Iterable[bytes] = (), content_type: str = "") -> bytes:
    """Return a body, or a piece of one, in the form in which it may be written.

    Args:
        data: The bytes.
        known: Secrets that are replaced wherever they occur.
        content_type: The type of the body.
    """
    if content_type.startswith(_FORM):
        return _replace_secrets(_FIELD.sub(_field, data), known)
    if content_type.startswith(_MULTIPART):
        data = _PART.sub(_part, data)
    return _replace_secrets(_hide_named_values(data), known)


def _replace_secrets(data: bytes, known: Iterable[bytes]) -> bytes:
    for secret in known:
        if secret in data:
            data = data.replace(secret, _HIDDEN)
    return data


def _field(found: re.Match[bytes]) -> bytes:
    name = found[1].decode("utf-8", "replace")
    return found[1] + b"=" + _HIDDEN if _NAMES.is_secret(name) else found[0]


def _part(found: re.Match[bytes]) -> bytes:
    name = found[2].decode("utf-8", "replace")
    return found[1] + _HIDDEN if _NAMES.is_secret(name) else found[0]


def _hide_named_values(data: bytes) -> bytes:
    pieces: list[bytes] = []
    written = at = 0
    begin = at  # of the search; the backslashes of a quote are not before `at`
    while (found := _NAMED.search(data, begin)) is not None:
        if found[2] and not data.endswith(found[2], at, found.start()):
            begin = found.start() + 1
            continue
        begin = at = found.end()
        if not _is_secret(found[1]) or _is_of_a_model(data, found):
            continue
        hidden = _HIDDEN
        if found[3] == b"[":
            end = _list_end(data, at)
            hidden = found[2] + b'"' + hidden + found[2] + b'"'
        else:
            end = _closed_at(data, at, len(found[2]))
        if end > at:
            pieces += (data[written:at], hidden)
            written = begin = at = end
    return b"".join((*pieces, data[written:])) if pieces else data


@functools.lru_cache(4096)
def _is_secret(name: bytes) -> bool:
    return _NAMES.is_secret(name.decode("utf-8", "replace"))


def _list_end(data: bytes, begin: int) -> int:
    """Return the end of a list that holds only texts, numbers and the like, one text at least; else its begin."""
    end = data.find(b"]", begin)
    items = data[begin : end if end >= 0 else len(data)]
    return begin + len(items) if b'"' in items and b"[" not in items and b"{" not in items else begin


def _closed_at(data: bytes, begin: int, backslashes: int) -> int:
    """Return the end of a text whose quotes have this many backslashes before them; the data's end if it is cut off."""
    at, period = begin, 2 * (backslashes + 1)
    while (quote_at := data.find(b'"', at)) >= 0:
        first = quote_at
        while first > begin and data[first - 1] == 0x5C:
            first -= 1
        if (quote_at - first) % period == backslashes:
            return quote_at - backslashes
        at = quote_at + 1
    return len(data)


def _is_of_a_model(data: bytes, found: re.Match[bytes]) -> bool:
    """Return whether a `token` is a piece of a model's text: a log probability follows it."""
    return found[1].lower() == b"token" and b"logprob" in data[found.end() : found.end() + 200]
