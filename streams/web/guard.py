"""Who may ask: the rules that every request passes before its content is read.

1. Target: a path that begins with `/`, visible ASCII. Absolute forms (`GET http://other/...`) are refused.
2. Host: exactly one, and its name is `localhost`, an address on loopback, the address that the connection came in at,
   the address or name that the server was bound to, the one in the URL it gives to others, or one of `--allow-host`.
   A web site that resolves its own name to this machine (DNS rebinding) sends its own name, which is none of these.
3. Origin: none, or the same scheme, name and port as the request's own. Browsers send it with what a page of another
   site makes them do. No header lets another site read an answer (no CORS).
4. Token, where the server has one: `Authorization: Bearer TOKEN`. A wrong one is refused on every page; without one,
   only pages that are open answer, with less.

The token that callers of refold's pages send: `Authorization: Bearer TOKEN`.

It comes from the environment only, so no list of processes shows it, and it has no text form but `reveal()`.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from refold.avro.errors import InputError
from refold.streams.web.page import PageResponse, problem

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


_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
_TARGET = re.compile(r"/[!-~]*")


class Head(NamedTuple):
    """What the guard sees of a request. Headers as lists: one that is sent twice is refused."""

    target: str
    hosts: Sequence[str]
    origins: Sequence[str]
    authorizations: Sequence[str]
    local_address: str


class RequestGuard:
    """The rules of one server. names: the hosts it answers for, besides loopback."""

    def __init__(self, scheme: str, names: Iterable[str], token: Token | None) -> None:
        self._scheme = scheme
        self._names = frozenset(map(bare_host, names))
        self._token = token

    def refusal(self, head: Head) -> PageResponse | None:
        """Why a request is refused; None where it is not."""
        if not _TARGET.fullmatch(head.target):
            return problem(400, "ask for a path on this server, such as /health, in visible ASCII characters")
        found = _HOST.fullmatch(head.hosts[0]) if len(head.hosts) == 1 else None
        if found is None:
            return problem(400, "send one header Host: the name or address of this server, and its port")
        if not self._is_ours(bare_host(found[1]), head.local_address):
            return problem(
                403, f"this server is not known as {found[1]}; if it should be, start it with --allow-host {found[1]}"
            )
        if head.origins and [each.lower() for each in head.origins] != [f"{self._scheme}://{head.hosts[0]}".lower()]:
            return problem(403, "these pages are not for web sites: the header Origin names another server")
        if len(head.authorizations) > 1 or (head.authorizations and self._token and not self.is_known(head)):
            return problem(401, f"the token is not this server's; send the one that {TOKEN_ENVIRONMENT} gave it")
        return None

    def is_known(self, head: Head) -> bool:
        """Whether the caller sent the token, or there is none."""
        if self._token is None:
            return True
        return len(head.authorizations) == 1 and self._token.is_sent_in(head.authorizations[0])

    def _is_ours(self, name: str, local_address: str) -> bool:
        return name in self._names or name in ("localhost", bare_host(local_address)) or is_loopback(name)


def unknown_caller() -> PageResponse:
    """The answer to a caller without the token."""
    return problem(
        401, f"this page needs a token: set {TOKEN_ENVIRONMENT} as it is set for the server, or send "
             "Authorization: Bearer TOKEN"
    )  # fmt: skip


def bare_host(name: str) -> str:
    """A host as it is compared: lower case, without brackets, zone and final dot."""
    return name.lower().strip("[]").partition("%")[0].removesuffix(".").removeprefix("::ffff:")


def is_loopback(address: str) -> bool:
    """Whether a text is an address on loopback."""
    try:
        return ipaddress.ip_address(bare_host(address)).is_loopback
    except ValueError:
        return False
