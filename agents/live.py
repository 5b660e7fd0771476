"""Runs that are recorded in a log: begin, resume and fork them.

Everything that is recorded passes through the redactor, then through the vault, under the run's own key.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from refold.agents.effects.ledger import Ledger
from refold.agents.effects.log_entries import StartOf
from refold.agents.effects.order import Order
from refold.agents.journal.chain import start_hash
from refold.agents.journal.record import Plain, Recording, Step
from refold.agents.policy.decision_log import DecisionLog
from refold.agents.policy.guard import TAG, Guard, GuardedAnswers, GuardedSink, guard_of
from refold.agents.policy.rules import Policy
from refold.agents.recorder.answers import WORLD, Answers, ChildAnswers
from refold.agents.recorder.children import ChildCall, RunOptions
from refold.agents.recorder.context import Strays
from refold.agents.recorder.log_backend import LogBackend, read_again
from refold.agents.recorder.observations import Seal, run_entity
from refold.agents.recorder.run import Run
from refold.agents.recorder.run_backend import Nondeterminism
from refold.agents.recorder.run_sinks import LogSink, RunSink
from refold.agents.recorder.step_assembler import StepAssembler
from refold.agents.recordings.load import load
from refold.agents.redaction.redactor import RunRedactor, for_run
from refold.agents.redaction.tokens import fresh_key
from refold.agents.replay.memory_runs import in_memory
from refold.agents.replay.player import EndedRunAnswers, Resumer
from refold.agents.sampling import check_share, class_of
from refold.agents.supervise.gated_sink import GatedSink
from refold.agents.supervise.supervised import given_gate
from refold.agents.vault import ValueCipher, run_key
from refold.avro.errors import InputError
from refold.avro.observation import Link, Source
from refold.avro.shipped import shipped_types
from refold.streams.blobs.url import NO_STORE
from refold.streams.client import Log
from refold.streams.runtime_context import RuntimeContext

# For each type, a field that its earlier definitions did not have.
_RECORDED_TYPES = {"run": "caller_run", "step": "answered", "effect": "lease_ms"}
_CLOCKS_DIFFER_MS = 10 * 60 * 1000
# A source counts to 2^64. Each time a run is resumed, it continues in another range of 2^32 numbers.
_SEQ_OF_ATTEMPT = 1 << 32


class LiveChildren:
    """Creates the nested runs of a run in a log: in the log, or in memory if they ended. See recorder/children.py."""

    def __init__(
        self, live: LiveRuns, log: Log, runtime: RuntimeContext, vault: ValueCipher, head: Recording,
        redact: RunRedactor, start_of: StartOf, guard: Guard | None,
    ) -> None:  # fmt: skip
        """Set up the nested runs of one run.

        Args:
            live: Creates runs of the log.
            log: The log.
            runtime: Its clock and ids.
            vault: Seals contents.
            head: The run's head, as it is recorded.
            redact: The run's redactor.
            start_of: Where the run's effects may begin in each partition.
            guard: The guard of the run and of its nested runs.
        """
        self._live = live
        self._log = log
        self._runtime = runtime
        self._vault = vault
        self._head = head
        self._redact = redact
        self._start_of = start_of
        self._guard = guard

    def require_log(self, url: str) -> None:
        """As Children."""
        if url not in ("", self._log.port.url):
            raise InputError(
                f"run {self._head.run} is recorded in {self._log.port.url}, and so are its nested runs; "
                f"one was asked of {url}"
            )

    def begin(self, head: Recording, options: RunOptions, within: ChildAnswers, call: ChildCall) -> Run:
        """As Children."""
        parent = self._head
        head = msgspec.structs.replace(
            head, kind=head.kind or parent.kind, user=head.user or parent.user, redacted=parent.redacted,
            started_at=self._runtime.now_micros(),
        )  # fmt: skip
        attempt = 1
        if within.is_sought or options.is_named:
            recorded = self._log.states([run_entity(head.run)]).get(run_entity(head.run))
            if recorded is not None:
                within = self._already_begun(head, call, is_sought=within.is_sought)
                attempt = recorded.fields.get("attempts", 1) + 1
        if within.is_whole and within.recording is not None:
            return self._in_memory(within.recording, within.answers, call)
        if attempt > 1 and within.recording is not None:
            head = within.recording
        return self._live.child(
            head, options, self._redacting(), within.answers,
            _from_the_beginning if options.has_task else self._start_of,
            call, attempt, self._guard,
        )  # fmt: skip

    def _already_begun(self, head: Recording, call: ChildCall, *, is_sought: bool) -> ChildAnswers:
        """Return what is recorded of a nested run with that id, which this run began before its process ended.

        Raises:
            InputError: The recorded run is another one.
        """
        found = load(self._log, head.run, self._vault)
        if not is_sought or (found.caller, found.caller_step) != (head.caller, head.caller_step):
            raise InputError(f"run {head.run} is recorded already: give another id, or no id")
        if found.status != "ended":
            return ChildAnswers(Resumer(found), found)
        call.expect(found)
        return ChildAnswers(EndedRunAnswers(found), found, is_whole=True)

    def _in_memory(self, recording: Recording, answers: Answers, call: ChildCall) -> Run:
        def fields(entity: str, answer: Plain) -> Mapping[str, Any]:
            return read_again(self._log, entity, answer).shown()

        redact = self._redacting() if recording.redacted else None
        return in_memory(recording, answers, fields, redact, None, call=call).run

    def _redacting(self) -> RunRedactor:
        """Return a copy of the parent's redactor, which knows the secrets that the parent has seen so far."""
        return for_run(self._redact, fresh_key)  # fresh_key is not called: the parent's redactor has a key


class LiveRuns:
    """Creates the runs of one log."""

    def __init__(self, log: Log, runtime: RuntimeContext, vault: ValueCipher) -> None:
        self._log = log
        self._runtime = runtime
        self._vault = vault

    def begin(
        self, head: Recording, entry: str, redact: RunRedactor, share: float, strays: Strays, policy: Policy | None
    ) -> Run:
        """Begin a new run.

        Args:
            head: The run's head, as the agent's code gets it.
            entry: The name of its function.
            redact: The run's redactor.
            share: The share of successful runs to keep, in [0, 1].
            strays: What happens to tool calls outside of any run.
            policy: The rules for its calls.

        Raises:
            InputError: The share is invalid, or the log has no content store.
        """
        guard = None if policy is None else Guard(policy, head.started_at)
        shown = _redacted(head, redact)
        # The task is a part of the keys of the run's effects.
        given = msgspec.structs.replace(head, task=shown.task)
        return self._run(shown, entry, 1, redact, WORLD, share, given=given, strays=strays, guard=guard)

    def resume(
        self, recording: Recording, attempt: int, redact: RunRedactor, share: float, strays: Strays,
        policy: Policy | None,
    ) -> Run:  # fmt: skip
        """Resume a run that did not end or that failed.

        Args:
            recording: The run so far.
            attempt: How often the run was begun, including this time.
            redact: The run's redactor.
            share: The share of successful runs to keep, in [0, 1].
            strays: What happens to tool calls outside of any run.
            policy: The rules for its calls.

        Raises:
            InputError: The run cannot be resumed: it succeeded, it is nested, it was imported, or it was begun under a
                policy and none is given.
        """
        if recording.caller:
            raise InputError(
                f"run {recording.run} began in step {recording.caller_step} of run {recording.caller}: continue "
                "that run; it resumes this one when its code reaches it"
            )
        if recording.status == "ended" and recording.outcome == "succeeded":
            raise InputError(f"run {recording.run} succeeded; fork it to get another result (refold run fork)")
        if not recording.has_code:
            raise InputError(f"run {recording.run} was imported: there is no code that could continue it")
        under = next((tag.removeprefix(TAG) for tag in recording.tags if tag.startswith(TAG)), "")
        if under and policy is None:
            raise InputError(
                f"run {recording.run} was begun under the policy {under}: give guard=, with that policy or another, "
                "so that its calls are checked (refold run resume --guard FILE)"
            )
        guard = None if policy is None else guard_of(policy, recording)
        steps = recording.steps
        if steps and steps[-1].outcome == "failed":  # the step that failed is tried again; its attempts count
            steps = (*steps[:-1], _reopened(steps[-1]))
        answers = Resumer(msgspec.structs.replace(recording, steps=steps))
        return self._run(recording, "", attempt, redact, answers, share, strays=strays, guard=guard)

    def fork(
        self,
        head: Recording,
        entry: str,
        redact: RunRedactor,
        answers: Answers,
        policy: Policy | None,
        before: Recording,
    ) -> Run:
        """Fork a run.

        Args:
            head: The child's head, with its id, parent, forked_at and patch; everything else is the parent's.
            entry: The name of the agent's function.
            redact: The child's redactor.
            answers: The answers of its calls.
            policy: The rules for its calls.
            before: The parent up to the fork; a policy counts its calls as the child's.
        """
        guard = None if policy is None else guard_of(policy, before)
        return self._run(head, entry, 1, redact, answers, guard=guard)

    def fork_sink(
        self, head: Recording, entry: str, redact: RunRedactor
    ) -> tuple[LogSink, Callable[[Recording, RunOptions], LogSink]]:  # fmt: skip
        """Begin a child of a run in the log. Its steps are written to the sink, and not by a Run of this process.

        Args:
            head: The child's head.
            entry: The name of the agent's function.
            redact: The child's redactor.

        Returns:
            The child's sink, and a function that begins a nested run of the child from the head that its code gave.
        """

        def begin_child(given: Recording, options: RunOptions) -> LogSink:
            if self._log.states([run_entity(given.run)]):
                raise InputError(f"run {given.run} is recorded already: give another id, or no id")
            own = for_run(redact, fresh_key)  # fresh_key is not called: the child's redactor has a key
            shown = _child_shown(given, options, own)
            return self._begin_recording(shown, options.entry, 1, itertools.count(), own, options.sample)

        return self._begin_recording(head, entry, 1, itertools.count(), redact, 1), begin_child

    def child(
        self,
        head: Recording,
        options: RunOptions,
        redact: RunRedactor,
        answers: Answers,
        start_of: StartOf,
        call: ChildCall,
        attempt: int,
        guard: Guard | None,
    ) -> Run:
        """Begin or resume a nested run.

        Args:
            head: Its head; the recorded one if it is resumed.
            options: The arguments with which the code began it.
            redact: Its redactor.
            answers: The answers of its calls.
            start_of: Where its effects may begin in each partition.
            call: The parent's call that began it.
            attempt: How often it was begun, including this time.
            guard: The parent's guard.
        """
        shown = _child_shown(head, options, redact) if attempt == 1 else head
        return self._run(
            shown, options.entry, attempt, redact, answers, options.sample, strays=options.strays, start_of=start_of,
            given=msgspec.structs.replace(head, task=shown.task), call=call, guard=guard,
        )  # fmt: skip

    def captured(self, head: Recording, attempt: int, redact: RunRedactor) -> CapturedRun:
        """Begin or resume a run that is recorded from outside of the agent's code.

        Args:
            head: The run's head; if it is resumed, its recording.
            attempt: How often the run was begun, including this time.
            redact: The run's redactor.
        """
        seq = itertools.count((attempt - 1) * _SEQ_OF_ATTEMPT)
        shown = _redacted(head, redact) if attempt == 1 else head
        sink = self._begin_recording(shown, "", attempt, seq, redact, 1, is_at_once=True)
        return CapturedRun(self._log, shown, sink, seq, redact, partial(self._vault.seal, run_key(head.run)))

    def _run(
        self, head: Recording, entry: str, attempt: int, redact: RunRedactor, answers: Answers,
        share: float = 1, *, given: Recording | None = None, strays: Strays = "refuse",
        start_of: StartOf | None = None, call: ChildCall | None = None, guard: Guard | None = None,
    ) -> Run:  # fmt: skip
        """Create a run. head: as it is recorded. given: as the agent's code gets it."""
        seq = itertools.count((attempt - 1) * _SEQ_OF_ATTEMPT)
        if guard is not None and attempt == 1:
            head = msgspec.structs.replace(head, tags=(*head.tags, TAG + guard.policy.name))
        own = self._begin_recording(head, entry, attempt, seq, redact, share)
        sink: RunSink = own
        start_of = start_of or self._start_of(head, is_resumed=attempt > 1)
        ledger = self._ledger(redact, seq, start_of)
        children = LiveChildren(self, self._log, self._runtime, self._vault, head, redact, start_of, guard)
        backend = LogBackend(self._log, ledger, head.agent, head.run, seq)
        if guard is not None:
            decisions = DecisionLog(self._log, head, own, seq, partial(self._vault.seal, run_key(head.run)))
            answers = GuardedAnswers(answers, guard, head.run, self._runtime.now_micros, decisions)
            sink = GuardedSink(own, guard, head.run, redact)
        if (gate := given_gate()) is not None:
            sink = GatedSink(sink, gate, self._log.flush)
        chance = Nondeterminism(self._runtime.now_micros, self._runtime.new_id)
        return Run(
            given or head, answers=answers, sink=sink, backend=backend, chance=chance, redact=redact, strays=strays,
            children=children, call=call,
        )  # fmt: skip

    def _begin_recording(
        self, head: Recording, entry: str, attempt: int, seq: Iterator[int], redact: RunRedactor, share: float,
        *, is_at_once: bool = False,
    ) -> LogSink:  # fmt: skip
        """Begin the run in the log and return its sink. From then on the log has an entity with the run's id."""
        check_share(share)
        if not self._log.port.has_store:
            raise InputError(
                f"{self._log.port.url}: requests and responses of agents are often too large for a record, and this "
                "log has "
                f"no store of contents that this user may see; refold init creates one (refold acl shows the rights); "
                f"or {NO_STORE}"
            )
        self._have_types()
        folder = StepAssembler(
            redact, start_hash(head.agent, head.input, head.seed, head.state), head.state, life=attempt
        )
        seal = partial(self._vault.seal, run_key(head.run))
        sink = LogSink(
            self._log, head, entry, attempt, seq, folder, redact, seal, partial(_class_of, share), is_at_once=is_at_once
        )
        sink.begun()
        return sink

    def _ledger(self, redact: RunRedactor, seq: Iterator[int], start_of: StartOf) -> Ledger:
        """Return the run's own ledger, which records effects with the run as their source."""

        def source(order: Order) -> Source:
            return Source(order.agent, order.run, order.step.rpartition("#")[2], order.tool, next(seq))

        return Ledger(
            self._log, self._runtime.now_micros, self._runtime.new_id, keeper=self._vault, redact=redact,
            new_source=source, start_of=start_of,
        )  # fmt: skip

    def _start_of(self, head: Recording, *, is_resumed: bool) -> StartOf:
        """Return a function from a partition to the offset before which none of this run's effects was recorded."""
        if head.task:
            return _from_the_beginning
        port = self._log.port
        if not is_resumed:  # keys begin with the run's id, so nothing was recorded before its first observation

            @functools.cache
            def ends() -> Mapping[int, int]:
                return port.ends()

            return lambda partition: ends()[partition]
        entity = run_entity(head.run)

        def after_begin(partition: int) -> int:
            begun = next(port.entity_records(entity, port.ends()[port.partition_of(entity)]), None)
            # Times come from the brokers' clocks, which may differ among themselves.
            return 0 if begun is None else port.first_after(partition, begun.recorded_at - _CLOCKS_DIFFER_MS)

        return functools.cache(after_begin)

    def _have_types(self) -> None:
        """Register the shipped definitions of recorded types, if the log's own are older."""
        for name, field in _RECORDED_TYPES.items():
            if field not in self._log.types[name].fields:
                self._log.register(shipped_types()[name])


def _from_the_beginning(partition: int) -> int:
    return 0


class CapturedRun:
    """A run that is recorded from outside. Everything observed of it is passed to `sink`, and written at once."""

    def __init__(
        self, log: Log, head: Recording, sink: LogSink, seq: Iterator[int], redact: RunRedactor, seal: Seal
    ) -> None:
        self.id = head.run
        self.sink = sink
        self._log = log
        self._head = head
        self._seq = seq
        self._redact = redact
        self._seal = seal

    def observe(
        self, entity: str, patch: Mapping[str, Any], step: int, at: int, *, payloads: Mapping[str, Plain] | None = None
    ) -> str:
        """Record more of the run, caused by its last observation.

        Args:
            entity: The entity to observe.
            patch: Fields in clear.
            step: The step's number.
            at: When it happened, microseconds.
            payloads: Fields whose values are redacted and sealed, like all content of a run.

        Returns:
            The observation's id.
        """
        sealed = {name: self._seal(entity, name, self._redact(value)) for name, value in (payloads or {}).items()}
        return self._log.observe(entity, {**patch, **sealed}, **self._step_begin(step, at))

    def link(self, entity: str, relation: str, target: str, step: int, at: int) -> str:
        """Link an entity of the run to another one.

        Args:
            entity: The entity.
            relation: The name of the link.
            target: The other entity.
            step: The step's number.
            at: When it happened, microseconds.

        Returns:
            The observation's id.
        """
        return self._log.observe(entity, None, kind="link", link=Link(relation, target), **self._step_begin(step, at))

    def _step_begin(self, step: int, at: int) -> dict[str, Any]:
        source = Source(self._head.agent, self._head.run, str(step), "", next(self._seq))
        return {"source": source, "observed_at": at, "causes": [self.sink.last] if self.sink.last else []}


class CaptureRecorder:
    """Begins runs of one log that are recorded from outside of the agent's code."""

    def __init__(self, live: LiveRuns, redacting: Callable[[], RunRedactor], runtime: RuntimeContext) -> None:
        """Record into a log.

        Args:
            live: The log's runs.
            redacting: Returns a redactor for one run.
            runtime: The log's clock and ids.
        """
        self.runtime = runtime
        self._live = live
        self._redacting = redacting

    def redactor(self) -> RunRedactor:
        """Return a redactor for one run."""
        return self._redacting()

    def begin(self, head: Recording) -> CapturedRun:
        """Begin a new run."""
        return self._live.captured(head, 1, self._redacting())

    def resume(self, recording: Recording, attempt: int) -> CapturedRun:
        """Resume a run that did not end.

        Args:
            attempt: How often it was begun, including this time.
        """
        return self._live.captured(recording, attempt, self._redacting())


def _redacted(head: Recording, redact: RunRedactor) -> Recording:
    title, user, task, tags, given, state, metadata = redact.shown(
        [head.title, head.user, head.task, list(head.tags), head.input, head.state, head.metadata]
    )
    return msgspec.structs.replace(
        head, title=title, user=user, task=task, tags=tuple(tags), input=given, state=state, metadata=metadata
    )


def _child_shown(head: Recording, options: RunOptions, redact: RunRedactor) -> Recording:
    """Return the head of a nested run as it is recorded."""
    shown = _redacted(head, redact)
    # A task that was derived from the parent's reveals nothing, and must stay different for each child.
    return shown if options.has_task else msgspec.structs.replace(shown, task=head.task)


def _reopened(step: Step) -> Step:
    return msgspec.structs.replace(step, outcome="", delta=(), result=None, state_after="", hash="")


def _class_of(share: float, ended: Recording) -> str:
    return class_of(ended.run, ended.outcome, kind=ended.kind, is_flagged=ended.flagged, share=share)
