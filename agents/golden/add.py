"""Make a golden trace from a recorded run.

1. Unless `exact` is expected, attempts of a step from before the run was resumed in it are left out. Code that is run
   from the start would be answered by the failure that ended the process, and a write that the resumed process was
   answered from the ledger would count twice. With `exact` they stay: a replay copies them (replay/player.py), because
   they count as tries of the step.
2. The values of its reads are looked up in the log, because the file holds them.
3. The run is made portable, redacted if requested, and admitted: a run that cannot work as a test is refused.
4. The file is written. Then the run records that a golden trace was made of it, so that retention keeps it.

How a run is made portable:

1. `portable` leaves out what belongs to one log, one machine or one moment: the user, positions in the log (the `cut`
   of a read is empty), idempotency keys, tracebacks, times, durations. Answers to the code stay, `now` included.
2. The redactor first processes the run's input and answers, because a value with the name of a secret there is a secret
   everywhere. Then every tree passes through it. States pass as a whole: in an edit of a state the key is in a path,
   which a redactor by keys does not see. The edits are computed again from the redacted states.
3. `chained` (journal/self_replay.py) computes the rest, the hashes of states and the chain. So a file holds none of it,
   and a recording that was edited by hand is chained as it is.

The chain of a portable recording differs from the one in the log: it covers the redacted values, and reads without a
cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from refold.agents.golden.file import DefaultAnswer, Golden, Origin, is_exact
from refold.agents.golden.result import admitted
from refold.agents.journal.delta import edits
from refold.agents.journal.record import (
    Attempt,
    Call,
    Failure,
    Fork,
    Plain,
    RecordedRequest,
    Recording,
    Retry,
    Step,
    children_of,
)
from refold.agents.journal.self_replay import begun_with, chained, states
from refold.agents.recordings.values import Fields, with_values
from refold.agents.redaction.redactor import Redact, for_run
from refold.agents.redaction.tokens import fresh_key
from refold.agents.replay.player import attempts_before_resume
from refold.avro.errors import InputError, NotAnswerable


def portable(recording: Recording, redact: Redact | None = None) -> Recording:
    """Return the recording as a file holds it, chained.

    Args:
        recording: The run.
        redact: A redactor, if it is to be redacted.

    Raises:
        RedactionFailed: The redactor raised.
    """
    if redact is None:
        return chained(_Portable(_unchanged).recording(recording))
    redactor = for_run(redact, fresh_key)  # nobody needs the key again, because tokens are not changed later
    for run in recording.family:
        redactor.shown(run.input)
    for step in (step for run in recording.family for step in run.steps):
        for call in (call for attempt in step.attempts for call in attempt.calls):
            redactor.exchange(call.asked.request, [call.answer, call.failure and call.failure.message])
    return chained(_Portable(redactor).recording(recording))


def _unchanged(tree: Plain) -> Plain:
    return tree


class _Portable:
    """Converts the parts of a recording for a file."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def tree(self, tree: Plain) -> Plain:
        return self._redact(tree)

    def recording(self, given: Recording) -> Recording:
        raw = list(states(given))
        kept = [self.tree(each) for each in raw]
        begun = list(kept[:-1])
        parted = {each.at for each in given.parted}
        for index, step in enumerate(given.steps):
            if step.number - 1 in parted:
                begun[index] = self.tree(begun_with(given, step.number, raw[index]))
        steps = tuple(
            self.step(step, edits(before, after))
            for step, before, after in zip(given.steps, begun, kept[1:], strict=True)
        )

        def patch(at: int, patch: Plain) -> Plain:
            """Return a fork's patch. The edits of the state in it are computed again, too."""
            tree = self.tree(patch)
            if isinstance(tree, dict) and "state" in tree and at < len(begun):
                tree["state"] = list(edits(kept[at], begun[at]))
            return tree

        return msgspec.structs.replace(
            given, title=str(self.tree(given.title)), input=self.tree(given.input), state=kept[0], steps=steps,
            output=self.tree(given.output), failure=self.failure(given.failure),
            patch=patch(given.forked_at, given.patch),
            forks=tuple(Fork(at=each.at, patch=patch(each.at, each.patch)) for each in given.forks),
            metadata=self.tree(given.metadata), tags=tuple(map(str, self.tree(list(given.tags)))), user="",
            children={run: self.recording(each) for run, each in given.children.items()}, started_at=0, ended_at=0,
            flagged=False, pinned=False, retention_class="",
        )  # fmt: skip

    def step(self, step: Step, delta: tuple[list[Plain], ...]) -> Step:
        return Step(
            number=step.number, name=step.name, attempts=tuple(map(self.attempt, step.attempts)), delta=delta,
            result=self.tree(step.result), outcome=step.outcome,
        )  # fmt: skip

    def attempt(self, attempt: Attempt) -> Attempt:
        return Attempt(
            number=attempt.number, calls=tuple(map(self.call, attempt.calls)), failure=self.failure(attempt.failure),
            life=attempt.life, backoff_ms=attempt.backoff_ms,
        )  # fmt: skip

    def call(self, call: Call) -> Call:
        request, answer = call.asked, call.answer
        if request.kind == "read" and isinstance(answer, dict):
            answer = {**answer, "cut": ""}
        retries = (Retry(attempt=e.attempt, failure=self._failure(e.failure), backoff_ms=e.backoff_ms)
                   for e in call.retries)  # fmt: skip
        return Call(
            asked=RecordedRequest(
                kind=request.kind,
                name=request.name,
                request=self.tree(request.request),
                effect=request.effect,
                ignored=request.ignored,
                found_by=self.tree(request.found_by),
            ),
            answer=self.tree(answer),
            failure=self.failure(call.failure),
            retries=tuple(retries),
            branch=call.branch,
        )

    def failure(self, failure: Failure | None) -> Failure | None:
        return None if failure is None else self._failure(failure)

    def _failure(self, failure: Failure) -> Failure:
        return Failure(
            exception=failure.exception, message=str(self.tree(failure.message)), tool=failure.tool,
            input=self.tree(failure.input), output=self.tree(failure.output), retryable=failure.retryable,
            details=self.tree(failure.details),
        )  # fmt: skip


def golden_of_run(
    run: Recording, fields: Fields, *, name: str = "", entry: str = "", expect: Iterable[str] = (),
    description: str = "", known_bad: str = "", must_fail: str = "", answers: Mapping[str, Plain] | None = None,
    redact: Redact | None = None, redactor: str = "",
) -> Golden:  # fmt: skip
    """Return the golden trace of a run.

    Args:
        run: The run.
        fields: Looks up the values of its reads.
        name: The name of the golden trace.
        entry: The agent's function, module:function.
        expect: The expectations.
        description: For readers.
        known_bad: The error of the run, if it is kept because it was wrong.
        must_fail: Why today's code does not meet the expectations.
        answers: Answers to requests that were not recorded, by the name of a tool or model.
        redact: The redactor.
        redactor: The name of `redact`, if it is also applied to what agents do now.

    Raises:
        InputError: It could not work as a test.
        NotAnswerable: Content is gone.
    """
    expected = tuple(expect) or ("exact",)
    if not is_exact(expected):
        run = _since_resume(run)
    missing = [child for each in run.family for child in children_of(each.steps) if child not in each.children]
    if missing:
        raise NotAnswerable(f"run {run.run}: the recording of its nested run {missing[0]} is missing")
    if not entry:
        raise InputError(f"run {run.run} does not name its agent's function: name it with --entry module:function")
    return admitted(
        Golden(
            name=name or name_of(run), description=description, entry=entry, expect=expected,
            known_bad=known_bad, must_fail=must_fail, redact=redactor, recorded=Origin(run=run.run, hash=run.hash),
            answers=tuple(DefaultAnswer(name=key, answer=value) for key, value in (answers or {}).items()),
            run=portable(with_values(run, fields), redact),
        )
    )  # fmt: skip


def _since_resume(run: Recording) -> Recording:
    """Return a run without the attempts of its steps from before it was resumed in them. The rest count from 1."""
    steps = []
    for step in run.steps:
        since = step.attempts[len(attempts_before_resume(step)) :]
        numbered = (msgspec.structs.replace(each, number=number) for number, each in enumerate(since, 1))
        steps.append(msgspec.structs.replace(step, attempts=tuple(numbered)))
    children = {child: _since_resume(run.children[child]) for child in children_of(steps) if child in run.children}
    return msgspec.structs.replace(run, steps=tuple(steps), children=children)


def name_of(run: Recording) -> str:
    """Return the default name of a run's golden trace: its agent and the beginning of its id."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run.agent}-{run.run[:12]}").strip("-._")
    return words or "run"
