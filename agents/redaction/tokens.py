"""What stands for a secret: `[kind:0123456789abcdef0123]`, twenty hex digits of an HMAC of it under the log's key.

Equal secrets have equal tokens, so what is asked for again in a replay is found again; under another key all tokens are
others, and without the key nobody can try out which address or card a token stands for. A token is never redacted
again. Twenty digits, for no card has as many, so none can pass for a token.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Mapping

from refold.agents.keys.ring import KeyRing
from refold.avro.errors import InputError

KEY_BYTES_MIN = 16
KEY_ID = "redaction"
ENVIRONMENT = "REFOLD_REDACTION_KEY"
KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
TOKEN_PATTERN = r"\[[a-z][a-z0-9-]{0,31}:[0-9a-f]{20}\]"
_TOKEN = re.compile(rf"({TOKEN_PATTERN})")
_DOMAIN = b"refold-redaction/1\0"


def token(key: bytes, kind: str, secret: str) -> str:
    """The token of a secret. The kind is for readers: it takes no part in the digits."""
    digest = hmac.digest(key, _DOMAIN + secret.encode("utf-8", "surrogatepass"), "sha256")
    return f"[{kind}:{digest[:10].hex()}]"


def between_tokens(text: str, change: Callable[[str], str]) -> str:
    """The text with what stands before, between and after its tokens changed."""
    if "[" not in text:
        return change(text)
    pieces = _TOKEN.split(text)
    if len(pieces) == 1:
        return change(text)
    pieces[::2] = [each and change(each) for each in pieces[::2]]
    return "".join(pieces)


def token_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each token in the text."""
    return [match.span() for match in _TOKEN.finditer(text)] if "[" in text else []


def fresh_key() -> bytes:
    """A key that ends with its process: its tokens are equal within the process, and match nothing afterwards."""
    return secrets.token_bytes(32)


def kept_key(ring: KeyRing | None, environment: Mapping[str, str]) -> bytes:
    """The key of a log's tokens, the same for every process that has the log, so that a replay elsewhere matches.

    REFOLD_REDACTION_KEY's where it is set (hex, 16 bytes or more), else the ring's under the id `redaction`, made with
    the first use. InputError where there is neither, or the variable holds no key.
    """
    text = environment.get(ENVIRONMENT)
    if not text and ring is not None:
        return ring.create(KEY_ID)
    if not text:
        raise InputError(
            f"this log has no key ring for its redaction key: set {ENVIRONMENT} (openssl rand -hex 32), "
            "the same for every process that records or replays here"
        )
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    return checked(key, f"{ENVIRONMENT} has to be {KEY_BYTES_MIN * 2} hex digits or more: openssl rand -hex 32")


def checked(key: bytes, otherwise: str = f"a redactor's key has to be {KEY_BYTES_MIN} bytes or more") -> bytes:
    """The key; InputError where it is too short to be one."""
    if len(key) < KEY_BYTES_MIN:
        raise InputError(otherwise)
    return key
