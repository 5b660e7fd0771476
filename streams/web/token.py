"""The token that callers of refold's pages send: `Authorization: Bearer TOKEN`.

It comes from the environment only, so no list of processes shows it, and it has no text form but `reveal()`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

from refold.avro.errors import InputError

TOKEN_ENVIRONMENT = "REFOLD_TOKEN"
_USABLE = re.compile(r"[!-~]{16,512}")


class Token:
    """A shared secret."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """InputError where it is too short or has characters that a header cannot hold."""
        if not _USABLE.fullmatch(text):
            raise InputError(
                f"{TOKEN_ENVIRONMENT} must have 16 to 512 visible ASCII characters without spaces; "
                "make one with: openssl rand -hex 32"
            )
        self._text = text

    def reveal(self) -> str:
        """The token itself, to be sent."""
        return self._text

    def is_sent_in(self, authorization: str) -> bool:
        """Whether a header `Authorization` holds the token; takes equally long for every wrong one of its length."""
        scheme, _, sent = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            sent.strip().encode(errors="surrogateescape"), self._text.encode()
        )

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a token is not pickled: another process reads it from its environment")


def token_in(environment: Mapping[str, str]) -> Token | None:
    """The token of an environment; None where it has none. InputError where it cannot be used."""
    text = environment.get(TOKEN_ENVIRONMENT, "").strip()
    return Token(text) if text else None
