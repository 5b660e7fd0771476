"""Asking a worker's page (streams/worker/host/web.py), by whoever has its URL: a client, or another worker.

A URL on loopback means another worker on another machine: who asks says of which log, and a worker of another one
refuses.
"""

from __future__ import annotations

from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

FORWARDED = "X-Refold-Forwarded"
LOG = "X-Refold-Log"
OTHER_LOG = 409
"""The status of a page that is asked about another log."""
LOOKUP = "lookup/1"
"""The page of look-ups, with the version of what is said there: a worker of another one has no such page."""
JSON, CBOR = "application/json", "application/cbor"

# Workers are asked as they are named: a proxy of this machine's environment is for other things.
_opener = build_opener(ProxyHandler({}))


class Answer(NamedTuple):
    """A page: status, content and its type."""

    status: int
    content: bytes
    media_type: str = JSON


def ask(
    url: str, content: bytes | None = None, *, log_id: bytes, timeout_s: float, media_type: str = JSON,
    is_forwarded: bool = False,
) -> Answer:  # fmt: skip
    """The page of a worker of a log at a URL; content: what is posted there. OSError where nobody answers."""
    headers = {LOG: log_id.hex(), **({FORWARDED: "1"} if is_forwarded else {})}
    if content is not None:
        headers["Content-Type"] = media_type
    try:
        with _opener.open(Request(url, content, headers), timeout=timeout_s) as found:
            return Answer(found.status, found.read(), found.headers.get_content_type())
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read(), error.headers.get_content_type())
    except HTTPException as error:
        raise OSError(f"what answers there does not speak HTTP: {error!r}") from error
