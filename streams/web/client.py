"""An HTTP client for the pages of refold's servers: sends the token and, over TLS, verifies against a given authority.

Only http and https are supported, whatever the URL's source, and no redirect is followed: the token is sent only to
the server that the URL names.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
)

from refold.avro.errors import InputError
from refold.avro.files import require_bounded
from refold.streams.web.guard import Token, token_in
from refold.streams.web.page import PageResponse

CA_ENVIRONMENT = "REFOLD_TLS_CA"
ANSWER_BYTES_MAX = 1 << 30


class PagesClient:
    """Sends requests with one set of credentials.

    Args:
        ca: A file of certificates in PEM, instead of the system's.
        answer_bytes_max: A larger answer is refused.
    """

    def __init__(
        self, token: Token | None = None, ca: str | None = None, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        """Raises InputError if the file cannot be used."""
        self._answer_bytes_max = answer_bytes_max
        self._token = token
        self._context = None if ca is None else _context(ca)
        # Assembled here, because urllib's default opener also opens files and follows redirects. Proxies named in the
        # environment are not used.
        self._opener = OpenerDirector()
        for each in (HTTPHandler(), HTTPErrorProcessor(), HTTPDefaultErrorHandler()):
            self._opener.add_handler(each)
        self._speaks_tls = False
        self._lock = threading.Lock()

    def ask(self, url: str, content: bytes | None, headers: Mapping[str, str], timeout_s: float) -> PageResponse:
        """Request a page.

        Args:
            url: the page's URL.
            content: the body of a POST request; None sends a GET request.
            headers: further headers.
            timeout_s: how long to wait for the answer, in seconds.

        Raises:
            OSError: nobody answers, or the URL is invalid.
        """
        if not url.startswith(("http://", "https://")):
            raise OSError("a page's URL starts with http:// or https://")
        if url.startswith("https://"):
            self._speak_tls()
        sent = dict(headers)
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token.reveal()}"
        try:
            with self._opener.open(Request(url, content, sent), timeout=timeout_s) as found:
                content = found.read(self._answer_bytes_max + 1)
                if len(content) > self._answer_bytes_max:
                    raise OSError(f"the answer has more than {self._answer_bytes_max} bytes")
                return PageResponse(found.status, content, found.headers.get_content_type())
        except HTTPError as error:
            with error:
                return PageResponse(error.code, error.read(1 << 20), error.headers.get_content_type())
        except HTTPException as error:
            raise OSError(f"the server there does not speak HTTP: {error!r}") from error
        except ValueError as error:  # no host, or an invalid port
            raise OSError(f"this is not a URL of a page: {error}") from error

    def _speak_tls(self) -> None:
        """Read the system's certificates at the first use of TLS."""
        with self._lock:
            if not self._speaks_tls:
                self._opener.add_handler(HTTPSHandler(context=self._context or _context(None)))
                self._speaks_tls = True


def _context(ca: str | None) -> ssl.SSLContext:
    try:
        if ca is not None:
            require_bounded(ca)
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{CA_ENVIRONMENT}={ca}: this is not a file of certificates in PEM "
            f"({getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error})"
        ) from error


def pages_client_of(environment: Mapping[str, str] = os.environ) -> PagesClient:
    """Return a client with the token and the authority of an environment.

    Raises:
        InputError: the token or the certificates cannot be used.
    """
    return PagesClient(token_in(environment), environment.get(CA_ENVIRONMENT) or None)
