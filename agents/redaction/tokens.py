"""Tokens that replace secrets: `[kind:0123456789abcdef0123]`, twenty hex digits of an HMAC with the log's key.

Equal secrets have equal tokens, so a replay finds the recorded answer to an equal request. Under another key all tokens
differ. Without the key, nobody can test which address or card a token replaces. A token is never redacted again. It has
twenty digits because no card number has as many, so no card number can be mistaken for a token.
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
    """Return the token of a secret. The kind is for readers; the digits do not depend on it."""
    digest = hmac.digest(key, _DOMAIN + secret.encode("utf-8", "surrogatepass"), "sha256")
    return f"[{kind}:{digest[:10].hex()}]"


def between_tokens(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the text before, between and after the tokens; the tokens stay."""
    if "[" not in text:
        return change(text)
    pieces = _TOKEN.split(text)
    if len(pieces) == 1:
        return change(text)
    pieces[::2] = [each and change(each) for each in pieces[::2]]
    return "".join(pieces)


def token_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each token in the text."""
    return [match.span() for match in _TOKEN.finditer(text)] if "[" in text else []


def fresh_key() -> bytes:
    """Return a random key for this process only: its tokens match nothing in other processes."""
    return secrets.token_bytes(32)


def kept_key(ring: KeyRing | None, environment: Mapping[str, str]) -> bytes:
    """Return the key of a log's tokens. It is the same in all processes that use the log, so that a replay matches.

    Args:
        ring: The log's key ring. Its key with the id `redaction` is used, and created at the first use.
        environment: If REFOLD_REDACTION_KEY is set in it (hex, at least 16 bytes), that key is used instead.

    Raises:
        InputError: There is neither, or the variable holds no valid key.
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
    """Return the key unchanged if it is long enough.

    Raises:
        InputError: The key is too short; its message is `otherwise`.
    """
    if len(key) < KEY_BYTES_MIN:
        raise InputError(otherwise)
    return key
