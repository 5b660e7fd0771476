"""Step through a recording without code: its states, and the hashes computed from its content.

This is the replay of a run without code. A recording is intact if `chained` computes the hashes that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from refold.agents.journal.chain import broken, fork_hash, run_hash, start_hash, state_hash, step_hash
from refold.agents.journal.delta import following
from refold.agents.journal.record import Call, Plain, Recording, child_of
from refold.avro.errors import InputError


class ChainCheck(NamedTuple):
    """The result of checking a run's hashes.

    Attributes:
        steps: How many steps have a hash.
        broken: The numbers of the steps whose hash does not match the stored content.
        is_end_whole: Whether the run's own hash matches, if it has one.
    """

    steps: int
    broken: list[int]
    is_end_whole: bool

    @property
    def is_whole(self) -> bool:
        """Whether every hash matches the stored content."""
        return not self.broken and self.is_end_whole


def checked_chain(recording: Recording) -> ChainCheck:
    """Compute every hash of a run again, and compare it with the recorded one."""
    wrong = list(broken(recording))
    is_end_whole = bool(wrong) or not recording.hash or chained(recording).hash == recording.hash
    return ChainCheck(sum(step.is_committed for step in recording.steps), wrong, is_end_whole)


def states(recording: Recording) -> Iterator[Plain]:
    """Yield the state before the first step, and after each step. They share parts and must not be changed."""
    state = recording.state
    yield state
    for step in recording.steps:
        state = following(begun_with(recording, step.number, state), step.delta)
        yield state


def begun_with(recording: Recording, number: int, state: Plain) -> Plain:
    """Return the state at the start of a step: the state after the step before, with the changes of a fork between.

    Args:
        recording: The run.
        number: The number of the step.
        state: The state after the step before.
    """
    for fork in recording.parted:
        if fork.at == number - 1:
            state = following(state, fork.changes)
    return state


def state_at(recording: Recording, number: int) -> Plain:
    """Return the state after a step.

    Args:
        recording: The run.
        number: The step's number; 0 means before the first step.

    Raises:
        InputError: That step does not exist or did not end.
    """
    ended = 0
    for step in recording.steps:
        ended = step.number if step.is_committed else ended
    if not 0 <= number <= ended:
        raise InputError(f"run {recording.run} has no state after step {number}: its committed steps end at {ended}")
    return next(itertools.islice(states(recording), number, None))


def chained(recording: Recording) -> Recording:
    """Return the recording with all hashes computed from its content, and from that of its nested runs."""
    children = {run: chained(each) for run, each in recording.children.items()}
    recording = _with_children(recording, children)
    state = recording.state
    previous = start_hash(recording.agent, recording.input, recording.seed, state)
    before = state_hash(state)
    steps = []
    for step in recording.steps:
        for fork in recording.parted:
            if step.number == fork.at + 1:
                previous = fork_hash(previous, fork.patch)
        begun = begun_with(recording, step.number, state)
        before = before if begun is state else state_hash(begun)
        state = following(begun, step.delta)
        after = state_hash(state) if step.delta else before
        if step.is_committed:
            placed = msgspec.structs.replace(step, state_before=before, state_after=after, previous=previous)
            previous = step_hash(previous, placed)
            steps.append(msgspec.structs.replace(placed, hash=previous))
        else:
            steps.append(step)
        before = after
    end = run_hash(previous, recording.outcome, recording.output, recording.failure) if recording.outcome else ""
    return msgspec.structs.replace(recording, steps=tuple(steps), hash=end)


def unchained(recording: Recording) -> Recording:
    """Return the recording without the hashes that `chained` computes."""
    recording = _with_children(recording, {run: unchained(each) for run, each in recording.children.items()})
    steps = tuple(
        msgspec.structs.replace(step, state_before="", state_after="", previous="", hash="") for step in recording.steps
    )
    return msgspec.structs.replace(recording, steps=steps, hash="")


def _with_children(recording: Recording, children: dict[str, Recording]) -> Recording:
    """Return the recording with other nested runs, and with their hashes in the calls that began them."""
    if not children:
        return recording

    def call(each: Call) -> Call:
        child = children.get(child_of(each))
        if child is None or "hash" not in each.answer:
            return each
        return msgspec.structs.replace(each, answer={**each.answer, "hash": child.hash})

    steps = tuple(
        msgspec.structs.replace(step, attempts=tuple(
            msgspec.structs.replace(attempt, calls=tuple(map(call, attempt.calls))) for attempt in step.attempts
        ))
        for step in recording.steps
    )  # fmt: skip
    return msgspec.structs.replace(recording, steps=steps, children=children)
