"""A log to explore, and the explorer's pages over it on a real socket."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

import refold
from refold.explorer.demo.desk import RUN, agent, fail
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.web.limits import DEFAULT_LIMITS, PageLimits
from refold.explorer.web.site import explorer
from refold.streams.web.guard import Token
from refold.streams.web.listening import Access
from refold.streams.web.server import WebServer
from refold_tests.waiting import await_true

CONFIG = "tool_config/acme"
FORK = f"{RUN}-what-if"
READER = "reader-1"
_COMMAND = re.compile(r"<code data-command>(.*?)</code>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def incident_in(folder: Path) -> str:
    """Write an incident into a log in a folder, without a user's settings, and return its URL; see write_incident."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("REFOLD_")]:
            patch.delenv(name)
        url = f"file:{folder / 'log'}"
        write_incident(url)
    return url


def write_incident(url: str) -> None:
    """Record the demo's failing run, a fork of it that pays, a limit that is overwritten, and an agent that read the
    limit.

    The agent reads the limit before the overwrite and continues after it. Another run takes place within its second
    step.
    """
    with refold.open(url) as log:
        log.observe(CONFIG, {"rate_limit": 50, "timeout_ms": 2000}, source="deployer")
        log.mark("deploy-1")
        log.flush()

        def helper(run: refold.Run) -> str:
            with run.step("look"):
                return "seen"

        def reader(run: refold.Run) -> int:
            with run.step("read"):
                limit = run.read(CONFIG).fields["rate_limit"]
                run.state["limit"] = limit
            # The step becomes durable some time after its end. Only then may the overwrite follow.
            await_true(lambda: _is_committed(log, f"step/{READER}#1"))
            log.observe(CONFIG, {"rate_limit": 500, "timeout_ms": 30000}, source="deployer")
            log.flush()
            with run.step("use"):
                log.run("helper", id="helper-1").drive(helper)
                run.decide("send", why="the limit allows it", options=["send", "wait"])
            return int(limit)

        log.run("reader", id=READER, title="Reads a limit").drive(reader)
        fail(log)
        child = log.fork(RUN, at=3, state={"cents": 1999}, allow=["payments.refund", "mail.send"], id=FORK)
        child.drive(agent)


def _is_committed(log: refold.AgentLog, step: str) -> bool:
    found = log.states([step])
    return step in found and found[step].fields.get("status") == "committed"


class Page(NamedTuple):
    """A server's response. url: after redirects; body: as text."""

    status: int
    url: str
    body: str
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """Return the text of the page, without markup."""
        return " ".join(html.unescape(_TAG.sub(" ", self.body)).split())

    @property
    def commands(self) -> list[list[str]]:
        """Return the arguments of `refold` in each command that the page shows."""
        return [shlex.split(html.unescape(each))[1:] for each in _COMMAND.findall(self.body)]

    @property
    def json(self) -> Any:
        """Return the body, parsed as JSON."""
        return json.loads(self.body)


class Explored(NamedTuple):
    """A server. url: without a trailing slash."""

    url: str

    def ask(
        self, target: str, method: str = "GET", headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> Page:
        """Send one request, and return its response. Redirects are not followed."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        try:
            connection.request(method, target, content, dict(headers or {}))
            answer = connection.getresponse()
            return Page(answer.status, target, answer.read().decode(), {**answer.headers})
        finally:
            connection.close()

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Page:
        """Get a page, following the redirect to its address with a cut."""
        page = self.ask(target, headers=headers)
        for _ in range(3):
            if page.status != 303:
                break
            page = self.ask(page.headers["Location"], headers=headers)
        return page


@contextmanager
def explored(
    url: str, token: str | None = None, *, can_write: bool = False, limits: PageLimits = DEFAULT_LIMITS
) -> Iterator[Explored]:
    """Serve the explorer of a log on a free port."""
    known = None if token is None else Token(token)
    server = WebServer("127.0.0.1", 0, Access(known), what="the explorer's pages")
    site = explorer(LogTarget(url), known, is_secure=False, can_write=can_write, limits=limits)
    try:
        server.serve(site, site.problem_page)
        yield Explored(server.url)
    finally:
        server.close()
        site.handles.close()
