"""Exchanges become runs: a session is recognised by its conversation, and each turn is a step of its run.

    run       agent NAME, kind `capture`; its metadata says in `capture` what was set, and which spool it used
    step n    the n-th turn: the exchange as a call of the model; then each tool call in the model's reply, answered
              with the result in the next turn. Its state is {"messages": [...]}: the conversation after it
    action    each tool call also as `action/RUN#n.k`: its request and its result

1. A turn belongs to the session whose last request is a prefix of it, if the next message is the recorded reply. A
   request that equals the last one is a retry of it if that had no reply. A request that continues from an earlier turn
   of a session in memory is a branch: a fork of its run, after that turn. Any other request begins a session.
2. A turn that calls tools leaves its step open: the exchange is durable in it. The results in the next turn are linked
   to its calls by their ids, and the step ends. A turn without calls, or without a reply, ends at once.
3. A session that begins while a call of another session waits, with a text of that call's arguments as its task,
   belongs to a sub-agent: it is a nested run in that step. The call's action is linked to it.
4. Exchanges that are not turns (embeddings, lists of models, unknown paths) are the steps of a separate run, the first
   SessionLimits.loose_steps; then another run begins.
5. A turn with a reply is noted under its key, and a turn that the agent's own code records is linked to the step there.
   So the records of one session become one run (recordings/same_turns.py).
6. A run ends with its proxy, or with the program that was run: `succeeded` if its last turn has a reply without tool
   calls, else `unknown`.
7. Memory holds as many sessions, and bytes of their last exchanges, as SessionLimits says. Those that were idle
   longest leave it:
   `turn/HASH` names the last step, by a hash of the conversation up to it, and the run ends, unless calls of it wait. A
   turn that continues no session in memory is looked up there, and its run is resumed from the log. The hash has a key
   that is in the spool's folder and is removed with it, so nobody can guess a conversation by it.

Crash points. An exchange is identified by the time of its beginning, which no two in a spool share. An exchange that
was stored, and whose file was not removed, is recognised by it and skipped. So is a run that was begun and has no step:
it begins with its first exchange. A run whose process was killed continues from the log: with its open step, the calls
in it, and its conversation. Notes and links of a turn are recorded before its exchange, which marks them as recorded;
those of whole runs before the run's end. A session that leaves memory is named before its run ends: until then it is
continued as a run of a killed process, and afterwards it is found by its name, for it never leaves memory in the same
turn that it takes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from refold.agents.capture.captured_session import CapturedSession, last_turn
from refold.agents.capture.forks import ForkedTurn, Parents
from refold.agents.capture.spool import MissedExchanges, SpooledExchange, spool_of
from refold.agents.capture.turns import (
    ModelReply,
    ModelTurn,
    asked_first,
    is_answered_by,
    is_of_the_model,
    reply_of,
    title_of,
    turn_of,
)
from refold.agents.journal.record import Failure, Plain, Recording
from refold.agents.journal.self_replay import state_at
from refold.agents.live import CapturedRun, CaptureRecorder
from refold.agents.log import AgentLog
from refold.agents.recorder.observations import run_entity
from refold.agents.recordings.load import CAPTURED
from refold.agents.recordings.same_turns import unite, unite_run
from refold.agents.replay.patch import patch_of
from refold.avro.errors import NotAnswerable

GAP = "refold.CaptureGap"
RESUMED_TAG = "capture:"
NAMED_MAX = 1000
_LOOSE = "calls that are no turn of a conversation"


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of what is held.

    Attributes:
        live: The number of sessions in memory.
        live_bytes: The total size of their last exchanges, in bytes.
        loose_steps: The number of steps of a run of calls that are no turn.
    """

    live: int = 256
    live_bytes: int = 64 << 20
    loose_steps: int = 1000


class EndedRuns(NamedTuple):
    """The runs that ended.

    Attributes:
        runs: The ids of at most NAMED_MAX of them. A run beyond these that is resumed counts again.
        total: The number of runs.
    """

    total: int
    runs: list[str]


class Sessions:
    """The sessions of one open log.

    Attributes:
        kind: The kind of their runs.
    """

    kind = CAPTURED

    def __init__(
        self,
        log: AgentLog,
        capturing: CaptureRecorder,
        agent: str,
        spools: Sequence[str],
        settings: Plain,
        *,
        is_redacting: bool = False,
        parents: Sequence[Recording] = (),
        key_of: Callable[[str, bool], bytes] | None = None,
        resumed: str = "",
        limits: SessionLimits = SessionLimits(),
    ) -> None:
        """Resume the open runs.

        Args:
            log: The log.
            capturing: Begins runs in it.
            agent: The name of the agent.
            spools: Names of the folders that are read here; runs that used them are resumed.
            settings: Recorded as the way in which the agent was pointed here.
            is_redacting: Whether the runs are redacted.
            parents: Recordings that conversations may be forks of, the main one first.
            key_of: Returns the key of a spool's folder, under which idle sessions are found again; empty if it has none
                and none is to be made. None: sessions stay in memory.
            resumed: The id that is resumed (resumed.py), of the first run; empty if none is. All runs have it in a tag.
            limits: Bounds of what is held.
        """
        self._log = log
        self._capturing = capturing
        self._agent = agent
        self._settings = settings
        self._is_redacting = is_redacting
        self._spools = tuple(spools)
        self._key_of = key_of
        self._resumed_id = resumed
        self._limits = limits
        self._tags = (RESUMED_TAG + resumed,) if resumed else ()
        self._live: dict[str, CapturedSession] = {}  # in the order of their last use
        self._waiting: dict[str, None] = {}  # runs that left memory while calls of them waited
        self._ended = EndedRuns(0, [])
        self._by_end: dict[str, list[CapturedSession]] = {}
        self._by_response: dict[str, CapturedSession] = {}
        self._earlier: dict[str, tuple[CapturedSession, int]] = {}  # by ends and replies: turns that were continued
        self._loose: CapturedSession | None = None
        self._stored: set[int] = set()
        self._begun: dict[int, CapturedSession] = {}
        self._parents = Parents(parents)
        self._recover(frozenset(spools))

    def store(self, exchange: SpooledExchange, spool: str) -> None:
        """Store one exchange; durable on return."""
        if exchange.at in self._stored:
            return
        turn = turn_of(exchange.request)
        reply = None if turn is None or exchange.failure is not None else reply_of(turn.family, exchange.answer)
        session = self._session(turn, exchange, spool)
        session.take(exchange, turn, reply)
        if turn is not None:
            self._index(session, turn, reply)
            self._live[session.run] = self._live.pop(session.run)
        self._make_room()
        session.sink.flush()  # the last: one sync makes all of it durable

    def say_missed(self, missed: MissedExchanges, spool: str) -> None:
        """Record exchanges that were not kept, as a run that failed; durable on return."""
        if self._log.states([f"run/{missed.id}"]):
            return
        sink = self._capturing.begin(self._head("exchanges that were not kept", missed.first_at, spool, missed.id)).sink
        failure = Failure(exception=GAP, message=missed.text, at=missed.last_at)
        sink.ended("failed", None, failure, missed.last_at)

    def end(self) -> EndedRuns:
        """End every run that is open."""
        for run in [*self._waiting]:
            self._resume_session(self._log.recording(run))
        live = [*self._live.values(), *([] if self._loose is None else [self._loose])]
        for session in sorted(live, key=lambda each: each.begun_at):
            self._end(session)
        self._live, self._loose, self._by_end, self._by_response, self._earlier = {}, None, {}, {}, {}
        return self._ended

    def _end(self, session: CapturedSession) -> None:
        session.close()
        unite(self._log, session.keys, self._log.vault)
        if session.has_twin:
            unite_run(self._log, session.run, self._log.vault)
        session.end()
        total, runs = self._ended
        if session.run in runs:
            return
        self._ended = EndedRuns(total + 1, [*runs, session.run][:NAMED_MAX])

    def _session(self, turn: ModelTurn | None, exchange: SpooledExchange, spool: str) -> CapturedSession:
        if turn is None:
            if self._loose is not None and self._loose.number >= self._limits.loose_steps:
                self._end(self._loose)
                self._loose = None
            if self._loose is None:
                self._loose = self._begin(_LOOSE, None, exchange, spool)
            return self._loose
        found = self._find_session(turn) or self._find_in_log(turn)
        if found is None:
            found = self._begin(title_of(turn.family, turn.messages), turn, exchange, spool)
            self._live[found.run] = found
        return found

    def _find_session(self, turn: ModelTurn) -> CapturedSession | None:
        if turn.follows:
            session = self._by_response.get(turn.follows)
            is_last = session is None or session.reply is None or session.reply.id == turn.follows
            return session if is_last else None
        for length in range(len(turn.chain), 0, -1):
            for session in reversed(self._by_end.get(turn.chain[length - 1], ())):
                if _continues(turn, length, session.reply):
                    return session
        return None

    def _find_in_log(self, turn: ModelTurn) -> CapturedSession | None:
        """Return the session that a turn continues, if it left memory; it is in memory again."""
        for spool in self._spools:
            key = b"" if self._key_of is None else self._key_of(spool, False)
            if not key:
                continue
            ends = [turn.follows] if turn.follows else turn.chain[::-1]
            names = [_end_entity(key, each) for each in ends]
            views = self._log.states(names)
            for back, name in enumerate(names):
                steps = views[name].fields.get("captured", ()) if name in views else ()
                for step in steps:
                    run, _, number = step.rpartition("#")
                    session = self._resume_if_continued(turn, len(turn.chain) - back, run, int(number))
                    if session is not None:
                        return session
        return None

    def _resume_if_continued(self, turn: ModelTurn, length: int, run: str, number: int) -> CapturedSession | None:
        """Resume a run if a turn continues it after this step, and no other step came after it."""
        if run in self._live or self._log.states([f"step/{run}#{number + 1}"]):
            return None
        try:
            recording = self._log.recording(run)
        except NotAnswerable:  # its content expired
            return None
        last = last_turn(recording)
        if last is None or not (turn.follows or _continues(turn, length, last[1])):
            return None
        return self._resume_session(recording)

    def _resume_session(self, recording: Recording) -> CapturedSession:
        """Return a session that left memory, resumed from the log."""
        session = CapturedSession(self._taken_up(recording), recording, spool_of(recording))
        last = session.taken_up(recording, self._capturing.runtime.now_micros())
        self._waiting.pop(session.run, None)
        self._live[session.run] = session
        if last is not None:
            self._index(session, *last)
        return session

    def _make_room(self) -> None:
        """Let the sessions that were idle longest leave memory. The one that was used last stays."""
        while self._key_of is not None and len(self._live) > 1 and (
            len(self._live) > self._limits.live
            or sum(each.size for each in self._live.values()) > self._limits.live_bytes
        ):  # fmt: skip
            session = next(iter(self._live.values()))
            self._remove_session(session, self._key_of(session.spool, True))

    def _remove_session(self, session: CapturedSession, key: bytes) -> None:
        step = f"{session.run}#{session.number}"
        reply_id = "" if session.reply is None else session.reply.id
        for end in filter(None, (session.ends_at, reply_id)):
            self._log.observe(_end_entity(key, end), {"captured": [step]})
        if session.is_waiting:
            session.sink.flush()
            self._waiting[session.run] = None
        else:
            self._end(session)
        del self._live[session.run]
        self._forget(session)
        self._by_response = {each: other for each, other in self._by_response.items() if other is not session}
        self._earlier = {each: place for each, place in self._earlier.items() if place[0] is not session}

    def _begin(self, title: str, turn: ModelTurn | None, exchange: SpooledExchange, spool: str) -> CapturedSession:
        if (begun := self._begun.pop(exchange.at, None)) is not None:
            return begun
        head = self._head(title, exchange.at, spool, self._new_id())
        if turn is not None and (forked := self._parents.of(turn) or self._branch(turn)) is not None:
            return self._fork(forked, head, turn, spool)
        if turn is not None:
            head = replace(head, input={"messages": turn.messages}, state={"messages": []})
            texts = asked_first(turn.family, turn.messages)
            for session in sorted(self._live.values(), key=lambda each: -each.begun_at):
                if (position := session.call_for(texts)) is not None:
                    head = replace(head, caller=session.run, caller_step=session.number)
                    begun = CapturedSession(self._capturing.begin(head), head, spool)
                    session.began(position, begun.run, exchange.at)
                    return begun
        return CapturedSession(self._capturing.begin(head), head, spool)

    def _branch(self, turn: ModelTurn) -> ForkedTurn | None:
        """Return the earlier turn that a turn continues, of a session in memory; None if it continues no such turn."""
        for end in [turn.follows] if turn.follows else turn.chain[::-1]:
            session, number = self._earlier.get(end, (None, 0))
            if session is not None:
                recording = self._log.recording(session.run)
                return Parents([replace(recording, steps=recording.steps[:number])]).goes_on(turn)
        return None

    def _fork(self, forked: ForkedTurn, head: Recording, turn: ModelTurn, spool: str) -> CapturedSession:
        """Return a run that continues from a recorded turn."""
        parent = forked.parent
        # Before its first turn it diverges by its input.
        given: Any = {} if forked.step else {"input": {"messages": turn.messages}}
        patch = self._capturing.redactor()(patch_of(state_at(parent, forked.step), **given).tree)
        head = replace(
            parent, run=head.run, kind=CAPTURED, title=head.title, metadata=head.metadata, started_at=head.started_at,
            redacted=head.redacted, parent=parent.run, forked_at=forked.step, patch=patch,
            forks=tuple(each for each in parent.parted if each.at <= forked.step), steps=(), status="running",
            outcome="", output=None, failure=None, ended_at=0, hash="", flagged=False, pinned=False, retention_class="",
            caller="", caller_step=0, children={}, tags=head.tags, task="",
        )  # fmt: skip
        session = CapturedSession(self._capturing.begin(head), head, spool)
        session.forked(replace(head, steps=parent.steps[: forked.step]), forked)
        return session

    def _new_id(self) -> str:
        """Return the id of a new run: the one that is resumed, if it is the first."""
        if self._resumed_id and not self._log.states([run_entity(self._resumed_id)]):
            return self._resumed_id
        return self._capturing.runtime.new_id()

    def _head(self, title: str, at: int, spool: str, run: str) -> Recording:
        settings = {"capture": {**self._settings, "spool": spool}}
        return Recording(
            run=run, agent=self._agent, kind=self.kind, title=title, state={}, metadata=settings, started_at=at,
            redacted=self._is_redacting, tags=self._tags,
        )  # fmt: skip

    def _index(self, session: CapturedSession, turn: ModelTurn, reply: ModelReply | None) -> None:
        for end in filter(None, (session.ends_at, turn.follows)):
            self._earlier[end] = session, session.number - 1
        self._forget(session)
        session.ends_at = turn.chain[-1]
        self._by_end.setdefault(session.ends_at, []).append(session)
        if reply is not None and reply.id and turn.family in ("responses", "ollama"):
            self._by_response[reply.id] = session

    def _forget(self, session: CapturedSession) -> None:
        """Find a session no more by the end that it had so far."""
        there = self._by_end.get(session.ends_at, [])
        if session in there:
            there.remove(session)
            if not there:
                del self._by_end[session.ends_at]

    def _recover(self, spools: frozenset[str]) -> None:
        for recording, captured, spool in self._unfinished_runs(spools):
            session = CapturedSession(captured, recording, spool)
            last = session.taken_up(recording, self._capturing.runtime.now_micros())
            self._stored |= session.stored
            if not recording.steps:
                self._begun[recording.started_at] = session
            elif last is None:
                self._loose = session
            else:
                self._live[session.run] = session
                self._index(session, *last)
                self._make_room()

    def _unfinished_runs(self, spools: frozenset[str]) -> Iterator[tuple[Recording, CapturedRun, str]]:
        """Yield the open runs of these spools and those that are resumed, taken up; each with its spool."""
        log = self._log
        for row in reversed(log.runs(outcome="running", further=True)):
            recording = log.recording(row.run)
            spool = spool_of(recording) if recording.kind == self.kind else ""
            if spool in spools or (spool and {*self._tags} & {*recording.tags}):
                yield recording, self._taken_up(recording), spool

    def _taken_up(self, recording: Recording) -> CapturedRun:
        attempts = self._log.state(f"run/{recording.run}").fields.get("attempts", 1)
        return self._capturing.resume(recording, attempts + 1)


def _continues(turn: ModelTurn, length: int, reply: ModelReply | None) -> bool:
    """Return whether a turn continues a session whose last request, its first `length` messages, had this reply."""
    rest = turn.messages[length:]
    if not rest:
        return reply is None
    return is_of_the_model(rest[0]) and (reply is None or is_answered_by(turn, rest, reply))


def _end_entity(key: bytes, end: str) -> str:
    """Return the entity that names the last step of a session that left memory, by the end of its conversation."""
    return f"turn/{hmac.new(key, end.encode(), hashlib.sha256).hexdigest()[:32]}"
