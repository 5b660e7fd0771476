"""Record sessions as runs, in a thread, from their transcripts.

1. `changed` notes that a session has changed. The agent never waits for its run.
2. The thread takes the sessions that changed, one at a time, and reads their transcripts from the log.
3. It writes them to a temporary folder as Claude Code does, and imports them from there (importers/claude_code.py). The
   run's id depends on the session's id alone, so importing a session that has grown adds only what is new. Content is
   sealed if the log seals it.
4. It links the run's turns to those that a proxy captured (same_turns.py), and its tool calls to those that hooks
   recorded (tool_calls.py).
5. It rests REST_FACTOR times as long as that took, so that a long session is not imported again after each entry.
6. `close` has the remaining sessions recorded, without rests.

A process that is killed leaves a run that lacks the end of its session. The next change of the session completes it.
A session that cannot be imported is kept as a session, and a warning is logged.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from refold.agents.adapters.claude_agent_sdk.tool_calls import run_of_session, unite_calls
from refold.agents.adapters.claude_agent_sdk.transcripts import StoredSession
from refold.agents.adapters.folded import recent
from refold.agents.importers import claude_code
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.importers.sealing import SealingRecorder
from refold.agents.importers.turn_keys import TranscriptTurns
from refold.agents.log import AgentLog
from refold.agents.recordings.same_turns import unite_transcripts
from refold.avro.definition import TypeDefinition
from refold.avro.errors import RefoldError
from refold.avro.observation import Observation
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder
from refold.streams.temporary import TemporaryFolder

REST_FACTOR = 4
SESSIONS_KEPT = 64
METADATA = "agent_metadata"
logger = logging.getLogger("refold.claude_agent_sdk")
_SUBAGENT = re.compile(r"subagents/agent-[\w-]{1,100}")

Transcripts = Callable[[StoredSession], Mapping[str, Sequence[Any]]]
"""Returns the transcripts of a session by subpath, its own under an empty one."""


class SessionRuns:
    """The thread that records sessions as runs."""

    def __init__(self, log: AgentLog, transcripts: Transcripts) -> None:
        self._log = log
        self._transcripts = transcripts
        self._changed: dict[StoredSession, None] = {}
        self._change = threading.Condition()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._recorded: OrderedDict[StoredSession, set[bytes]] = OrderedDict()

    def changed(self, session: StoredSession) -> None:
        """Have the run of a session recorded soon."""
        with self._change:
            self._changed[session] = None
            if self._thread is None and not self._is_closing.is_set():
                self._thread = threading.Thread(target=self._run, name="refold-session-runs", daemon=True)
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """Record the runs that are behind their sessions, and end the thread."""
        self._is_closing.set()
        with self._change:
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (session := self._next()) is not None:
            begun_s = time.monotonic()
            try:
                self._record(session)
            except RefoldError as error:
                logger.warning("session %s is not recorded as a run: %s", session.session, error)
            except Exception:  # a defect: the agent, and the runs of its other sessions, must continue
                logger.exception("session %s is not recorded as a run", session.session)
            self._is_closing.wait(REST_FACTOR * (time.monotonic() - begun_s))

    def _next(self) -> StoredSession | None:
        """Wait for a session that has changed; None if this is closing and none is left."""
        with self._change:
            self._change.wait_for(lambda: self._changed or self._is_closing.is_set())
            session = next(iter(self._changed), None)
            if session is not None:
                del self._changed[session]
            return session

    def _record(self, session: StoredSession) -> None:
        transcripts = self._transcripts(session)
        if not transcripts.get(""):
            return
        with self._log.lock:
            vocabulary = TypeCatalog(self._log.port.registry, {}, shipped_types())

        def definition(type_name: str) -> TypeDefinition:
            return vocabulary.writer(type_name).definition

        known = recent(self._recorded, session, set, SESSIONS_KEPT)
        turns: list[TranscriptTurns] = []
        checked, new = Recorder(vocabulary, lambda *each: None), Recorder(vocabulary, partial(self._take, known))
        with TemporaryFolder("refold-import-") as folder:
            path = write_session(folder, transcripts)
            for recorder in (checked, new):
                turns.clear()
                for each in claude_code.conversations(ImportFile(path, f"session {session.session}")):
                    sealing = SealingRecorder(recorder, self._log.vault, definition, each.run)
                    import_conversation(each, sealing.observe, turns.append)
        self._log.flush()
        unite_transcripts(self._log, turns, self._log.vault)
        unite_calls(self._log, run_of_session(session.session), turns)

    def _take(
        self, known: set[bytes], observation: Observation, observation_id: bytes, definition: TypeDefinition,
        blobs: Mapping[bytes, bytes], data: bytes | None,
    ) -> None:  # fmt: skip
        """Record an observation, unless it was recorded. If it is recorded again, it is the same one, by its id."""
        if observation_id in known:
            return
        with self._log.lock:
            if not self._log.port.has_id_index or self._log.port.find(observation_id) is None:
                self._log.append(observation, observation_id, definition, blobs, data)
        known.add(observation_id)


def write_session(folder: Path, transcripts: Mapping[str, Sequence[Any]]) -> Path:
    """Write transcripts as Claude Code does, and return the path of the session's own."""
    path = folder / "session.jsonl"
    _write(path, transcripts[""])
    for subpath, entries in transcripts.items():
        if not _SUBAGENT.fullmatch(subpath):
            continue  # no subagent's transcript, or a name that is no file's
        own = folder / "session" / f"{subpath}.jsonl"
        own.parent.mkdir(parents=True, exist_ok=True)
        _write(own, [each for each in entries if each.get("type") != METADATA])
        meta = [each for each in entries if each.get("type") == METADATA]
        if meta:
            own.with_suffix(".meta.json").write_text(json.dumps(meta[-1]), encoding="utf-8")
    return path


def _write(path: Path, entries: Sequence[Any]) -> None:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in entries), encoding="utf-8")
