"""Load a run from the log: its entities `run/<id>` and `step/<id>#<n>` become a Recording.

1. Read the run; for an imported run, its conversation (imported.py); for a received one, its spans (received.py).
2. For a fork, first read the parent in the same way, and keep its steps up to the fork. Fields that the child does not
   have are its parent's: agent, input, seed, state. Nested runs are read in the same way, as far as they exist.
3. Read the steps that follow, many at a time, until one is missing: a run that has not ended does not record how many
   it has. For a run that has ended, all must exist.
4. A step's attempts are those in its journal, by number. An attempt that has not ended, because it continues or its
   process is gone, has no outcome; only its number is known.

Steps are looked up by name. On a log with indexes, this reads only the run's own records.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from refold.agents.journal.record import Attempt, Fork, Outcome, Plain, Recording, Step, children_of
from refold.agents.journal.repeated_bodies import BodyReader
from refold.agents.recordings.durable_calls import answered_calls
from refold.agents.recordings.fields import Fields, Look, PartMissing, PlainFields
from refold.agents.recordings.imported import imported, is_imported, stored
from refold.agents.recordings.received import is_received, received
from refold.agents.vault import ValueCipher
from refold.avro.errors import CorruptionError, Expired, InputError, NotAnswerable, UnknownEntity
from refold.avro.observation import type_of
from refold.streams.client import Log
from refold.streams.entity_index import exists, facts
from refold.streams.point import When
from refold.streams.view import EntityView, StateView

READ_TYPES = ("run", "step", "action", "agent_session")
CAPTURED = "capture"
BEGAN = "began"
STEPS_AT_ONCE = 64
NEAR_SHOWN = 3


def load(log: Log, run: str, vault: ValueCipher, at: When = None) -> Recording:
    """Load a run by its id, as it was at a point.

    Args:
        log: The log.
        run: The run's id.
        vault: Decrypts contents.
        at: The point; None is now.

    Raises:
        UnknownEntity: There is no such run; the message names runs with similar ids.
        Expired: The run's content is gone; the message says what is still known of it.
        PartMissing: A part of the run is missing at this point.
        CorruptionError: The stored run is invalid.
    """
    cut = log.point(at).cut
    try:
        return recording_of(lambda names: log.states(names, cut), run, vault)
    except UnknownEntity as error:
        raise UnknownEntity(f"{error}; {near(log, run)}") from None


def recordings(log: Log, runs: Iterable[str] | None, vault: ValueCipher, at: When = None) -> Iterator[Recording]:
    """Load many runs with one rebuild.

    Args:
        log: The log.
        runs: The runs' ids; None is all, in the order of their ids.
        vault: Decrypts contents.
        at: The point; None is now.

    Returns:
        The recordings. Errors as in `load` are raised when the iteration reaches the run.
    """
    cut = log.point(at).cut
    view = rebuilt(log, READ_TYPES, cut)
    if runs is None:
        runs = [name.removeprefix("run/") for name in view or () if type_of(name) == "run"]

    def look(names: Iterable[str]) -> Mapping[str, EntityView]:
        if view is None:
            return {}
        there = list(names)
        apart = [name for name in there if type_of(name) not in READ_TYPES]  # spans of received runs
        found = {name: view[name] for name in there if name in view}
        return found if not apart else {**found, **log.states(apart, cut)}

    return (recording_of(look, each, vault) for each in runs)


def rebuilt(log: Log, types: Iterable[str], at: When = None, since: int | None = None) -> StateView | None:
    """Return every entity of some types at a point.

    Args:
        log: The log.
        types: The entity types.
        at: The point; None is now.
        since: Leave out entities that were closed before this time, microseconds.

    Returns:
        The entities; None if nothing of these types was ever recorded.
    """
    cut = log.point(at).cut
    known = {version.definition.name for version in log.port.registry}
    recorded = [each for each in types if each in known]
    return log.rebuild(cut, types=recorded, since=since) if recorded else None


def recording_of(look: Look, run: str, vault: ValueCipher) -> Recording:
    """Return the recording of a run.

    Args:
        look: Looks up entities.
        run: The run's id.
        vault: Decrypts contents.

    Raises:
        As `load`.
    """
    fields = _run(look, run, vault)
    try:
        return _recording(look, fields, run, vault, ())
    except Expired as error:
        raise Expired(f"run {run}: {error}. Still known: {still_known(fields)}") from None


def has_ended(run: PlainFields) -> bool:
    """Return whether a run has ended and was not resumed since. A resumed run continues, or its process died."""
    status = run.plain("status", "ended" if run.plain("ended_at") else "")
    return bool(status == "ended" and (run.plain("ended_at") or run.plain("imported_from")))


def step_count(run: PlainFields) -> int | None:
    """Return how many steps a run took, including those before a fork; None if it has not ended."""
    count: int | None = run.plain("step_count") if has_ended(run) else None
    return count


def still_known(fields: Fields) -> str:
    """Describe what is known of a run without its content."""
    plain = fields.plain
    said = [f"{plain('agent', 'an agent')} {plain('agent_version', '')}".rstrip()]
    said += [plain("outcome", "ended") if has_ended(fields) else "not ended"]
    said += [f"{plain('step_count')} {'step' if plain('step_count') == 1 else 'steps'}"] if has_ended(fields) else []
    said += [f"hash {plain('hash')}"] if has_ended(fields) and plain("hash") else []
    return ", ".join(said)


def near(log: Log, run: str) -> str:
    """Describe runs with ids like this one, for an error message."""
    known = [name.removeprefix("run/") for name in facts(log, "run", exists, log.point().cut)]
    close = [each for each in known if each.startswith(run)] or difflib.get_close_matches(run, known, NEAR_SHOWN, 0.6)
    if close:
        return f"runs with ids like it: {', '.join(sorted(close)[:NEAR_SHOWN])}"
    return "`refold runs` lists those that are there" if known else "no run is recorded in this log yet"


def _run(look: Look, run: str, vault: ValueCipher) -> Fields:
    entity = f"run/{run}"
    if not run:
        raise InputError("give a run's id; `refold runs` lists them")
    view = look([entity]).get(entity)
    if view is None:
        raise UnknownEntity(f"no run {run} is in this log")
    return Fields(view, vault)


def _recording(look: Look, fields: Fields, run: str, vault: ValueCipher, children: tuple[str, ...]) -> Recording:
    if is_received(fields):
        return received(look, fields, run, vault)
    if is_imported(fields):
        return imported(stored(look, vault), fields, run)
    parent = _parent(look, fields, run, vault, children)
    before = () if parent is None else parent.steps[: fields.plain("forked_at_step", 0)]
    own = tuple(_steps(look, fields, run, vault, before))
    steps = (*before, *own)
    return msgspec.structs.replace(
        _head(fields, run, parent),
        steps=steps,
        forks=_forks(parent, len(before)),
        children=_readable_runs(
            look, (*children_of(steps), *_sub_agents(look, fields, run, own)), vault, (*children, run)
        )
        | _runs_before(parent, len(before)),
    )


def heads_of(look: Look, run: str, vault: ValueCipher) -> tuple[Recording, ...] | None:
    """Return a run without its steps and nested runs, then its parent, that one's parent, and so on.

    Args:
        look: Looks up entities.
        run: The run's id.
        vault: Decrypts contents.

    Returns:
        The heads; None if one of the runs was imported or received, and so has no steps of its own.

    Raises:
        As `load`.
    """
    fields = _run(look, run, vault)
    if is_received(fields) or is_imported(fields):
        return None
    parent = fields.plain("parent_run")
    if parent is None or fields.plain("forked_at_step") is None:
        return (_head(fields, run, None),)
    parents = heads_of(look, parent, vault)
    return None if parents is None else (_head(fields, run, parents[0]), *parents)


def _head(fields: Fields, run: str, parent: Recording | None) -> Recording:
    """Return a run without its steps, nested runs and forks."""
    plain, exact = fields.plain, fields.exact
    is_ended = has_ended(fields)  # if it was resumed, the fields of its earlier end no longer hold
    outcome: Outcome = plain("outcome", "") if is_ended else ""
    return Recording(
        run=run,
        agent=plain("agent", "" if parent is None else parent.agent),
        version=plain("agent_version", ""),
        code_version=plain("code_version", ""),
        kind=plain("kind", ""),
        task=plain("task", ""),
        title=fields.opened("title") or "",
        user=plain("user", ""),
        input=_default_if_none(exact("input"), None if parent is None else parent.input),
        seed=_default_if_none(plain("seed"), None if parent is None else parent.seed),
        state=_default_if_none(exact("state"), {} if parent is None else parent.state),
        status=plain("status", ""),
        outcome=outcome,
        output=exact("output") if is_ended else None,
        failure=fields.failure("error") if is_ended and outcome != "succeeded" else None,
        started_at=plain("started_at", 0),
        ended_at=plain("ended_at", 0) if is_ended else 0,
        parent="" if parent is None else parent.run,
        forked_at=0 if parent is None else plain("forked_at_step", 0),
        patch=exact("fork_patch"),
        redacted=plain("redacted", False),
        hash=plain("hash", "") if is_ended else "",
        caller=plain("caller_run", ""),
        caller_step=plain("caller_step", 0),
        flagged=plain("flagged", False),
        pinned=plain("pinned", False),
        retention_class=plain("retention_class", ""),
        tags=tuple(plain("tags", ())),
        metadata=fields.metadata(),
    )


def _sub_agents(look: Look, fields: Fields, run: str, steps: Iterable[Step]) -> list[str]:
    """Return the ids of the runs that tool calls of a captured run began, by the links of the calls' actions."""
    if fields.plain("kind") != CAPTURED:
        return []
    names = [
        f"action/{run}#{step.number}.{k}" for step in steps
        for k, _ in enumerate((call for call in step.calls if call.asked.kind == "tool"), 1)
    ]  # fmt: skip
    actions = look(names) if names else {}
    links = (link for name in names if name in actions for link in actions[name].links)
    return [link["target"].removeprefix("run/") for link in links if link["relation"] == BEGAN]


def _runs_before(parent: Recording | None, at: int) -> dict[str, Recording]:
    """Return the nested runs of a parent that began before its child diverges from it."""
    return {} if parent is None else {run: each for run, each in parent.children.items() if each.caller_step <= at}


def _readable_runs(
    look: Look, runs: Iterable[str], vault: ValueCipher, callers: tuple[str, ...]
) -> dict[str, Recording]:
    """Return these runs, except those that do not exist or cannot be read."""
    found: dict[str, Recording] = {}
    for run in runs:
        if run in callers:
            raise CorruptionError(f"run {run} is recorded as nested in itself")
        with contextlib.suppress(UnknownEntity, NotAnswerable):
            found[run] = _recording(look, _run(look, run, vault), run, vault, callers)
    return found


def _parent(look: Look, fields: Fields, run: str, vault: ValueCipher, children: tuple[str, ...]) -> Recording | None:
    """Return the run that this one is a fork of, if it is a fork."""
    parent, at = fields.plain("parent_run"), fields.plain("forked_at_step")
    if parent is None or at is None:
        return None
    if parent in (run, *children):
        raise CorruptionError(f"run {run} is recorded as a fork of itself, through {parent}")
    found = _recording(look, _run(look, parent, vault), parent, vault, (*children, run))
    if len(found.steps) < at:
        raise PartMissing(
            f"it diverges from {parent} after step {at}, and that run has {len(found.steps)} steps at this point"
        )
    return found


def _forks(parent: Recording | None, at: int) -> tuple[Fork, ...]:
    """Return where a parent and its ancestors diverge from theirs, up to the step after which the child diverges."""
    return () if parent is None else tuple(each for each in parent.parted if each.at <= at)


def _steps(look: Look, fields: Fields, run: str, vault: ValueCipher, before: Sequence[Step]) -> Iterator[Step]:
    """Yield the run's own steps: those after `before`, its parent's."""
    count = step_count(fields)
    views = own_steps(look, [(run, len(before), count)])[run]
    if count is not None and len(before) + len(views) < count:
        raise PartMissing(f"its step {len(before) + len(views) + 1} of {count} is missing at this point")
    last, bodies = before[-1] if before else None, BodyReader()
    for number, view in enumerate(views, len(before) + 1):
        yield (last := step_of(number, Fields(view, vault), last, bodies))


def own_steps(look: Look, runs: Iterable[tuple[str, int, int | None]]) -> dict[str, list[EntityView]]:
    """Look up the steps of some runs, many at a time.

    Args:
        look: Looks up entities.
        runs: For each run, its id, the number after which its own steps begin, and how many steps it has, None if that
            is not known.

    Returns:
        By run, its steps in order, up to the first that is missing.
    """
    found: dict[str, list[EntityView]] = {}
    waiting = {run: (before, count) for run, before, count in runs}
    at_once = STEPS_AT_ONCE
    while waiting:
        names: dict[str, list[str]] = {}
        for run, (before, count) in waiting.items():
            begin = before + len(found.setdefault(run, [])) + 1
            end = begin + at_once if count is None else count + 1
            names[run] = [f"step/{run}#{number}" for number in range(begin, end)]
        views = look([name for some in names.values() for name in some])
        for run, some in names.items():
            there = list(itertools.takewhile(lambda name: name in views, some))  # noqa: B023  # used at once
            found[run] += [views[name] for name in there]
            if waiting[run][1] is not None or len(there) < len(some):
                del waiting[run]
        at_once *= 2
    return found


def step_of(number: int, fields: Fields, before: Step | None, bodies: BodyReader) -> Step:
    """Return one step from its entity.

    Args:
        number: The step's number.
        fields: The fields of its entity.
        before: The step before it. An entity does not repeat the hashes of that step.
        bodies: Has read the steps before it.

    Raises:
        CorruptionError: The entity's journal was not written by a run.
    """
    plain = fields.plain
    known = ("", "") if before is None else (before.state_after, before.hash)
    parts = {int(key): part for key, part in fields.exact_map("journal").items()}
    last = parts[max(parts)] if parts else {}
    is_committed = plain("status") == "committed"  # if it was begun again, its earlier end no longer holds
    step = Step(
        number=number,
        name=plain("name", ""),
        attempts=tuple(
            bodies.whole(fields.entity, each) for each in _attempts(fields, parts, is_committed=is_committed)
        ),
        delta=tuple(last.get("delta", ())) if is_committed else (),
        result=last.get("result") if is_committed else None,
        outcome=plain("outcome", "") if is_committed else "",
        state_before=plain("state_before", known[0]) if is_committed else "",
        state_after=plain("state_after", "") if is_committed else "",
        previous=plain("previous_turn_hash", known[1]) if is_committed else "",
        hash=plain("turn_hash", "") if is_committed else "",
    )
    bodies.ended(step)
    return step


def _attempts(fields: Fields, parts: Mapping[int, Plain], *, is_committed: bool) -> Iterator[Attempt]:
    """Yield all attempts that were begun. If a crash cut an attempt short, its number is known, and its calls are known
    while its step continues."""
    for number in range(1, max(fields.plain("attempts", 0), *parts, 0) + 1):
        try:
            if number in parts:
                yield msgspec.convert(parts[number]["attempt"], Attempt)
            elif is_committed:
                yield Attempt(number=number)
            else:
                yield Attempt(number=number, calls=answered_calls(fields.entity, fields.exact_map("answered"), number))
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"{fields.entity}: its journal holds no valid attempt ({error}); it was not written by a run"
            ) from None


def _default_if_none(given: Any, default: Any) -> Any:
    return default if given is None else given
