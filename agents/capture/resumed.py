"""Go on from what was captured under an id before: `refold record --resume RUN`, and captured agents of `refold up`.

1. What captures left in the spools of this machine, because they were killed, is stored, and their runs end.
2. Runs with the id's tag that have no end, because their capture was killed on another machine, end too. The caller
   makes sure that no other process captures under the id: a supervisor by its claim of the agent.
3. The runs with the tag are loaded. The first one has the id itself.
4. A request that is recorded with a whole, successful answer gets that answer again (playback.py), so it is not paid
   again. Any other one is forwarded, and captured: one that was never made, and one whose answer broke off or failed.
   That does not depend on what was forwarded before: a recorded answer is one to all that its request contains.
5. A conversation that continues from a recorded turn becomes a fork of its run, after that turn (forks.py).
6. Forks and other new runs record in `capture.resumed` how many requests were answered before the first that was
   forwarded, and in which it differs. An agent that keeps its own state differs at once: it continues after the last
   recorded turn, or starts again.
7. A policy counts the recorded calls, so no budget starts again.

Killed in 1 to 3: the next start does them again; a run that ended is not ended twice. Later: as any capture
(sessions.py), then 1. A turn whose tools had no result stays a turn of its own run only; the fork begins before it.

What was in the spool of another machine and not yet in the log is forwarded again.
"""

from __future__ import annotations

import os

from refold.agents.capture.capture import CaptureSettings, spool_root
from refold.agents.capture.playback import RecordedUpstream
from refold.agents.capture.sessions import RESUMED_TAG, Sessions
from refold.agents.capture.spool import Spool, free_folders
from refold.agents.capture.spool_drain import SpoolDrain
from refold.agents.journal.record import Call, Recording
from refold.agents.log import AgentLog
from refold.agents.redaction.redactor import is_redacting
from refold.avro.errors import InputError, NotAnswerable
from refold.streams.open import process_context


def resuming(settings: CaptureSettings, run: str, closing_s: float) -> CaptureSettings:
    """Return the settings of a capture that continues from what was captured under an id.

    Args:
        settings: The settings of a new capture.
        run: The id. Nothing may be captured under it yet.
        closing_s: How long the log may take to store what killed captures left, seconds.

    Raises:
        InputError: The runs were captured through a redactor, and none is given.
        StorageError: The log cannot be read.
    """
    _store_pending(settings, run, closing_s)
    log = settings.open_log()
    try:
        recordings = _recordings(log, settings, run)
        redact = None if settings.redact is None else log.capturing(settings.redact).redactor()
    finally:
        log.close()
    if settings.redact is None and any(each.redacted for each in recordings):
        raise InputError(f"run {run} was captured through a redactor, and what follows would not be: give --redact")
    replaying = RecordedUpstream(recordings, redact, may_answer=_is_answered)
    return settings._replace(parents=recordings, replaying=replaying, resumed=run)


def _store_pending(settings: CaptureSettings, run: str, closing_s: float) -> None:
    """Step 1."""
    runtime = settings.runtime or process_context()
    root = settings.spool or spool_root(settings.log_url, os.environ)
    if not any(free_folders(root, root)):
        return
    spool = Spool(root, runtime, settings.spool_bytes_max)
    SpoolDrain(
        settings.open_log, root, spool, settings.agent, settings.settings, settings.say, runtime, settings.redact,
        resumed=run
    ).close(closing_s)  # fmt: skip


def _recordings(log: AgentLog, settings: CaptureSettings, run: str) -> list[Recording]:
    """Steps 2 and 3."""
    if not log.states([f"run/{run}"]):
        return []
    Sessions(
        log, log.capturing(settings.redact), settings.agent, (), settings.settings,
        is_redacting=is_redacting(settings.redact),
        resumed=run,
    ).end()  # fmt: skip
    found = []
    for row in reversed(log.runs(tag=RESUMED_TAG + run, further=True)):
        try:
            found.append(log.recording(row.run))
        except NotAnswerable:  # its content expired
            continue
    return found


def _is_answered(call: Call) -> bool:
    """Return whether a recorded answer is whole and says no error."""
    answer = call.answer
    is_whole = call.failure is None and isinstance(answer, dict) and answer.get("end") == "whole"
    return is_whole and 200 <= answer.get("status", 0) < 300
