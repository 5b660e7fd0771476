"""Access control: the rules that every request must pass before its content is read.

1. Target: a path that begins with `/`, visible ASCII. Absolute forms (`GET http://other/...`) are refused.
2. Host: exactly one header, and its name is `localhost`, a loopback address, the local address of the connection, the
   address or name to which the server is bound, the host in its advertised URL, or one of `--allow-host`. A web site
   that resolves its own name to this machine (DNS rebinding) sends its own name, which is none of these.
3. Origin: absent, or the same scheme, name and port as the request's own. Browsers send it with requests that a page of
   another site starts. No header lets another site read an answer (no CORS).
4. Token, if the server has one: `Authorization: Bearer TOKEN`. A wrong token is refused on every page. Without a token,
   only open pages answer, with less detail.

The token that clients of refold's pages send: `Authorization: Bearer TOKEN`.

It comes from the environment only, so no list of processes shows it, and only `reveal()` returns its text.
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
        """Raises InputError if the token is too short, or has characters that a header cannot contain."""
        if not _USABLE.fullmatch(text):
            raise InputError(
                f"{TOKEN_ENVIRONMENT} must have 16 to 512 visible ASCII characters without spaces; "
                "make one with: openssl rand -hex 32"
            )
        self._text = text

    def reveal(self) -> str:
        """Return the token's text, to be sent."""
        return self._text

    def is_sent_in(self, authorization: str) -> bool:
        """Return whether an `Authorization` header has the token; constant time for all wrong tokens of its length."""
        scheme, _, sent = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            sent.strip().encode(errors="surrogateescape"), self._text.encode()
        )

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a token is not pickled: another process reads it from its environment")


def token_in(environment: Mapping[str, str]) -> Token | None:
    """Return the token of an environment, or None.

    Raises:
        InputError: the token cannot be used.
    """
    text = environment.get(TOKEN_ENVIRONMENT, "").strip()
    return Token(text) if text else None


_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
_TARGET = re.compile(r"/[!-~]*")


class Head(NamedTuple):
    """The parts of a request that the guard checks. Headers are lists, because a repeated header is refused."""

    target: str
    hosts: Sequence[str]
    origins: Sequence[str]
    authorizations: Sequence[str]
    local_address: str


class RequestGuard:
    """The rules of one server.

    Args:
        names: The host names it accepts, in addition to loopback.
    """

    def __init__(self, scheme: str, names: Iterable[str], token: Token | None) -> None:
        self._scheme = scheme
        self._names = frozenset(map(bare_host, names))
        self._token = token

    def refusal(self, head: Head) -> PageResponse | None:
        """Return the response that refuses a request, or None."""
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
        """Return whether the client sent the token, or the server has none."""
        if self._token is None:
            return True
        return len(head.authorizations) == 1 and self._token.is_sent_in(head.authorizations[0])

    def _is_ours(self, name: str, local_address: str) -> bool:
        return name in self._names or name in ("localhost", bare_host(local_address)) or is_loopback(name)


def unknown_caller() -> PageResponse:
    """Return the answer to a client without the token."""
    return problem(
        401, f"this page needs a token: set {TOKEN_ENVIRONMENT} as it is set for the server, or send "
             "Authorization: Bearer TOKEN"
    )  # fmt: skip


def bare_host(name: str) -> str:
    """Normalise a host for comparison: lower case, without brackets, zone and final dot."""
    return name.lower().strip("[]").partition("%")[0].removesuffix(".").removeprefix("::ffff:")


def is_loopback(address: str) -> bool:
    """Return whether a text is a loopback address."""
    try:
        return ipaddress.ip_address(bare_host(address)).is_loopback
    except ValueError:
        return False


def require_loopback(host: str, option: str) -> None:
    """Refuse an address that other machines reach, for a server without authentication.

    Args:
        host: The address, or localhost.
        option: The option that named it, for the error.

    Raises:
        InputError: It is not on loopback.
    """
    if host != "localhost" and not is_loopback(host):
        raise InputError(f"{option} {host}: only addresses on loopback, such as 127.0.0.1; there is no authentication")
