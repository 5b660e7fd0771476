"""Asking a worker's page (streams/worker/host/pages.py), by whoever has its URL: a client, or another worker.

A URL on loopback means another worker on another machine: who asks says of which log, and a worker of another one
refuses.
"""

from __future__ import annotations

from refold.streams.web.asking import Asker
from refold.streams.web.page import JSON, Answer

FORWARDED = "X-Refold-Forwarded"
LOG = "X-Refold-Log"
OTHER_LOG = 409
"""The status of a page that is asked about another log."""
LOOKUP = "lookup/1"
"""The page of look-ups, with the version of what is said there: a worker of another one has no such page."""
CBOR = "application/cbor"


def ask(
    asker: Asker, url: str, content: bytes | None = None, *, log_id: bytes, timeout_s: float, media_type: str = JSON,
    is_forwarded: bool = False,
) -> Answer:  # fmt: skip
    """The page of a worker of a log at a URL; content: what is posted there. OSError where nobody answers."""
    headers = {LOG: log_id.hex(), **({FORWARDED: "1"} if is_forwarded else {})}
    if content is not None:
        headers["Content-Type"] = media_type
    return asker.ask(url, content, headers, timeout_s)
