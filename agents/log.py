"""The log that refold.open returns to the author of an agent: everything of Log, and runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from refold.agents.recorded_log import RecordedLog
from refold.avro.errors import InputError
from refold.streams.defaults import OWNER_TIMEOUT_S
from refold.streams.open import open_as
from refold.streams.runtime_context import RuntimeContext

# The modules that runs need are imported on first use, so a log that is only observed and read opens without them.
if TYPE_CHECKING:
    from refold.agents.entry import Agent
    from refold.agents.journal.record import Plain, Recording
    from refold.agents.policy.guard import Guarding
    from refold.agents.policy.rules import Policy
    from refold.agents.recorder.context import Strays
    from refold.agents.recorder.run import Run
    from refold.agents.redaction.redactor import Redact, RunRedactor
    from refold.agents.replay.child_head import ForkChanges
    from refold.agents.replay.forked import Asker, ForkPolicy
    from refold.agents.replay.run import Replayed
    from refold.reducers.registered import Registered


class AgentLog(RecordedLog):
    """An open log; a context manager. RecordedLog has the methods that read recorded runs."""

    def run(
        self, agent: str, *, version: str = "", code_version: str = "", input: Any = None,
        state: Mapping[str, Any] | None = None, seed: int | None = None, task: str = "", title: str = "",
        user: str = "", kind: str = "", entry: str = "", tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None, id: str | None = None, resume: str | None = None,
        redact: Redact | None = None, sample: float = 1, strays: Strays = "refuse", guard: Guarding | None = None,
    ) -> Run:  # fmt: skip
        """Begin a run of an agent. Everything in it is recorded. A context manager.

        In the code of a run it begins a nested run, with the outer run's redactor (docs/AGENTS.md). Under `refold up`
        the supervisor gives id, resume and guard if none of them is given (docs/guides/supervise.md).

        Args:
            agent: The agent's name.
            version: The agent's version.
            code_version: The commit that it runs from.
            title, user, tags, metadata: More about the run, for people and for `runs`.
            input: The run's input. docs/AGENTS.md lists the types of values.
            state: The run's working memory at its start, of the same types.
            seed: For run.random, and to be passed to models.
            task: The beginning of the idempotency keys of the run's effects. It stays the same when the task is tried
                again in another run; empty: the run's id.
            kind: production, test, evaluation or one of your own.
            entry: Its function as module:function, for replays.
            id: The run's id; None for a generated one.
            resume: The id of a run to continue, that did not end or that failed. Its recorded arguments stay in effect.
            redact: A Redactor or a function that decides which parts of a JSON tree may be written (docs/REDACTION.md).
                A run that was begun with one cannot be resumed without one.
            sample: The share in [0, 1] of successful runs that are kept for the time of a success; the others are
                removed sooner (agents/sampling.py). Runs that do not succeed are kept for the time of their class.
            strays: What happens when a tool is called outside any run while this one is open in the process: "refuse"
                raises StrayCall; "adopt" records it as a call of this run, if no other run is open.
            guard: A policy, or the path of its file, for the run's tool and model calls (docs/guides/policy.md). A run
                that was begun with one cannot be resumed without one.

        Raises:
            InputError: An argument is invalid, the id is taken, or the run cannot be resumed.
        """
        from msgspec.structs import replace

        from refold.agents.policy.guard import policy_of
        from refold.agents.recorder.children import RunOptions
        from refold.agents.recorder.context import caller_of
        from refold.agents.recorder.observations import run_entity
        from refold.agents.recorder.requests import head_of
        from refold.agents.redaction.redactor import is_redacting
        from refold.agents.supervise.supervised import as_supervised

        caller = caller_of(agent, is_resumed=resume is not None)
        id, resume, guard = (id, resume, guard) if caller else as_supervised(self, id, resume, guard)
        if resume is not None:
            return self._resumed(agent, resume, redact, sample, strays, policy_of(guard))
        head = head_of(
            id or "", agent, version=version, code_version=code_version, kind=kind, task=task, title=title, user=user,
            seed=seed, input=input, state=state, tags=tags, metadata=metadata,
        )  # fmt: skip
        if caller is not None:
            if is_redacting(redact):
                raise InputError(
                    f"run {caller.id} records the input of its nested run: give redact= to the outer run, "
                    "and both use it"
                )
            if guard is not None:
                raise InputError(
                    f"run {caller.id} checks its nested runs by its own policy: give guard= to the outer run"
                )
            found: Run = caller.begin_child_run(head, RunOptions(entry, sample, strays, bool(id)), self.port.url)
            return found
        runtime = self._runtime
        if id and self.states([run_entity(id)]):
            raise InputError(f"run {id} is recorded already: continue it with resume=, or give another id")
        head = replace(head, run=id or runtime.new_id(), started_at=runtime.now_micros(), redacted=is_redacting(redact))
        return self._live.begin(head, entry, self._redacting(redact), sample, strays, policy_of(guard))

    def _resumed(
        self, agent: str, run: str, redact: Redact | None, sample: float, strays: Strays, policy: Policy | None
    ) -> Run:
        from refold.agents.replay.child_head import require_redactor

        recording = self.recording(run)
        if agent not in ("", recording.agent):
            raise InputError(f"run {run} is one of {recording.agent}, not of {agent}")
        require_redactor(recording, redact)
        begun = self.state(f"run/{run}").fields.get("attempts", 1)
        return self._live.resume(recording, begun + 1, self._redacting(redact), sample, strays, policy)

    def replay(
        self, run: str, agent: Agent | str | None = None, *, redact: Redact | None = None, confined: bool = False
    ) -> Replayed:
        """Run today's code against a recorded run: every call is answered from the recording, and the network is
        closed.

        See docs/REPLAY.md.

        Args:
            agent: The function, sync or async, or its name, found from this folder [the one that the run names
                (entry)].
            redact: The redactor that the run was recorded with.
            confined: Run it in a separate process, to which the kernel denies every socket and process (Linux). Another
                process must be able to find the function by its name.

        Returns:
            `is_same` is true if the code did the same. If not, `parting` and `escapes` say why.

        Raises:
            Unrecorded: The code requested what is not recorded.
            NetworkDenied: The code tried to use the network.
            InputError: There is no code, or the kernel refuses.
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
        """As `replay`, in a running event loop. A confined replay blocks the loop until it is done."""
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
        redact: Redact | None = None, guard: Guarding | None = None, stand_ins: Mapping[str, Any] | None = None,
    ) -> Run:  # fmt: skip
        """Fork a run: create a child that diverges from it after its step `at` (0: before the first).

        Calls before the fork are answered from the parent's recording. The parent does not change.

        Args:
            state: New values by path, such as `order.status`, or a function of the state.
            drop: Paths to remove from the state.
            input: The child's input instead of the parent's.
            results: By STEP/NAME: the answer of that call, or a Failure.
            arguments: Arguments for every call of a name, or for every `model` call.
            policy: How calls after the fork are answered. live: really make the call. recorded: use an equal request's
                recorded answer, else raise Unrecorded. asked: the same, but call `ask` instead of raising.
            allow: Names of the writes that may run ("observe" for observations). Any other write raises NotAllowed.
            ask: Returns the answer of a call that is not recorded, for the policy `asked`.
            version, code_version, entry, tags, id, redact, guard: As for `run`; the first three are the parent's if
                they are not given. The guard counts the parent's recorded calls.
            stand_ins: Answers of write tools by name, for calls that are not allowed and have no recorded answer.

        Returns:
            The child, with which the agent's code must now be run.

        Raises:
            InputError: The run has no code, no such step, or an argument is invalid.
        """
        from msgspec.structs import replace

        from refold.agents.policy.guard import policy_of
        from refold.agents.replay.child_head import ForkChanges
        from refold.agents.replay.forked import ForkAnswers
        from refold.agents.replay.patch import read_patch

        changes = ForkChanges(state, drop, input, results, arguments)
        parent, head, redacting = self._fork_head(run, at, changes, id, version, code_version, tags, redact)
        answers = ForkAnswers(parent, at, read_patch(head.patch), policy, allow=allow, ask=ask, stand_ins=stand_ins)
        before = replace(parent, steps=tuple(step for step in parent.steps if step.number <= at))
        return self._live.fork(head, entry or self._entry(run), redacting, answers, policy_of(guard), before)

    def continued(
        self, run: str, *, at: int, id: str, proof: str | None = None,
        state: Mapping[str, Any] | None = None, drop: Sequence[str] = (),
        arguments: Mapping[str, Mapping[str, Any]] | None = None, version: str | None = None, entry: str = "",
        tags: Iterable[str] = (), redact: Redact | None = None, guard: Guarding | None = None,
    ) -> Run:  # fmt: skip
        """Continue a run in a child, after its step `at`, with something changed.

        Unlike a fork, the child does the run's own work: it makes the run's writes, each once
        (agents/replay/forked.py).

        Args:
            proof: The id of a fork with the same changes. Until the first write, equal requests get its answers.
            state, drop, arguments, version, entry: As for `fork`.
            id, tags, redact, guard: As for `run`. The guard counts the run's calls up to the step.

        Raises:
            InputError: As `fork`; or the run is nested in another one.
        """
        from msgspec.structs import replace

        from refold.agents.policy.guard import policy_of
        from refold.agents.replay.child_head import ForkChanges
        from refold.agents.replay.forked import Continued

        changes = ForkChanges(state, drop, UNSET, None, arguments)
        parent, head, redacting = self._fork_head(run, at, changes, id, version, None, tags, redact)
        if parent.caller:
            raise InputError(f"run {run} began in run {parent.caller}: continue that run")
        head = replace(head, kind=parent.kind, task=parent.task or parent.run)
        answers = Continued(head, parent, at, None if proof is None else self.recording(proof))
        before = replace(parent, steps=parent.steps[:at])
        return self._live.fork(head, entry or self._entry(run), redacting, answers, policy_of(guard), before)

    def now_micros(self) -> int:
        """Return the time of this log's clock, microseconds since 1970."""
        return self._runtime.now_micros()

    def fork_confined(
        self, run: str, agent: Agent | str | None = None, *, at: int,
        state: Mapping[str, Any] | Callable[[Any], Any] | None = None, drop: Sequence[str] = (), input: Any = UNSET,
        results: Mapping[str, Any] | None = None, arguments: Mapping[str, Mapping[str, Any]] | None = None,
        version: str | None = None, code_version: str | None = None, tags: Iterable[str] = (), id: str,
        redact: Redact | None = None,
    ) -> None:  # fmt: skip
        """Fork as `fork` does, and run the agent in a process that the kernel confines (docs/REPLAY.md).

        The policy is `recorded`: calls after the fork are answered by the parent's recording and by `results`. The log
        records how the child ended. The other arguments are those of `fork`.

        Args:
            agent: As for a confined replay.
            id: The child's id.

        Raises:
            Departure: The code departed from the recording, or tried to reach outside.
            NotConfinable: The kernel refuses. Nothing was run or recorded.
        """
        from refold.agents.confined.replay import forked_confined
        from refold.agents.entry import entry_for
        from refold.agents.redaction.redactor import Redactor
        from refold.agents.replay.child_head import ForkChanges
        from refold.agents.replay.forked import ForkAnswers
        from refold.agents.replay.patch import read_patch

        entry = entry_for(agent) if callable(agent) else agent or self._required_entry(run)
        changes = ForkChanges(state, drop, input, results, arguments)
        parent, head, redacting = self._fork_head(run, at, changes, id, version, code_version, tags, redact)
        ForkAnswers(parent, at, read_patch(head.patch), "recorded")  # raises if this cannot be forked
        forked_confined(
            lambda: self._live.fork_sink(head, entry, redacting), entry, head, parent, self._runtime.now_micros,
            fields=self._fields, redact=redact, key=self._redaction_key() if isinstance(redact, Redactor) else None,
        )  # fmt: skip

    def _fork_head(
        self, run: str, at: int, changes: ForkChanges, id: str | None, version: str | None, code_version: str | None,
        tags: Iterable[str], redact: Redact | None,
    ) -> tuple[Recording, Recording, RunRedactor]:  # fmt: skip
        """Return the parent, the child's head, and the child's redactor."""
        from refold.agents.replay.child_head import child_head

        parent, redacting = self.recording(run), self._redacting(redact)
        child, now = id or self._runtime.new_id(), self._runtime.now_micros()
        head = child_head(parent, at, changes, redact, redacting, child, now, version, code_version, tags)
        return parent, head, redacting

    def agent_of(self, run: str) -> Agent:
        """Return the function that a run was begun with, by its recorded name. InputError if there is none."""
        from refold.agents.entry import agent_of

        return agent_of(self._required_entry(run), Path.cwd())

    def _required_entry(self, run: str) -> str:
        from refold.agents.entry import require_known

        entry = self._entry(run)
        if not entry:
            raise InputError(
                f"run {run} names no agent: give the function, or begin runs with entry=module:function; the "
                f"recording itself is shown by `refold run steps {run}`"
            )
        require_known(entry, Path.cwd())
        return entry

    def _entry(self, run: str) -> str:
        return str(self.state(f"run/{run}").fields.get("entry", ""))

    def _fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        from refold.agents.recorder.log_backend import read_again

        return read_again(self, entity, answer).shown()


def open_log(
    url: str | None = None,
    *,
    types: Iterable[str | os.PathLike[str]] = (),
    reducers: Iterable[Registered] = (),
    read_only: bool = False,
    owner_timeout_s: float = OWNER_TIMEOUT_S,
    config: Mapping[str, str] | None = None,
    worker: str | None = None,
    memory_bytes: int | None = None,
    runtime: RuntimeContext | None = None,
) -> AgentLog:
    """Open a log. A missing log is created, unless read_only is set.

    Args:
        url: file:PATH or kafka://HOST:PORT/PREFIX [REFOLD_LOG, else file:.refold].
        types: .avsc files, or folders of them, in addition to the shipped types or instead of them.
        read_only: Open it only for reading.
        reducers: Custom reducers to register in this process: a function, its name as module:function, or a module, for
            each function in it that has a refold_version (docs/TYPES.md).
        owner_timeout_s: How long to wait for the process that owns a `file:` log, or for Kafka's brokers; seconds.
        config: Settings of Kafka's clients, which override those in the file that REFOLD_KAFKA_CONFIG names.
        worker: The URL of a worker's pages [REFOLD_WORKER, else the workers of a Kafka log are found by their group].
        memory_bytes: RocksDB's memory if this process owns a `file:` log, in bytes [192 MiB]. Less is slower.
        runtime: Clock, ids and name of this process, settings of its snapshots and limits of a `file:` log, for tests.
    """
    return open_as(
        AgentLog, url, types=types, reducers=reducers, read_only=read_only, owner_timeout_s=owner_timeout_s,
        config=config, worker=worker, memory_bytes=memory_bytes, runtime=runtime,
    )  # fmt: skip
