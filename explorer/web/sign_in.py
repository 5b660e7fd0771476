"""Signing in with a browser, which sends no header Authorization: the token once, then a cookie.

The cookie holds a random secret of this process and not the token. It is for scripts unreadable, is not sent with
requests that other sites cause, and means nothing once the process has ended.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from refold.streams.web.guard import Token
from refold.streams.web.page import Request

COOKIE = "refold_session"
CONTENT_BYTES_MAX = 2_048


class SignIns:
    """Who has signed in. token: None where nobody has to. is_secure: the pages are served over TLS."""

    def __init__(self, token: Token | None, *, is_secure: bool) -> None:
        self._token = token
        self._secret = secrets.token_urlsafe(32)
        self._flags = "; Secure" if is_secure else ""

    def is_known(self, request: Request) -> bool:
        """Whether the caller sent the token, or the cookie that it was exchanged for."""
        if self._token is None or request.is_known:
            return True
        try:
            cookie = SimpleCookie(request.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._secret.encode())

    def sign_in(self, content: bytes) -> str | None:
        """The header Set-Cookie for a posted form with the token; None where it is another."""
        if self._token is None or len(content) > CONTENT_BYTES_MAX:
            return None
        given = parse_qs(content.decode(errors="replace")).get("token", [""])[0]
        if not self._token.is_sent_in(f"Bearer {given}"):
            return None
        return f"{COOKIE}={self._secret}; Path=/; HttpOnly; SameSite=Strict{self._flags}"
