"""The log as an agent's author holds it: what refold.open gives. Everything of Log, and runs."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET

from refold.avro.errors import InputError
from refold.streams.client import Log, RuntimeContext
from refold.streams.defaults import OWNER_TIMEOUT_S
from refold.streams.open import open_as
from refold.streams.point import When

# What runs need is imported where they are asked for: a log that is only observed and read opens without it.
if TYPE_CHECKING:
    from refold.agents.compare.divergence import Divergence
    from refold.agents.effects.ledger import Ledger
    from refold.agents.entry import Agent
    from refold.agents.journal.record import Plain, Recording
    from refold.agents.knew import Knowledge
    from refold.agents.live import Capturing, Live
    from refold.agents.policy.decision_log import ApprovalQuestion
    from refold.agents.policy.guard import Guarding
    from refold.agents.policy.rules import Policy
    from refold.agents.recorder.context import Strays
    from refold.agents.recorder.run import Run
    from refold.agents.recordings.find import RunList
    from refold.agents.redaction.redactor import Redact, RunRedactor
    from refold.agents.replay.forked import Asker, ForkPolicy
    from refold.agents.replay.run import Replayed
    from refold.agents.vault import ValueCipher
    from refold.reducers.registered import Registered


class ForkChanges(NamedTuple):
    """What a fork changes; see AgentLog.fork."""

    state: Mapping[str, Any] | Callable[[Any], Any] | None
    drop: Sequence[str]
    input: Any
    results: Mapping[str, Any] | None
    arguments: Mapping[str, Mapping[str, Any]] | None


class AgentLog(Log):
    """An open log; a context manager."""

    def run(
        self, agent: str, *, version: str = "", code_version: str = "", input: Any = None,
        state: Mapping[str, Any] | None = None, seed: int | None = None, task: str = "", title: str = "",
        user: str = "", kind: str = "", entry: str = "", tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None, id: str | None = None, resume: str | None = None,
        redact: Redact | None = None, sample: float = 1, strays: Strays = "refuse", guard: Guarding | None = None,
    ) -> Run:  # fmt: skip
        """Begin a run of an agent, recorded from here on; a context manager.

        version: of the agent; code_version: the commit it runs from. input: what it is started with; state: its working
        memory at the start; both of values that docs/AGENTS.md lists. seed: for run.random, and to be passed to models.
        task: what stays the same when the task is tried again in another run: the first part of its effects' keys; else
        the run's id. kind:
        production, test, evaluation or one's own. entry: its function as module:function, for replays. id: else a
        fresh one. resume: the id of a run that did not end, or failed, to go on with from where it stands; what it was
        begun with stands. redact: what of a JSON tree may be written, a Redactor or a function (docs/REDACTION.md); a
        run that was begun with one is not resumed without. sample: of the runs that succeed, the share in [0, 1] that
        is kept as long as a success is (agents/sampling.py); all others are. strays: what becomes of a tool that is
        called outside of every run while this one is open in the process: "refuse" (StrayCall), or "adopt": it is
        recorded as this run's, where no other run is open. guard: a policy, or the path of its file, that holds for the
        run's tool and model calls (docs/guides/policy.md); a run that was begun with one is not resumed without.

        In the code of a run it begins a run within that one, with its redactor (docs/AGENTS.md).
        """
        from msgspec.structs import replace

        from refold.agents.policy.guard import policy_of
        from refold.agents.recorder.children import RunOptions
        from refold.agents.recorder.context import caller_of
        from refold.agents.recorder.observations import run_entity
        from refold.agents.recorder.run_head import head_of
        from refold.agents.redaction.redactor import is_redacting

        caller = caller_of(agent, is_resumed=resume is not None)
        if resume is not None:
            return self._resumed(agent, resume, redact, sample, strays, policy_of(guard))
        head = head_of(
            id or "", agent, version=version, code_version=code_version, kind=kind, task=task, title=title, user=user,
            seed=seed, input=input, state=state, tags=tags, metadata=metadata,
        )  # fmt: skip
        if caller is not None:
            if is_redacting(redact):
                raise InputError(
                    f"run {caller.id} records what the run within it is given: give redact= to that one, "
                    "and both have it"
                )
            if guard is not None:
                raise InputError(f"run {caller.id} holds the runs within it to its own policy: give guard= to that one")
            found: Run = caller.begin_within(head, RunOptions(entry, sample, strays, bool(id)), self.port.url)
            return found
        around = self._around
        if id and self.states([run_entity(id)]):
            raise InputError(f"run {id} is recorded already: go on with it by resume=, or give another id")
        head = replace(head, run=id or around.new_id(), started_at=around.now_micros(), redacted=is_redacting(redact))
        return self._live.begin(head, entry, self._redacting(redact), sample, strays, policy_of(guard))

    def _resumed(
        self, agent: str, run: str, redact: Redact | None, sample: float, strays: Strays, policy: Policy | None
    ) -> Run:
        recording = self.recording(run)
        if agent not in ("", recording.agent):
            raise InputError(f"run {run} is one of {recording.agent}, not of {agent}")
        _check_redacting(recording, redact)
        begun = self.state(f"run/{run}").fields.get("attempts", 1)
        return self._live.resume(recording, begun + 1, self._redacting(redact), sample, strays, policy)

    def replay(
        self, run: str, agent: Agent | str | None = None, *, redact: Redact | None = None, confined: bool = False
    ) -> Replayed:
        """Run today's code against a recorded run: answered from the recording, with the network closed off.

        agent: the function, sync or async, or its name; else the one that the run names (entry); names are looked up
        from this folder. redact: as the run was recorded with. confined: in a process of its own, to which the kernel
        denies every socket and process (Linux); the function has to be one that another process finds by its name.
        Whether it did the same is `is_same`; where not, `parting` and `escapes` say why. Unrecorded where it asked for
        what is not recorded, NetworkDenied where it reached for the network, InputError where there is no code, or
        where the kernel refuses; docs/REPLAY.md.
        """
        if confined:
            return self._confined(run, agent, redact)
        from refold.agents.replay.run import replayed

        recording = self.recording(run)
        redacting = None if redact is None else self._redacting(redact)
        return replayed(self._agent(run, agent), recording, fields=self._fields, redact=redacting)

    async def replay_async(
        self, run: str, agent: Agent | str | None = None, *, redact: Redact | None = None, confined: bool = False
    ) -> Replayed:
        """As `replay`, in an event loop that runs; a confined one holds the loop up until it is done."""
        if confined:
            return self._confined(run, agent, redact)
        from refold.agents.replay.run import replayed_async

        recording = self.recording(run)
        redacting = None if redact is None else self._redacting(redact)
        return await replayed_async(self._agent(run, agent), recording, fields=self._fields, redact=redacting)

    def _confined(self, run: str, agent: Agent | str | None, redact: Redact | None) -> Replayed:
        from refold.agents.confined.replay import replayed_confined
        from refold.agents.entry import entry_for
        from refold.agents.redaction.redactor import Redactor

        recording = self.recording(run)
        entry = entry_for(agent) if callable(agent) else agent or self._required_entry(run)
        key = self._redaction_key() if isinstance(redact, Redactor) else None
        return replayed_confined(entry, recording, fields=self._fields, redact=redact, key=key)

    def _agent(self, run: str, agent: Agent | str | None) -> Agent:
        from refold.agents.entry import agent_of

        return agent_of(agent, Path.cwd()) if isinstance(agent, str) else agent or self.agent_of(run)

    def fork(
        self, run: str, *, at: int, state: Mapping[str, Any] | Callable[[Any], Any] | None = None,
        drop: Sequence[str] = (), input: Any = UNSET, results: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Mapping[str, Any]] | None = None, policy: ForkPolicy = "live",
        allow: Collection[str] = (), ask: Asker | None = None, version: str | None = None,
        code_version: str | None = None, entry: str = "", tags: Iterable[str] = (), id: str | None = None,
        redact: Redact | None = None, guard: Guarding | None = None,
    ) -> Run:  # fmt: skip
        """A child of a run, which parts from it behind its step `at` (0: before the first); a run to be driven.

        What lies before comes from the parent's recording. What is changed: state (values by path, as `order.status`,
        or a function of the state), drop (paths to be gone), input, results (by STEP/NAME: what that call is answered
        with, or a Failure), arguments (of every call of that name, or of every `model` call), and the code that the
        child is driven with. What comes after goes by policy: live; recorded (an equal request's answer, else
        Unrecorded); asked (the same, else `ask` is called). What writes does not run unless its name is in `allow`
        ("observe" for observations): NotAllowed. The parent stands as it stood. guard: as for `run`; what stands of the
        parent counts.
        """
        from msgspec.structs import replace

        from refold.agents.policy.guard import policy_of
        from refold.agents.replay.forked import Forked
        from refold.agents.replay.patch import read_patch

        changes = ForkChanges(state, drop, input, results, arguments)
        parent, head, redacting = self._fork_head(run, at, changes, id, version, code_version, tags, redact)
        answers = Forked(parent, at, read_patch(head.patch), policy, allow=allow, ask=ask)
        before = replace(parent, steps=tuple(step for step in parent.steps if step.number <= at))
        return self._live.fork(head, entry or self._entry(run), redacting, answers, policy_of(guard), before)

    def fork_confined(
        self, run: str, agent: Agent | str | None = None, *, at: int,
        state: Mapping[str, Any] | Callable[[Any], Any] | None = None, drop: Sequence[str] = (), input: Any = UNSET,
        results: Mapping[str, Any] | None = None, arguments: Mapping[str, Mapping[str, Any]] | None = None,
        version: str | None = None, code_version: str | None = None, tags: Iterable[str] = (), id: str,
        redact: Redact | None = None,
    ) -> None:  # fmt: skip
        """Make a child as `fork` does, and run the agent in a process that the kernel confines (docs/REPLAY.md).

        Its policy is `recorded`: what comes after the fork is answered by the parent's recording and by `results`.
        agent: as for a confined replay. id: the child's, by which the log has how it ended. Departure where the code
        left the recording or reached out. NotConfinable where the kernel refuses; then nothing was run or recorded.
        """
        from refold.agents.confined.fork import forked_confined
        from refold.agents.entry import entry_for
        from refold.agents.redaction.redactor import Redactor
        from refold.agents.replay.forked import Forked
        from refold.agents.replay.patch import read_patch

        entry = entry_for(agent) if callable(agent) else agent or self._required_entry(run)
        changes = ForkChanges(state, drop, input, results, arguments)
        parent, head, redacting = self._fork_head(run, at, changes, id, version, code_version, tags, redact)
        Forked(parent, at, read_patch(head.patch), "recorded")  # refuses what could not be forked
        forked_confined(
            lambda: self._live.fork_sink(head, entry, redacting), entry, head, parent, self._around.now_micros,
            fields=self._fields, redact=redact, key=self._redaction_key() if isinstance(redact, Redactor) else None,
        )  # fmt: skip

    def _fork_head(
        self, run: str, at: int, changes: ForkChanges, id: str | None, version: str | None, code_version: str | None,
        tags: Iterable[str], redact: Redact | None,
    ) -> tuple[Recording, Recording, RunRedactor]:  # fmt: skip
        """The parent, the child's head, and what redacts the child."""
        from msgspec.structs import replace

        from refold.agents.journal.self_replay import state_at
        from refold.agents.redaction.redactor import is_redacting
        from refold.agents.replay.patch import patch_of

        parent = self.recording(run)
        if not parent.has_code:
            raise InputError(f"run {run} was imported: there is no code that a fork of it could run")
        _check_redacting(parent, redact)
        redacting = self._redacting(redact)
        changed = patch_of(state_at(parent, at), **changes._asdict())
        head = replace(
            parent, run=id or self._around.new_id(), kind="fork", task="", parent=run, forked_at=at,
            patch=_patch_shown(changed.tree, redacting), forks=tuple(each for each in parent.parted if each.at <= at),
            version=parent.version if version is None else version,
            code_version=parent.code_version if code_version is None else code_version, tags=tuple(tags),
            started_at=self._around.now_micros(), ended_at=0, steps=(), status="running", outcome="", output=None,
            failure=None, hash="", flagged=False, pinned=False, retention_class="", redacted=is_redacting(redact),
            caller="", caller_step=0, children={},
        )  # fmt: skip
        return parent, head, redacting

    def agent_of(self, run: str) -> Agent:
        """The function that a run was begun with, by the name that is recorded. InputError where there is none."""
        from refold.agents.entry import agent_of

        return agent_of(self._required_entry(run), Path.cwd())

    def _required_entry(self, run: str) -> str:
        from refold.agents.entry import require_known

        entry = self._entry(run)
        if not entry:
            raise InputError(
                f"run {run} names no agent: give the function, or begin runs with entry=module:function; the "
                f"recording alone is gone through by `refold run steps {run}`"
            )
        require_known(entry, Path.cwd())
        return entry

    def _entry(self, run: str) -> str:
        return str(self.state(f"run/{run}").fields.get("entry", ""))

    def _fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        from refold.agents.recorder.log_backend import read_again

        return read_again(self, entity, answer).shown()

    def recording(self, run: str, at: When = None) -> Recording:
        """A run as it stands recorded, now or at a point. UnknownEntity; Expired where its content is gone."""
        from refold.agents.recordings.load import load

        return load(self, run, self.vault, at)

    def runs(
        self, *, since: dt.datetime | str | None = None, until: dt.datetime | str | None = None, text: str = "",
        tool: str = "", error: str = "", outcome: str = "", agent: str = "", user: str = "", tag: str = "",
        parent: str = "", flagged: bool = False, model: str = "", usage: bool = False, limit: int | None = None,
        at: When = None,
    ) -> RunList:  # fmt: skip
        """The runs of agents, the newest first, as `refold runs` finds them: all that is asked for has to hold.

        since, until: begun then or later, then or before; aware datetimes or RFC 3339 texts. text: in whose input,
        output, messages, calls or results this stands. tool: that called it. error: that failed, or had to try again,
        with this in an error's class or message. outcome: succeeded, failed, cancelled, timed_out, unknown or running.
        parent: that are forks of this run. model: that asked a model with this in its name. usage: rows say what their
        model calls took, for which their steps are read. limit: at most the newest so many. at: as they stood at a
        point. What could not be read is named in the answer (unread, damaged). InputError.
        """
        from refold.agents.recordings.find import Wanted, find, time_of

        wanted = Wanted(
            time_of(since, "since"), time_of(until, "until"), agent, outcome, user, tag, parent, flagged, tool, error,
            text, model, usage,
        )  # fmt: skip
        return find(self, self.vault, wanted, limit, at)

    def compare(self, a: str, b: str, *, exact: bool = False) -> Divergence | None:
        """The first place where two recorded runs part, and why; None where they never do.

        exact: clock, randomness, fresh ids and points of reading count as well; docs/COMPARE.md.
        """
        from refold.agents.compare.compare import compare

        return compare(self.recording(a), self.recording(b), exact=exact)

    def knew(self, agent: str, at: When = None, *, run: str | None = None, every: bool = False) -> Knowledge:
        """What an agent had read by a moment, beside what the log held then, and what tools and models answered to it.

        Of each entity the latest read and of each question the last answer, or every one; of one run, or of all. By a
        time, what came until then; docs/COMPARE.md.
        """
        from refold.agents.knew import knew

        return knew(self, self.vault, agent, at, run=run, every=every)

    def questions(self, *, all_too: bool = False) -> list[ApprovalQuestion]:
        """What policies ask people about calls of runs, the oldest first; all_too: also what has an answer."""
        from refold.agents.policy.decision_log import questions

        return questions(self, self.vault.open, all_too=all_too)

    def answer(self, question: str, *, is_approved: bool, by: str, reason: str = "") -> None:
        """Answer such a question, once. InputError where there is none of that id that waits."""
        from refold.agents.policy.decision_log import answer

        answer(self, question, self._around.now_micros(), is_approved=is_approved, by=by, reason=reason)

    @cached_property
    def vault(self) -> ValueCipher:
        """What seals the content of runs, and opens it: with the log's key ring (agents/keys/choose.py)."""
        from refold.agents.keys.choose import vault_of

        return vault_of(self, os.environ)

    def close(self) -> None:
        """Flush and let go of the log, and of its key ring."""
        try:
            super().close()
        finally:
            if "vault" in self.__dict__:
                self.vault.close()

    def capturing(self, redact: Redact | None = None) -> Capturing:
        """For what records runs from outside of an agent's code (agents/capture). redact: as for `run`."""
        from refold.agents.live import Capturing

        return Capturing(self._live, lambda: self._redacting(redact), self._around)

    def _redacting(self, redact: Redact | None) -> RunRedactor:
        """What redacts one run of this log; a Redactor without a key of its own has the log's."""
        from refold.agents.redaction.redactor import as_of_run, for_run, unredacted

        return as_of_run(unredacted) if redact is None else for_run(redact, self._redaction_key)

    def _redaction_key(self) -> bytes:
        from refold.agents.redaction.tokens import kept_key
        from refold.agents.vault import Vault

        vault = self.vault
        return kept_key(vault.ring if isinstance(vault, Vault) else None, os.environ)

    @cached_property
    def effects(self) -> Ledger:
        """What write tools did and may have done: to be listed, settled and compensated (docs/EFFECTS.md)."""
        from refold.agents.effects.ledger import Ledger

        return Ledger(self, self._around.now_micros, self._around.new_id, keeper=self.vault)

    @cached_property
    def _live(self) -> Live:
        from refold.agents.live import Live

        return Live(self, self._around, self.vault)


def _check_redacting(recording: Recording, redact: Redact | None) -> None:
    """What was kept out of a run is not written by whoever goes on with it, unless that is said."""
    if recording.redacted and redact is None:
        raise InputError(
            f"run {recording.run} was recorded through a redactor, and what goes on with it would be written in clear: "
            "give the one it was recorded through by redact= (--redact, or --redact module:function); to write in "
            "clear all the same, give refold.agents.redaction.redactor:unredacted"
        )


def _patch_shown(patch: Plain, redact: RunRedactor) -> Plain:
    """A fork's patch as it is recorded: in its edits of the state names stand in paths."""
    from refold.agents.redaction.edits import redacted_edits

    shown = redact.shown(patch)
    return {**shown, "state": redacted_edits(patch["state"], redact.shown)} if "state" in patch else shown


def open_log(
    url: str | None = None,
    *,
    types: Iterable[str | os.PathLike[str]] = (),
    reducers: Iterable[Registered] = (),
    read_only: bool = False,
    owner_timeout_s: float = OWNER_TIMEOUT_S,
    config: Mapping[str, str] | None = None,
    worker: str | None = None,
    around: RuntimeContext | None = None,
) -> AgentLog:
    """Open a log; one that is not there is made, unless read_only.

    url: file:PATH or kafka://HOST:PORT/PREFIX; without one REFOLD_LOG, else file:.refold. types: .avsc files, or
    folders of them, beside or instead of the shipped ones. reducers: custom reducers to register in this process: a
    function, its name as module:function, or a module and each function in it that has a refold_version
    (docs/TYPES.md). owner_timeout_s: how long to wait for the process that owns a `file:` log, or for Kafka's brokers.
    config: settings of Kafka's clients, over those in the file that
    REFOLD_KAFKA_CONFIG names. worker: the URL of a worker's pages, else REFOLD_WORKER's; without one the workers of a
    Kafka log are found by their group. around: clock, ids and name of this process, for tests.
    """
    return open_as(
        AgentLog, url, types=types, reducers=reducers, read_only=read_only, owner_timeout_s=owner_timeout_s,
        config=config, worker=worker, around=around,
    )  # fmt: skip
