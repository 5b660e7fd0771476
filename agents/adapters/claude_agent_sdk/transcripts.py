"""Fold the observations of a session, and of a project, in log order (store.py says what they hold).

An entry of a transcript is any JSON object. One that a log cannot hold unchanged, such as one with an integer of 90
bits, is stored as {"refold.line": its JSON as a text}.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from claude_agent_sdk import fold_session_summary
from claude_agent_sdk.types import SessionKey, SessionListSubkeysKey, SessionStoreEntry, SessionSummaryEntry

from refold.agents.adapters.quoting import quoted
from refold.agents.journal.json_fidelity import read, written
from refold.agents.journal.record import Plain
from refold.agents.log import AgentLog
from refold.avro.canonical import json_tree
from refold.avro.envelope import check_entity
from refold.avro.errors import InputError
from refold.avro.jsonform import formatter
from refold.avro.observation import Observation
from refold.streams.client import Log

SESSION_TYPE = "claude_session"
_LINE = "refold.line"


class StoredSession(NamedTuple):
    """Identifies a session."""

    project: str
    session: str

    @property
    def entity(self) -> str:
        """The entity claude_session/<project>#<session>. Raises ValidationError if that is too long."""
        return check_entity(f"{SESSION_TYPE}/{quoted(self.project)}#{quoted(self.session)}")

    @property
    def key_id(self) -> str:
        """The id of the key that seals its content."""
        return f"session/{self.project}/{self.session}"


def session_of(key: SessionKey | SessionListSubkeysKey) -> StoredSession:
    """Return the session that a key of the SDK names."""
    return StoredSession(key["project_key"], key["session_id"])


def project_entity(project: str) -> str:
    """Return the entity claude_project/<project>. Raises ValidationError if that is too long."""
    return check_entity(f"claude_project/{quoted(project)}")


def stored_entry(entry: SessionStoreEntry, what: str) -> Plain:
    """Return an entry as a log stores it.

    Raises:
        InputError: It is no JSON object; `what` names it.
    """
    if not isinstance(entry, dict):
        raise InputError(f"{what} is a {type(entry).__name__}, and no JSON object")
    try:
        text = json.dumps(entry, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} is no JSON: {error}") from None
    if entry.keys() != {_LINE}:
        with suppress(InputError):
            stored = json_tree(written(json.loads(text)), what)
            if json.dumps(read(stored)) == text:
                return stored
    return {_LINE: text}


def entry_of(stored: Any) -> SessionStoreEntry:
    """Return the entry that `stored_entry` made."""
    if isinstance(stored, dict) and stored.keys() == {_LINE}:
        return cast(SessionStoreEntry, json.loads(stored[_LINE]))
    return cast(SessionStoreEntry, read(stored))


@dataclass(slots=True)
class SessionFold:
    """The facts of a session without its entries. `apply` updates them.

    Attributes:
        offset, ids: As in FoldedState.
        subpaths: Its subagents' transcripts.
        summary: What fold_session_summary makes of its own transcript; None if there is no such transcript.
        changes: How many observations changed its own transcript.
        latest_at: The latest time of an observation, in microseconds since 1970; -1 without observations.
        changed_at: When its own transcript was changed last, in microseconds since 1970; 0 if that is not recorded.
    """

    log: AgentLog
    session: StoredSession
    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    subpaths: dict[str, None] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    changes: int = 0
    latest_at: int = -1
    changed_at: int = 0

    @property
    def has_any(self) -> bool:
        """Whether there is anything to delete."""
        return self.summary is not None or bool(self.subpaths)

    def next_at(self) -> int:
        """Return the time, microseconds; one after the latest observation, if the clock is not later."""
        return max(time.time_ns() // 1000, self.latest_at + 1)

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation of the session, in log order."""
        patch: Mapping[str, Any] = observation.patch
        self.latest_at = max(self.latest_at, observation.observed_at)
        self.changed_at = max(self.changed_at, patch.get("changed_at") or 0)
        self.changes += patch.get("changes") or 0
        subpath = patch.get("subpath")
        if patch.get("deleted_at") is not None:
            if subpath is None:
                self.subpaths.clear()
                self.summary = None
            else:
                self.subpaths.pop(subpath, None)
        elif patch.get("entries") is None:
            return
        elif subpath is not None:
            self.subpaths[subpath] = None
        elif patch.get("summary_of") == self.changes:
            self.summary = cast("dict[str, Any]", read(self._open_value(observation, "summary")))
        else:  # its writer had not read another program's change before it
            self.summary = self.summary_with(self.entries_in(observation))

    def summary_with(self, entries: Iterable[SessionStoreEntry]) -> dict[str, Any]:
        """Return the summary with more entries of the session's own transcript."""
        session_id = self.session.session
        before: SessionSummaryEntry | None = None
        if self.summary is not None:
            before = {"session_id": session_id, "mtime": 0, "data": self.summary}
        key: SessionKey = {"project_key": self.session.project, "session_id": session_id}
        return fold_session_summary(before, key, [*entries])["data"]

    def entries_in(self, observation: Observation) -> list[SessionStoreEntry]:
        """Return the entries that an observation appended."""
        found = self._open_value(observation, "entries")
        return [entry_of(each) for each in found] if isinstance(found, list) else []

    def _open_value(self, observation: Observation, name: str) -> Plain:
        definition = self.log.types[SESSION_TYPE].by_first_name[name]
        shown = formatter(definition.node, python=True)(observation.patch[name])
        return self.log.vault.open(self.session.entity, name, shown)


@dataclass(slots=True)
class Transcripts:
    """All transcripts of a session by subpath, the session's own under an empty one. `apply` updates them.

    An entry whose uuid its transcript has already is skipped: the SDK sent it twice.
    """

    fold: SessionFold
    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    entries: dict[str, list[SessionStoreEntry]] = field(default_factory=dict)
    _uuids: dict[str, set[str]] = field(default_factory=dict)

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation of the session, in log order."""
        patch: Mapping[str, Any] = observation.patch
        subpath = patch.get("subpath") or ""
        if patch.get("deleted_at") is not None:
            for each in [subpath] if subpath else [*self.entries]:
                self.entries.pop(each, None)
                self._uuids.pop(each, None)
        elif patch.get("entries") is not None:
            self._append(subpath, self.fold.entries_in(observation))

    def _append(self, subpath: str, entries: Iterable[SessionStoreEntry]) -> None:
        known = self._uuids.setdefault(subpath, set())
        transcript = self.entries.setdefault(subpath, [])
        for entry in entries:
            uuid = entry.get("uuid")
            if isinstance(uuid, str):
                if uuid in known:
                    continue
                known.add(uuid)
            transcript.append(entry)


@dataclass(slots=True)
class ProjectFold:
    """Every session of a project that ever got entries, oldest first. `apply` updates it.

    Attributes:
        offset, ids: As in FoldedState.
    """

    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    sessions: dict[str, None] = field(default_factory=dict)

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation of the project, in log order."""
        session = observation.patch.get("session")
        if isinstance(session, str):
            self.sessions[session] = None
