"""Store the spool in the log, in a separate thread, so that the agent never waits for the log.

1. The thread takes ended exchanges, oldest first: from folders of processes that are gone, then from its own. While
   agents are served it waits for pauses in the traffic, so that it does not slow them down; under constant load it
   stores a few exchanges a second until the spool is partly filled, then as fast as it can.
2. An exchange is stored durably, and then its file is removed. If the process is killed in between, the next one
   recognises the exchange by its time.
3. If the log is unavailable, or refuses, that is reported once. Its state in memory is dropped, and it is opened again,
   first after RETRY_S, later at intervals up to RETRY_MAX_S. The runs continue from the log.
4. An exchange that the log refuses, although it accepts others, is set aside after ATTEMPTS_MAX attempts, as
   `<AT>.refused`, and is counted as missed. So is one whose file is damaged, at once.
5. Exchanges that were not stored are recorded as a run that failed, and reported.
6. At the end the rest is stored, for at most `closing_s`; then the runs end. What still remains stays in the spool for
   the next process that captures into the same log, and is reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from refold.agents.capture.exchange import NO_RESPONSE
from refold.agents.capture.sessions import EndedRuns, Sessions
from refold.agents.capture.spool import Spool, free_folders
from refold.agents.journal.record import Plain, Recording
from refold.agents.log import AgentLog
from refold.agents.redaction.redactor import Redact, is_redacting
from refold.avro.errors import InputError, RefoldError, StorageError
from refold.streams.deadline import Deadline
from refold.streams.runtime_context import RuntimeContext

RETRY_S = 0.2
RETRY_MAX_S = 10.0
ATTEMPTS_MAX = 3
_POLL_S = 0.2


class StoredExchanges(NamedTuple):
    """The result.

    Attributes:
        waiting: The number of exchanges that are in the spool and not in the log.
        unanswered: The number of stored exchanges for which the provider sent no response.
        why: The reason for the last of these, as the agent got it in its error.
    """

    exchanges: int
    runs: EndedRuns
    missed: int
    waiting: int
    unanswered: int = 0
    why: str = ""


class SpoolDrain:
    """Stores this process's spool, and those of processes that are gone.

    Args:
        say: Shows a line to the user.
    """

    def __init__(
        self, open_log: Callable[[], AgentLog], root: Path, spool: Spool, agent: str, settings: Plain,
        say: Callable[[str], None], runtime: RuntimeContext, redact: Redact | None = None,
        parents: Sequence[Recording] = (), sessions: type[Sessions] = Sessions,
        resumed: str = "",
    ) -> None:  # fmt: skip
        """Start the thread.

        Args:
            open_log: Opens the log.
            root: The folder of all spools of the log.
            spool: This process's spool.
            agent: The name of the agent.
            settings: Recorded with each run.
            say: Shows a line to the user.
            runtime: Clock and ids.
            redact: The redactor.
            parents: Recordings that conversations may be forks of.
            sessions: Makes runs from the spool.
            resumed: As for Sessions.
        """
        self._parents = parents
        self._open_log = open_log
        self._root = root
        self._spools = [spool]
        self._agent = agent
        self._settings = settings
        self._say = say
        self._runtime = runtime
        self._redact = redact
        self._making = sessions
        self._resumed = resumed
        self._log: AgentLog | None = None
        self._sessions: Sessions | None = None
        self._ended = threading.Event()
        self._deadline = Deadline(0)
        self._exchanges = self._missed = self._unanswered = 0
        self._why = ""
        self._runs = EndedRuns(0, [])
        self._tried: dict[Path, int] = {}
        self._is_down = False
        self._thread = threading.Thread(target=self._run, name="refold-capture", daemon=True)
        self._thread.start()

    def close(self, closing_s: float) -> StoredExchanges:
        """Store the rest, for at most this many seconds, and end the runs."""
        self._deadline = Deadline(closing_s)
        self._ended.set()
        self._spools[0].kept.set()
        self._thread.join()
        waiting = sum(1 for spool in self._spools for _ in spool.whole())
        for spool in self._spools:
            spool.close()
        return StoredExchanges(self._exchanges, self._runs, self._missed, waiting, self._unanswered, self._why)

    def _run(self) -> None:
        wait_s = RETRY_S
        for folder in free_folders(self._root, self._spools[0].folder):
            try:
                self._spools.append(Spool(self._root, self._runtime, folder=folder))
            except (InputError, OSError):
                continue  # another process was faster
        while True:
            own = self._spools[0].kept
            own.clear()
            # After the clear: `close` sets `_ended` before `kept`, so either this sees the end or `kept` stays set.
            is_last = self._ended.is_set()
            try:
                self._store_all()
                if is_last:
                    return self._end()
                wait_s = RETRY_S
                own.wait(_POLL_S if self._tried else None)
            except Exception as error:  # of any kind: captured exchanges stay in the spool
                self._close_log(error)
                if self._ended.is_set() and wait_s > self._deadline.left_s:
                    return
                if self._ended.is_set():
                    time.sleep(wait_s)
                else:
                    self._ended.wait(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)

    def _store_all(self) -> None:
        own = self._spools[0]
        for spool in [*self._spools[1:], own]:
            for path in spool.whole():
                own.wait_for_pause(self._ended.is_set)
                self._store(spool, path)
            while (missed := spool.missed()).count:
                self._open_sessions().say_missed(missed, spool.name)
                spool.missed_stored()
                self._missed += missed.count
                self._say(missed.text)

    def _store(self, spool: Spool, path: Path) -> None:
        try:
            exchange = spool.read(path)
        except InputError as error:
            spool.set_aside(path, f"an exchange of the spool was set aside: {error}")
            return
        if exchange is not None:
            sessions = self._open_sessions()
            try:
                sessions.store(exchange, spool.name)
            except StorageError:
                raise
            except Exception as error:
                # The run in memory may be ahead of the log, so it is loaded from the log again.
                self._tried[path] = self._tried.get(path, 0) + 1
                if self._tried[path] < ATTEMPTS_MAX:
                    raise StorageError(f"an exchange cannot be stored: {error}") from error
                del self._tried[path]
                spool.set_aside(path, f"the log refused an exchange: {error}")
                raise StorageError(f"an exchange was set aside: {error}") from error
            self._exchanges += 1
            if exchange.failure is not None and exchange.failure.message.startswith(NO_RESPONSE):
                self._unanswered, self._why = self._unanswered + 1, exchange.failure.message
        self._tried.pop(path, None)
        spool.stored(path)

    def _open_sessions(self) -> Sessions:
        if self._sessions is None:
            self._log = self._open_log()
            names = [each.name for each in self._spools]
            self._sessions = self._making(
                self._log, self._log.capturing(self._redact), self._agent, names, self._settings,
                is_redacting=is_redacting(self._redact), parents=self._parents, key_of=self._key_of,
                resumed=self._resumed,
            )  # fmt: skip
            if self._is_down:
                self._is_down = False
                self._say("the log is back")
        return self._sessions

    def _key_of(self, name: str, make: bool) -> bytes:
        return next(each for each in self._spools if each.name == name).key(make=make)

    def _close_log(self, error: Exception) -> None:
        if not self._is_down and not self._tried:
            self._is_down = True
            self._say(f"the log cannot be written, and what is captured waits in {self._spools[0].folder}: {error}")
        log, self._log, self._sessions = self._log, None, None
        if log is not None:
            with suppress(RefoldError, OSError):  # the log is closed because of such an error
                log.close()

    def _end(self) -> None:
        if self._sessions is not None:
            self._runs = self._sessions.end()
        if self._log is not None:
            self._log.close()
