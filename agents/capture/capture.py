"""A capture: a proxy, its spool, and the thread that stores the spool in a log. Used by `refold proxy` and `refold
record`.

Order at the end: the proxy accepts no more requests and cuts off those in progress, so that every exchange has an end
in the spool; then the rest of the spool is stored, and the runs end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from refold.agents.capture.forks import ForkingUpstream
from refold.agents.capture.playback import RecordedUpstream, exchanges_in
from refold.agents.capture.proxy import BODY_BYTES_MAX, Proxy, Upstreams
from refold.agents.capture.proxy_guard import ProxyGuard, require_no_question
from refold.agents.capture.server import CaptureHandler, LoopbackServer
from refold.agents.capture.sessions import Sessions
from refold.agents.capture.spool import BYTES_MAX, Spool
from refold.agents.capture.spool_drain import SpoolDrain, StoredExchanges
from refold.agents.journal.record import Plain, Recording
from refold.agents.log import AgentLog
from refold.agents.policy.rules import Policy
from refold.agents.redaction.redactor import Redact
from refold.agents.state_home import state_folder
from refold.agents.supervise.supervised import given_gate
from refold.streams.open import process_context
from refold.streams.runtime_context import RuntimeContext

WHY_MAX = 2_000


class CaptureSettings(NamedTuple):
    """How to capture.

    Attributes:
        log_url: The log's URL, with an absolute path.
        open_log: Opens the log.
        spool: The root of spools, None for the default.
        settings: The settings that are recorded with each run, along with its spool.
        silence_s, body_bytes_max: As in Proxy.
        runtime: The clock and the ids; None for this machine's.
        parents: The recordings whose forks are captured.
        replaying: Answers requests from recordings, until the first that is not recorded.
        policy: The rules for requests.
        resumed: The id that is resumed; the parents are its recorded runs, and the policy counts their calls
            (resumed.py).
    """

    log_url: str
    open_log: Callable[[], AgentLog]
    agent: str
    settings: Plain
    say: Callable[[str], None]
    redact: Redact | None = None
    spool: Path | None = None
    spool_bytes_max: int = BYTES_MAX
    host: str = "127.0.0.1"
    port: int = 0
    silence_s: float | None = None
    runtime: RuntimeContext | None = None
    parents: Sequence[Recording] = ()
    replaying: RecordedUpstream | None = None
    policy: Policy | None = None
    resumed: str = ""
    body_bytes_max: int = BODY_BYTES_MAX

    def drain(
        self, root: Path, spool: Spool, runtime: RuntimeContext, sessions: type[Sessions] = Sessions
    ) -> SpoolDrain:
        """Start to store a spool in the log.

        Args:
            root: The folder of all spools of the log.
            spool: This process's spool.
            runtime: Clock and ids.
            sessions: Makes runs from the spool.
        """
        return SpoolDrain(
            self.open_log, root, spool, self.agent, self.settings, self.say, runtime, self.redact, self.parents,
            sessions, self.resumed,
        )  # fmt: skip


class Capture:
    """One capture. It has started when the constructor returns.

    Attributes:
        url: The URL of its proxy.
    """

    def __init__(self, settings: CaptureSettings, upstreams: Mapping[str, str]) -> None:
        """Start the capture.

        Args:
            settings: How to capture.
            upstreams: As for Upstreams: the URLs by the first part of the path, without slashes; "" for every other
                request.

        Raises:
            InputError: An upstream is no URL, the policy asks a person, or the address cannot be used.
        """
        if settings.policy is not None:
            require_no_question(settings.policy)
        to = Upstreams(upstreams)
        root = settings.spool or spool_root(settings.log_url, os.environ)
        runtime = settings.runtime or process_context()
        spool = Spool(root, runtime, settings.spool_bytes_max)

        def handling() -> CaptureHandler:
            proxy = Proxy(
                to, spool, runtime.now_micros, silence_s=settings.silence_s,
                guard=_guard(settings, runtime.now_micros()),
                gate=given_gate(), body_bytes_max=settings.body_bytes_max,
            )  # fmt: skip
            if settings.replaying is None:
                return proxy
            return ForkingUpstream(settings.replaying, proxy, _live(settings), returns=bool(settings.resumed))

        try:
            self._serving = LoopbackServer(handling, settings.host, settings.port)
        except BaseException:
            spool.close()
            raise
        self.url = self._serving.url
        self._storing = settings.drain(root, spool, runtime)

    def close(self, closing_s: float) -> StoredExchanges:
        """End the capture.

        Args:
            closing_s: How long the log may take for the rest of the spool, seconds.

        Returns:
            What was stored, and what was not.
        """
        self._serving.close()
        return self._storing.close(closing_s)


def _live(settings: CaptureSettings) -> Callable[[str], None]:
    """Return what is done when the first request is forwarded that no recording answers."""

    def noted(why: str) -> None:
        if settings.resumed and settings.replaying is not None:
            settings.settings["resumed"] = {
                "run": settings.resumed, "answered": settings.replaying.served, "forwarded": why[:WHY_MAX],
            }  # fmt: skip
        settings.say(why)

    return noted


def _guard(settings: CaptureSettings, now: int) -> ProxyGuard | None:
    """Return the guard of a capture. now: microseconds."""
    if settings.policy is None:
        return None
    resumed = settings.parents if settings.resumed else ()
    guard = ProxyGuard(settings.policy, min((each.started_at for each in resumed), default=now))
    guard.count(each.call for each in exchanges_in(resumed))
    return guard


def spool_root(log_url: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of a log's spools: one of the user's folders, named after the log's URL."""
    return state_folder("capture", log_url, environment)
