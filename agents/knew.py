"""The knowledge of an agent at a moment: the entities that it had read, as it read them, and the answers it had got.

1. `at` is a time on the agent's own clock, or a position in the log (a marker, a cut, run:ID#STEP, now). With a time, a
   read counts if it was made by then; it is recorded in its step's observations, which may be later. With a position, a
   read counts if its step's observation is before the position.
2. For each entity, the latest read by then is returned, or every one.
3. The state that was read is rebuilt at the recorded point, and checked against the recorded state hash. Either the
   values are exactly the ones read, or an error is raised.
4. It is compared with the entity as the log held it at `at`, field by field. A read is stale if the log had newer
   observations of the entity: either already when it was read (then the agent read at an older point, or its reader
   lagged), or only by `at` (late observations, and corrections).
5. Answers of tools and models count as reads do: with a time, those received by then; with a position, those whose step
   is before it. For equal requests the last answer is returned, or every one.

How the recorded answers are read:

1. A step's journal has the calls of each attempt, with the request and the result: an answer or a failure. Calls of a
   failed attempt count too, because the agent knows their answers.
2. For an imported conversation, the step names its tool calls, and the results are in their actions.
3. An answer counts from the time at which it was received: the call's start plus its duration.
4. Steps are read in order, run by run, because the body of a request may continue an earlier one's.
5. If a step's content has expired, is sealed and no key here opens it, or is damaged, the step is listed with the
   reason. The others are returned.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from refold.agents.journal.difference import Difference, differences
from refold.agents.journal.record import Call
from refold.agents.journal.repeated_bodies import BodyReader
from refold.agents.recorder.log_backend import read_again
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.imported import action_call, action_names
from refold.agents.recordings.load import step_of
from refold.agents.vault import ValueCipher
from refold.avro.errors import CorruptionError, InputError, NotAnswerable, UnknownEntity, ValidationError
from refold.avro.times import datetime_micros, parse_time
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.point import Point, When
from refold.streams.view import EntityView


class ReceivedAnswer(NamedTuple):
    """One answer.

    Attributes:
        place: The position of its call in the attempt, counted from 1.
        at: When it was received, in microseconds since 1970.
    """

    run: str
    step: int
    attempt: int
    place: int
    at: int
    call: Call

    @property
    def question(self) -> str:
        """The hash of the request; it is the same for equal requests."""
        return self.call.asked.hash


class UnreadStep(NamedTuple):
    """A step whose answers cannot be read, and why."""

    run: str
    step: int
    why: str


def answers_in(
    log: Log, vault: ValueCipher, steps: Iterable[EntityView], cut: Cut
) -> tuple[list[ReceivedAnswer], list[UnreadStep]]:
    """Return the answers in some steps, in the order in which they were received.

    Args:
        log: The log of the steps.
        vault: Decrypts their content.
        steps: Views of entities of the type step.
        cut: The point at which the actions of imported steps are read.

    Returns:
        The answers, and the steps whose content cannot be read.
    """
    found: list[ReceivedAnswer] = []
    missing: list[UnreadStep] = []
    bodies: dict[str, BodyReader] = {}
    for run, number, fields in sorted((_placed(Fields(view, vault)) for view in steps), key=lambda each: each[:2]):
        try:
            found += _of_step(log, vault, fields, run, number, cut, bodies.setdefault(run, BodyReader()))
        except (NotAnswerable, CorruptionError) as error:
            missing.append(UnreadStep(run, number, str(error)))
    return sorted(found, key=lambda each: (each.at, each.run, each.step, each.attempt, each.place)), missing


def last_answers(found: Iterable[ReceivedAnswer]) -> list[ReceivedAnswer]:
    """Return the last answer to each request, in the order in which they were received."""
    last = {(each.call.asked.kind, each.question): each for each in found}
    return sorted(last.values(), key=lambda each: (each.at, each.run, each.step, each.attempt, each.place))


def _placed(fields: Fields) -> tuple[str, int, Fields]:
    return fields.plain("run", ""), fields.plain("position", 0), fields


def _of_step(
    log: Log, vault: ValueCipher, fields: Fields, run: str, number: int, cut: Cut, bodies: BodyReader
) -> Iterator[ReceivedAnswer]:
    if names := [] if fields.plain("journal") else action_names(fields):
        actions = log.states(names, cut)
        calls = [action_call(Fields(actions[name], vault), synthetic=False) for name in names if name in actions]
        yield from _answers(run, number, 1, calls)
        return
    for attempt in step_of(number, fields, None, bodies).attempts:
        yield from _answers(run, number, attempt.number, attempt.calls)


def _answers(run: str, number: int, attempt: int, calls: Iterable[Call]) -> Iterator[ReceivedAnswer]:
    for place, call in enumerate(calls, 1):
        if call.asked.kind in ("tool", "model", "run"):
            yield ReceivedAnswer(run, number, attempt, place, call.started_at + round(call.duration_ms * 1000), call)


STEPS_AT_ONCE = 64


class RecordedRead(NamedTuple):
    """One recorded read.

    Attributes:
        at: When the agent read the entity, in microseconds since 1970; 0 if that is not recorded.
        observations: The ids of the recorded observations, in hex.
        version: The version of the entity; None if none was recorded.
    """

    entity: str
    run: str
    step: int
    at: int
    state_hash: str
    version: int | None
    cut: str
    observations: tuple[str, ...]


class KnownEntity(NamedTuple):
    """An entity as it was read, and as the log held it.

    Attributes:
        known: The entity as it was read.
        held: The entity as the log held it at the given moment; None if the log had no observation of it then.
        newer_then, newer_by: How many more observations of it the log had when it was read, and at the moment.
        differing: The fields (JSON form) whose value in the log differed, with the known value on the left.
    """

    read: RecordedRead
    known: EntityView
    held: EntityView | None
    newer_then: int
    newer_by: int
    differing: tuple[Difference, ...]

    @property
    def is_stale(self) -> bool:
        """Whether the log had more observations of the entity, when it was read or at the given moment."""
        return self.newer_then > 0 or self.newer_by > 0


class Knowledge(NamedTuple):
    """The reads of an agent and the answers it had received by a point, in order of time.

    Attributes:
        unread: The steps whose answers cannot be read.
    """

    point: Point
    reads: tuple[KnownEntity, ...]
    answers: tuple[ReceivedAnswer, ...] = ()
    unread: tuple[UnreadStep, ...] = ()


def knew(
    log: Log, vault: ValueCipher, agent: str, at: When = None, *, run: str | None = None, step: int | None = None,
    every: bool = False,
) -> Knowledge:  # fmt: skip
    """Return what an agent knew by a moment.

    Args:
        log: The log.
        vault: Decrypts contents.
        agent: The agent's name.
        at: The moment: a time, or a position in the log.
        run: Only what it knew in that run, and what the run's parents knew before it diverged from them.
        step: Only what it read and received in the step of the run with this number; no other step is read.
        every: Return all reads and answers, not only the latest read of each entity and the last answer to each
            request.

    Raises:
        UnknownEntity: The log has no step of the agent, or no such run.
        NotAnswerable: A state that was read is no longer available.
    """
    if step is not None and run is None:
        raise InputError("step: name the run of the step too")
    micros = _time(at)
    point = log.point(at)
    last = log.point().cut if micros is not None else point.cut
    if step is None:
        steps = list(_steps(log, last, agent, run))
    else:
        steps = list(log.states([f"step/{run}#{step}"], last).values())
    found = [each for each in _reads(steps) if micros is None or each.at <= micros]
    found.sort(key=lambda each: (each.at, each.run, each.step))
    if not every:
        latest = {each.entity: each for each in found}
        found = sorted(latest.values(), key=lambda each: (each.at, each.run, each.step))
    held = log.states(dict.fromkeys(each.entity for each in found), point.cut)
    known = tuple(_known_entity(log, each, held.get(each.entity), point.cut) for each in found)
    answers, unread = answers_in(log, vault, steps, last)
    answers = [each for each in answers if micros is None or each.at <= micros]
    return Knowledge(point, known, tuple(answers if every else last_answers(answers)), tuple(unread))


def _time(at: When) -> int | None:
    """Return the moment in microseconds if it is a time; None if it is a position."""
    if isinstance(at, dt.datetime):
        return datetime_micros(at) if at.tzinfo is not None else None
    if not isinstance(at, str):
        return None
    try:
        return parse_time(at.strip(), "WHEN")
    except ValidationError:
        return None


def _steps(log: Log, cut: Cut, agent: str, run: str | None) -> Iterator[EntityView]:
    if run is not None:
        yield from (each for each in _of_run(log, cut, run, None) if each.fields.get("agent") == agent)
        return
    if "step" not in {version.definition.name for version in log.port.registry}:
        raise UnknownEntity(f"{agent}: no run is recorded in this log yet")
    view = log.rebuild(cut, types=["step"])
    agents = set()
    for name in view:
        found = view[name]
        agents.add(found.fields.get("agent", ""))
        if found.fields.get("agent") == agent:
            yield found
    if agent not in agents:
        known = ", ".join(sorted(agents - {""})[:8]) or "none"
        raise UnknownEntity(f"{agent}: this log has no step of this agent by then; it has steps of {known}")


def _of_run(log: Log, cut: Cut, run: str, last: int | None) -> Iterator[EntityView]:
    """Yield the steps of a run up to number `last`, after those of its parents."""
    begun = log.states([f"run/{run}"], cut).get(f"run/{run}")
    if begun is None:
        raise UnknownEntity(f"run/{run}: this log has no such run by then; `refold runs` lists the runs")
    forked_at = begun.fields.get("forked_at_step", 0)
    if forked_at and begun.fields.get("parent_run"):
        yield from _of_run(log, cut, begun.fields["parent_run"], forked_at)
    first = forked_at + 1
    while last is None or first <= last:
        end = first + STEPS_AT_ONCE if last is None else min(first + STEPS_AT_ONCE, last + 1)
        found = log.states([f"step/{run}#{number}" for number in range(first, end)], cut)
        yield from found.values()
        if len(found) < end - first:
            return
        first = end


def _reads(steps: Iterable[EntityView]) -> Iterator[RecordedRead]:
    for step in steps:
        for each in step.fields.get("reads", ()):
            yield _recorded_read(step.fields, each)


def _recorded_read(step: Mapping[str, Any], given: Mapping[str, Any]) -> RecordedRead:
    at = given.get("read_at")
    return RecordedRead(
        entity=given["entity"], run=step.get("run", ""), step=step.get("position", 0), at=0 if at is None else at,
        state_hash=given["state_hash"], version=given.get("version"), cut=given.get("cut") or "",
        observations=tuple(given["observations"]),
    )  # fmt: skip


def _known_entity(log: Log, read: RecordedRead, held: EntityView | None, cut: Cut) -> KnownEntity:
    known = _as_read(log, read)
    version = known.version
    partition = log.port.partition_of(read.entity)
    # Within the same millisecond the order is not known.
    before = [each for each in log.port.arrivals(read.entity, log.port.ends()[partition])
              if each.recorded_at < read.at // 1000]  # fmt: skip
    shown = {} if held is None else held.shown()
    return KnownEntity(
        read, known, held, newer_then=max(0, len(before) - version),
        newer_by=0 if held is None else max(0, held.version - version),
        differing=tuple(differences(known.shown(), shown)) if held is not None else (),
    )  # fmt: skip


def _as_read(log: Log, read: RecordedRead) -> EntityView:
    """Return the entity as it was read: at the recorded cut; if the cut is another log's, at the recorded version."""
    try:
        if read.cut:
            return read_again(log, read.entity, {"cut": read.cut, "state_hash": read.state_hash})
    except InputError:
        if read.version is None:
            raise
    if read.version is not None:
        found = log.state(read.entity, f"v{read.version}")
        if found.state_hash == read.state_hash:
            return found
    raise NotAnswerable(
        f"{read.entity}: step {read.step} of run {read.run} read the state {read.state_hash}, and this log gives it "
        "neither at the point it was read at nor at that version; ask the log it was read from"
    )
