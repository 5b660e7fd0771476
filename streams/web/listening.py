"""A web server's bound address, and who may send requests to it.

A browser that connects before the server is ready waits in the socket's queue. So a program can bind, print its
address, and only then import the modules that answer: this module needs none of them. Without a token only loopback
addresses are bound.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from refold.avro.errors import InputError
from refold.avro.files import require_bounded
from refold.streams.web.guard import TOKEN_ENVIRONMENT, Token, is_loopback

BACKLOG = 512


class Access(NamedTuple):
    """How a server is reached, and by whom.

    Attributes:
        allowed_hosts: The accepted host names, in addition to its own addresses.
        advertised: The URL given to others, if it is not built from host and port.
        certificate, key: The files in PEM; with them the server uses TLS.
    """

    token: Token | None = None
    allowed_hosts: Sequence[str] = ()
    advertised: str | None = None
    certificate: str | None = None
    key: str | None = None


class Listener:
    """A bound address.

    Attributes:
        scheme: The scheme of its URL.
        names: The accepted host names.
        tls: None for a server without TLS.
    """

    def __init__(self, host: str, port: int, access: Access | None = None, what: str = "the worker's pages") -> None:
        """Bind immediately.

        Args:
            host: The address to listen on.
            port: The port; 0 selects a free one.
            access: Token and certificate; None for a loopback address without either.
            what: What is served, for errors.

        Raises:
            InputError: The port is taken, the address is not on this machine, a certificate cannot be read, or the
                address is not loopback and there is no token.
        """
        access = access or Access()
        self.token = access.token
        self.tls = tls_of(access.certificate, access.key)
        self.scheme = "http" if self.tls is None else "https"
        resolved_url = advertised(access.advertised)
        self.socket = bind(host, port, what, needs_loopback=access.token is None)
        shown = f"[{host}]" if ":" in host else host
        self.url = resolved_url or f"{self.scheme}://{shown}:{self.socket.getsockname()[1]}"
        self.names = (host, urlsplit(self.url).hostname or host, *access.allowed_hosts)

    def close(self) -> None:
        """Stop accepting connections. Idempotent."""
        self.socket.close()


def bind(host: str, port: int, what: str, *, needs_loopback: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        host: The address to listen on.
        port: The port; 0 selects a free one.
        what: What is served, for errors.
        needs_loopback: Refuse any other address.

    Raises:
        InputError: The address cannot be bound, or is not loopback although `needs_loopback` is set.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        if needs_loopback and not is_loopback(str(address[0])):
            raise InputError(
                f"{host} can be reached from other machines, so {what} there must have a token: set "
                f"{TOKEN_ENVIRONMENT} to the same secret for every server and every client, or bind to 127.0.0.1"
            )
        listening = socket.socket(family, kind, protocol)
        try:
            # A second server on one port still fails: this only ignores the leftovers of a server that has ended.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
    except InputError:
        raise
    except (OSError, OverflowError, ValueError) as error:
        raise InputError(
            f"{host}:{port} cannot be used for {what}: {getattr(error, 'strerror', None) or error}; "
            "give another with --port, or --port 0 for a free one"
        ) from error
    return listening


def tls_of(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return a TLS context from two files in PEM; None without them.

    Raises:
        InputError: only one file is given, or one cannot be used.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("TLS needs both files: give --tls-cert and --tls-key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        require_bounded(certificate)
        require_bounded(key)
        # Without the callback, OpenSSL asks on the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise InputError(
            f"--tls-cert {certificate}, --tls-key {key}: these are not a certificate in PEM and its key without a "
            f"password ({getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error})"
        ) from error
    return context


def advertised(url: str | None) -> str | None:
    """Check an advertised URL: http or https, a host, and no path.

    Raises:
        InputError: It is no such URL.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not parts.path.strip("/") and not parts.query and not parts.fragment and "@" not in url
    except ValueError:
        usable = False
    if not usable or not url.isprintable():
        raise InputError(f"--advertise {url}: give it as https://HOST:PORT, without a user or a path")
    return url.rstrip("/")
