"""The explorer's site: pages for people, and the same answers as JSON.

    GET  /                   runs                        GET /run/ID         a run, step by step
    GET  /entity/TYPE/ID     an entity at a moment       GET /entities       all types and entities
    GET  /compare?a=&b=      two runs                    GET /diff?a=&b=     two moments
    GET  /story/ID           a run in plain sentences    GET /operate        the condition of the log
    GET  /healings           attempts to heal runs       GET /api/...        the same as JSON (api.py)
    GET  /static/NAME        styles and scripts
    GET  /live               the newest cut, as an event whenever it changes
    GET  /changes            the newest changes           GET /agents         supervised agents
    POST /do/NAME            an action, with --write (actions.py)
    POST /sign-in            the token, off loopback

1. refold's web server checks Host, Origin and size limits (streams/web/server.py), as for every page of refold.
2. A page shows one cut. If its address names no cut, or names a point in another way, the point is resolved and the
   browser is redirected to the address with the cut. So every address that a reader sees gives the same page again.
3. Pages only read: the log is opened read-only, and pages answer only GET. Only actions write, and there are none
   without --write.
4. The content security policy allows only scripts and styles from this server, and none inside a page.

A browser sends no Authorization header, so a reader signs in: they send the token once and get a cookie.

The cookie holds a random secret of this process, not the token. Scripts cannot read it, requests caused by other sites
do not carry it, and it is worthless once the process has ended.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pkgutil import resolve_name
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from refold.agents.log import AgentLog
from refold.agents.recordings.find import run_keys
from refold.avro.errors import InputError, NotAnswerable, RefoldError, UnknownEntity
from refold.explorer.queries.log_target import Handles, LogTarget
from refold.explorer.web.limits import DEFAULT_LIMITS, PageLimits
from refold.explorer.web.rendering import Renderer, assets
from refold.explorer.web.view import PageMoved, PageView
from refold.streams.web.guard import Token
from refold.streams.web.page import PageResponse, Request, Route, json_answer, problem

COOKIE = "refold_session"
CONTENT_BYTES_MAX = 2_048


class SignIns:
    """Checks who has signed in.

    Args:
        token: The token to sign in with; None: nobody has to.
        is_secure: Whether the pages are served over TLS.
    """

    def __init__(self, token: Token | None, *, is_secure: bool) -> None:
        self._token = token
        self._secret = secrets.token_urlsafe(32)
        self._flags = "; Secure" if is_secure else ""

    def is_known(self, request: Request) -> bool:
        """Return whether the request has the token, or the cookie that it was exchanged for."""
        if self._token is None or request.is_known:
            return True
        try:
            cookie = SimpleCookie(request.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._secret.encode())

    def sign_in(self, content: bytes) -> str | None:
        """Return the Set-Cookie header for a posted form. None if the form has another token."""
        if self._token is None or len(content) > CONTENT_BYTES_MAX:
            return None
        given = parse_qs(content.decode(errors="replace")).get("token", [""])[0]
        if not self._token.is_sent_in(f"Bearer {given}"):
            return None
        return f"{COOKIE}={self._secret}; Path=/; HttpOnly; SameSite=Strict{self._flags}"


HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
# With "no-referrer", browsers send `Origin: null` with a form of this server, as they do with forms of other sites.
SECURITY = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin"}  # fmt: skip
STATIC, PAGES, SLOW, LIVE, WRITE = "static", "pages", "slow", "live", "write"
SIGN_IN, ACTION = "sign-in", "do"
NEWEST_S = 0.5
SLOW_ENDPOINTS = frozenset({"deadletters", "doctor", "find", "rebuild", "retain", "tail", "verify"})
"""The endpoints of the API that read a whole log."""
TITLES = {
    400: "This address asks for nothing", 401: "Not with this token", 403: "Not from there", 404: "Not found",
    405: "Not in this way", 500: "This page failed", 503: "Not at this moment",
}  # fmt: skip
UNREADABLE = "The log cannot be read now"


class SitePage(NamedTuple):
    """How a page is made.

    Attributes:
        place: MODULE:FUNCTION in this package. It is imported on the first request for the page, so that the first page
            does not wait for the imports of the others.
        parts: The number of parts of the path after the name; -1: one or more.
        lane: The group of threads that answers.
    """

    place: str
    parts: int = 0
    lane: str = PAGES

    @property
    def make(self) -> Callable[[PageView], bytes]:
        """The function that makes the page."""
        found: Callable[[PageView], bytes] = resolve_name(f"{__package__}.{self.place}")
        return found


SITE: Mapping[str, SitePage] = {
    "": SitePage("runs_page:runs_page"),
    "run": SitePage("run_page:run_page", 1),
    "story": SitePage("story_page:story_page", 1),
    "entities": SitePage("entity_page:entities_page"),
    "entity": SitePage("entity_page:entity_page", -1),
    "changes": SitePage("changes_page:changes_page"),
    "compare": SitePage("compare_page:compare_page"),
    "diff": SitePage("compare_page:diff_page"),
    "healings": SitePage("healings_page:healings_page"),
    "agents": SitePage("agents_page:agents_page"),
    "operate": SitePage("operate_page:operate_page", lane=SLOW),
}


class NewestCut:
    """The newest cut of a log, read at most once in NEWEST_S seconds. For use by one thread."""

    def __init__(self) -> None:
        self._cut = ""
        self._due_s = 0.0

    def cut(self, log: AgentLog) -> str:
        """Return the cut as text."""
        if time.monotonic() >= self._due_s:
            self._cut = str(log.point(None).cut)
            self._due_s = time.monotonic() + NEWEST_S
        return self._cut


@dataclass(frozen=True, slots=True)
class Explorer:
    """The site of one log.

    Attributes:
        can_write: Whether it has actions.
        limits: The limits of its pages.
    """

    place: LogTarget
    handles: Handles
    renderer: Renderer
    sessions: SignIns
    newest: NewestCut
    can_write: bool = False
    limits: PageLimits = DEFAULT_LIMITS

    @property
    def lanes(self) -> Mapping[str, int]:
        """The number of threads in each group. Requests that read a whole log block no pages. Each thread has its own
        open log.
        """
        return {STATIC: 1, PAGES: 3, SLOW: 1, LIVE: 1, WRITE: 1}

    def warm(self) -> None:
        """Make the index of runs now, so that the first page of runs does not wait for all of it."""
        with suppress(RefoldError, OSError):  # the pages say why
            log = self.handles.log()
            run_keys(log, log.point().cut)

    def route(self, request: Request) -> Route | PageResponse:
        """Return which threads answer a request. Every route is open to the web server, because the site itself checks
        the session cookie.
        """
        name, parts = _path(request.path)
        if name == SIGN_IN:
            return Route(STATIC, is_open=True)
        if name == ACTION and self.can_write and request.method == "POST":
            return Route(WRITE, is_open=True)
        if request.method != "GET" or name == ACTION:
            return problem(405, f"{request.path[:100]}: {self._refusal_reason(name)}")
        if name == "api":
            return Route(SLOW if parts and parts[0] in SLOW_ENDPOINTS else PAGES, is_open=True)
        if name == LIVE:
            return Route(LIVE, is_open=True, is_followed=True)
        page = SITE.get(name)
        return Route(STATIC if page is None else page.lane, is_open=True)

    def answer(self, request: Request) -> PageResponse:
        """Return the response to a request."""
        name, parts = _path(request.path)
        if name == "static" and len(parts) == 1 and parts[0] in assets():
            content, media_type = assets()[parts[0]]
            return PageResponse(200, content, media_type, SECURITY)
        if name == SIGN_IN:
            return self._sign_in(request)
        if not self.sessions.is_known(request):
            if name in ("api", LIVE):
                return problem(401, "this page needs a token: send Authorization: Bearer TOKEN")
            return self._html(401, self.renderer.page("sign_in.html", {"is_wrong": False}))
        if name == "api":
            return self._api(parts, request)
        if name == LIVE:
            return self._live()
        if name == ACTION:
            return self._act(parts, request)
        try:
            page = SITE.get(name)
            if page is None or not (page.parts == len(parts) or (page.parts < 0 and parts)):
                raise UnknownEntity(f"{request.path[:200]}: there is no such page")
            log = self.handles.log()
            view = PageView(log, self.place, self.renderer, name, parts, request.query, self.limits)
            return self._html(200, page.make(view))
        except PageMoved as moved:
            return PageResponse(303, b"", HTML, {**SECURITY, "Location": moved.location})
        except (UnknownEntity, NotAnswerable) as error:
            return self._error(404, error)
        except InputError as error:
            return self._error(400, error)
        except (RefoldError, OSError) as error:
            return self._error(503, error)

    def problem_page(self, target: str, headers: Mapping[str, str], answer: PageResponse) -> PageResponse:
        """Return an error of the web server as a page for a browser, and as it is for a program; see ProblemPage.

        The reader may be another web site that the guard refused, so the page says nothing of the log.
        """
        name, _ = _path(target.partition("?")[0])
        if name in ("api", LIVE, "static") or "text/html" not in headers.get("Accept", ""):
            return answer
        title = TITLES.get(answer.status, "The request is refused")
        return self._problem(answer.status, title, json.loads(answer.content)["error"], "")

    def _api(self, parts: tuple[str, ...], request: Request) -> PageResponse:
        from refold.explorer.web import api

        if parts == (api.OPENAPI,):
            return PageResponse(200, api.json_bytes(api.openapi()), headers=SECURITY)
        try:
            query = api.query_of(self.place, parts[0] if parts else "", "/".join(parts[1:]), request.query)
            return PageResponse(200, api.json_bytes(query.answer(self.handles.log())), headers=SECURITY)
        except (UnknownEntity, NotAnswerable) as error:
            return problem(404, error)
        except InputError as error:
            return problem(400, error)
        except (RefoldError, OSError) as error:
            return problem(503, error)

    def _refusal_reason(self, name: str) -> str:
        """Return why a request is refused whose method does not fit the page."""
        if name != ACTION:
            return "ask for it with GET: pages only read"
        return "post a form to it" if self.can_write else "this explorer only reads; start it with --write"

    def _act(self, parts: tuple[str, ...], request: Request) -> PageResponse:
        from refold.explorer.web.actions import act

        try:
            location = act(self.place, "/".join(parts), request.content)
            return PageResponse(303, b"", HTML, {**SECURITY, "Location": location})
        except UnknownEntity as error:
            return self._error(404, error)
        except (InputError, NotAnswerable) as error:
            return self._error(400, error)
        except (RefoldError, OSError) as error:
            return self._error(503, error)

    def _live(self) -> PageResponse:
        """Return the newest cut. All live readers share one read of the log in NEWEST_S seconds."""
        try:
            return json_answer(200, {"cut": self.newest.cut(self.handles.log())})
        except (RefoldError, OSError) as error:
            return problem(503, error)

    def _sign_in(self, request: Request) -> PageResponse:
        if request.method == "POST":
            cookie = self.sessions.sign_in(request.content)
            if cookie is None:
                return self._html(401, self.renderer.page("sign_in.html", {"is_wrong": True}))
            return PageResponse(303, b"", HTML, {**SECURITY, "Location": "/", "Set-Cookie": cookie})
        return self._html(200, self.renderer.page("sign_in.html", {"is_wrong": False}))

    def _error(self, status: int, error: Exception) -> PageResponse:
        why = str(error)
        if isinstance(error, FileNotFoundError):  # files of the log, not of the pages
            why = f"A file of the log is missing: {error.filename}. If the log was moved or deleted, put it back."
        return self._problem(status, UNREADABLE if status == 503 else TITLES[status], why, self.place.url or "")

    def _problem(self, status: int, title: str, why: str, log_url: str) -> PageResponse:
        given = {"title": title, "why": why, "status": status, "at": None, "commands": [], "page": None,
                 "log_url": log_url, "here": None, "is_live": False}  # fmt: skip
        return self._html(status, self.renderer.page("error.html", given))

    def _html(self, status: int, content: bytes) -> PageResponse:
        return PageResponse(status, content, HTML, SECURITY)


def explorer(
    target: LogTarget, token: Token | None, *, is_secure: bool, can_write: bool = False,
    limits: PageLimits = DEFAULT_LIMITS,
) -> Explorer:  # fmt: skip
    """Return the site of a log.

    Args:
        target: The log.
        token: The token that callers need; None: none.
        is_secure: Whether the site is served over TLS.
        can_write: Whether it has actions.
        limits: How much its pages read and show at first.
    """
    return Explorer(
        target, Handles(target), Renderer(target.url, can_write=can_write), SignIns(token, is_secure=is_secure),
        NewestCut(), can_write, limits,
    )  # fmt: skip


def import_pages() -> None:
    """Import all pages and the API now, so that the first request for each does not wait for its imports."""
    for each in SITE.values():
        each.make  # noqa: B018
    resolve_name(f"{__package__}.api")


def _path(path: str) -> tuple[str, tuple[str, ...]]:
    """Return the first part of a path, and the other parts."""
    name, *parts = (unquote(each, errors="replace") for each in path.removeprefix("/").split("/"))
    return name, tuple(each for each in parts if each)
