"""A store of the Claude Agent SDK's sessions in a log.

    from refold.claude_agent_sdk import RefoldSessionStore

    async with RefoldSessionStore("file:.refold") as store:
        async for message in query(prompt="Hello", options=ClaudeAgentOptions(session_store=store)):
            ...

The log stores:

| entity | one for each | holds |
|---|---|---|
| claude_session | session | in its history each batch of entries, of its own transcript and of its subagents' |
| claude_project | project | in its history each session that got its first entries: the index of its sessions |

`append` does the following:

1. It checks the entries. If one is no JSON object, nothing is written.
2. It folds what is new of the session and of its project's index, from all processes.
3. A session that the index does not have is added to it. On Kafka the index is made durable before the session is
   written, because they are in different partitions; a `file:` log keeps the order by itself.
4. The entries are one observation of the session: all of them or none. If they are of its own transcript, it also holds
   the SDK's summary with these entries, and how many changes that summary covers.
5. It waits until all of it is durable.

A process killed between 3 and 5 leaves at most a name in the index without a session.

The order of a transcript is the order of the log. Two programs that append to one session at the same time may both
compute the summary without the other's entries. Then it covers fewer changes than there are, and every reader computes
it from the history instead.

The SDK sends a batch again if `append` failed, also if it was written. So an entry whose uuid a transcript has already
is skipped when it is read.

`delete` is one observation. A log never deletes: an earlier state still shows a deleted session.

Each session is also recorded as a run, from its transcripts (session_runs.py).
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
from claude_agent_sdk.types import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
)

from refold.agents.adapters.claude_agent_sdk.session_runs import SessionRuns
from refold.agents.adapters.claude_agent_sdk.transcripts import (
    ProjectFold,
    SessionFold,
    StoredSession,
    Transcripts,
    project_entity,
    session_of,
    stored_entry,
)
from refold.agents.adapters.folded import caught_up, recent, settle
from refold.agents.adapters.log_holder import LogContext
from refold.agents.journal.json_fidelity import written
from refold.agents.log import AgentLog
from refold.agents.recordings.fields import Fields
from refold.avro.errors import InputError

SESSIONS_KEPT = 1024
PROJECTS_KEPT = 256
T = TypeVar("T")


class RefoldSessionStore(LogContext, SessionStore):
    """Stores sessions; for any number of tasks and processes.

    A context manager, sync and async: on exit it records the last runs, and closes the log if it opened it.
    """

    def __init__(
        self, log: str | os.PathLike[str] | AgentLog | None = None, *, agent: str = "claude-agent-sdk",
        runs: bool = True,
    ) -> None:  # fmt: skip
        """Open the log.

        Args:
            log: Its URL, file:PATH or kafka://HOST:PORT/PREFIX, as for `refold.open`; or an open log, which `close`
                leaves open.
            agent: The source of the observations.
            runs: Whether each session is also recorded as a run.
        """
        self._hold(log)
        self._agent = agent
        self._sessions: OrderedDict[StoredSession, SessionFold] = OrderedDict()
        self._projects: OrderedDict[str, ProjectFold] = OrderedDict()
        self._runs = SessionRuns(self._log, self._transcripts) if runs else None

    def close(self) -> None:
        """Record the runs of the last changes, and close the log if this object opened it."""
        if self._runs is not None:
            self._runs.close()
        super().close()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript; durable on return.

        Raises:
            InputError: An entry is no JSON object, or the key is too long or has an empty subpath.
        """
        session, subpath = session_of(key), _subpath_of(key)
        trees = [stored_entry(each, f"{session.entity}: entry {at}") for at, each in enumerate(entries)]
        if trees:
            await _in_thread(lambda: self._append(session, subpath, trees, entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return a transcript's entries in order; None if it has none."""
        session, subpath = session_of(key), _subpath_of(key)
        found = await _in_thread(lambda: self._transcripts(session))
        return found.get(subpath or "")

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project that have a transcript of their own, oldest first."""
        found = await self.list_session_summaries(project_key)
        return [{"session_id": each["session_id"], "mtime": each["mtime"]} for each in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions that `list_sessions` returns."""
        return await _in_thread(lambda: self._summaries(project_key))

    async def delete(self, key: SessionKey) -> None:
        """Delete a subagent's transcript; without a subpath, a session with all its transcripts. Durable on return."""
        session, subpath = session_of(key), _subpath_of(key)
        await _in_thread(lambda: self._delete(session, subpath))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's subagents' transcripts."""
        session = session_of(key)
        return await _in_thread(lambda: [*self._fold(session).subpaths])

    # In a thread

    def _append(
        self, session: StoredSession, subpath: str | None, trees: Sequence[Any], entries: Sequence[SessionStoreEntry]
    ) -> None:
        with self._log.lock:
            fold = self._fold(session)
            index = recent(self._projects, session.project, ProjectFold, PROJECTS_KEPT)
            if session.session not in caught_up(self._log, project_entity(session.project), index).sessions:
                added = {"project": session.project, "session": session.session, "sessions": 1}
                self._observe(project_entity(session.project), added, time.time_ns() // 1000)
                settle(self._log)
            self._append_to(fold, subpath, trees, entries)
            end = self._log.port.begin_flush()
        end()
        if self._runs is not None:
            self._runs.changed(session)

    def _append_to(
        self, fold: SessionFold, subpath: str | None, trees: Sequence[Any], entries: Sequence[SessionStoreEntry]
    ) -> None:
        patch = {"entries": self._seal(fold.session, "entries", [*trees]), "appended": len(trees)}
        if subpath is None:
            patch["summary"] = self._seal(fold.session, "summary", written(fold.summary_with(entries)))
        self._change(fold, subpath, patch)

    def _delete(self, session: StoredSession, subpath: str | None) -> None:
        with self._log.lock:
            fold = self._fold(session)
            if subpath not in fold.subpaths if subpath is not None else not fold.has_any:
                return
            cleared = ("entries",) if subpath is not None else ("entries", "summary")
            self._change(fold, subpath, {"deleted_at": fold.next_at()}, cleared)
            end = self._log.port.begin_flush()
        end()

    def _change(
        self, fold: SessionFold, subpath: str | None, patch: dict[str, Any], cleared: tuple[str, ...] = ()
    ) -> None:
        """Record an observation of a session that is later than all of its observations that were read."""
        at = fold.next_at()
        patch |= {"project": fold.session.project, "session": fold.session.session}
        if subpath is None:
            patch |= {"changes": 1, "summary_of": fold.changes + 1, "changed_at": at}
            cleared = (*cleared, "subpath")
        else:
            patch["subpath"] = subpath
        self._observe(fold.session.entity, patch, at, cleared)

    def _observe(self, entity: str, patch: Mapping[str, Any], at: int, cleared: Sequence[str] = ()) -> None:
        """Record an observation that was made at a time in microseconds; it may be ahead of this process's clock."""
        self._log.observe(entity, patch, observed_at=at, source=self._agent, cleared=cleared, allow_future=True)

    def _seal(self, session: StoredSession, field: str, tree: Any) -> Any:
        return self._log.vault.seal(session.key_id, session.entity, field, tree)

    def _fold(self, session: StoredSession) -> SessionFold:
        """Return what is known of a session now, from all processes."""
        with self._log.lock:
            self._refresh()
            found = recent(self._sessions, session, lambda: SessionFold(self._log, session), SESSIONS_KEPT)
            return caught_up(self._log, session.entity, found)

    def _transcripts(self, session: StoredSession) -> Mapping[str, list[SessionStoreEntry]]:
        with self._log.lock:
            fold = self._fold(session)
            return caught_up(self._log, session.entity, Transcripts(fold)).entries

    def _summaries(self, project: str) -> list[SessionSummaryEntry]:
        with self._log.lock:
            self._refresh()
            index = recent(self._projects, project, ProjectFold, PROJECTS_KEPT)
            names = [*caught_up(self._log, project_entity(project), index).sessions]
        sessions = {each.entity: each for each in (StoredSession(project, name) for name in names)}
        views = self._log.states([*sessions])
        found: list[SessionSummaryEntry] = []
        for entity, session in sessions.items():
            if entity not in views:
                continue
            fields = Fields(views[entity], self._log.vault)
            summary, changed_at = fields.exact("summary"), fields.plain("changed_at", 0)
            if fields.plain("summary_of", 0) != fields.plain("changes", 0):
                fold = self._fold(session)
                summary, changed_at = fold.summary, fold.changed_at
            if isinstance(summary, dict):
                found.append({"session_id": session.session, "mtime": changed_at // 1000, "data": summary})
        return found

    def _refresh(self) -> None:
        self._log.port.publish()
        self._log.port.refresh()


def _subpath_of(key: SessionKey) -> str | None:
    subpath = key.get("subpath")
    if subpath == "":
        raise InputError(f"session {key['session_id']}: the subpath is empty; leave it out for its own transcript")
    return subpath


async def _in_thread(work: Callable[[], T]) -> T:
    """Run work that waits for the disk or for brokers. It continues if the caller is cancelled."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
