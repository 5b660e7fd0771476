"""Load a run from the log: its entities `run/<id>` and `step/<id>#<n>`, read back to a Recording.

1. Read the run; for an imported run, its conversation (imported.py).
2. For a fork, first read the parent, in the same way, and keep its steps up to the fork. Fields that the child does not
   have are its parent's: agent, input, seed, state. Nested runs that it does not hold are read likewise, as far as they
   exist.
3. Read the steps that follow, many at a time, until one is missing: a run that has not ended does not record how many
   it has. For a run that ended, all must be there.
4. A step's attempts are those in its journal, by number. An attempt that has not ended, because it continues or its
   process is gone, has no outcome; only its number is known.

Steps are looked up by name: on a log with indexes this reads only the run's own records.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from refold.agents.journal.record import Attempt, Fork, Plain, Recording, Step, children_of
from refold.agents.journal.repeated_bodies import BodyReader
from refold.agents.recordings.durable_calls import answered_calls
from refold.agents.recordings.fields import Fields, Look, PartMissing
from refold.agents.recordings.imported import imported, is_imported
from refold.agents.vault import ValueCipher
from refold.avro.errors import CorruptionError, Expired, InputError, NotAnswerable, UnknownEntity
from refold.avro.observation import type_of
from refold.streams.client import Log
from refold.streams.point import When
from refold.streams.view import EntityView, StateView

READ_TYPES = ("run", "step", "action", "agent_session")
CAPTURED = "capture"
BEGAN = "began"
STEPS_AT_ONCE = 64
NEAR_SHOWN = 3


def load(log: Log, run: str, vault: ValueCipher, at: When = None) -> Recording:
    """Load a run by its id, as it was at a point.

    UnknownEntity names runs with similar ids; Expired if its content is gone, and says what is still known of it.
    """
    cut = log.point(at).cut
    try:
        return recording_of(lambda names: log.states(names, cut), run, vault)
    except UnknownEntity as error:
        raise UnknownEntity(f"{error}; {near(log, run)}") from None


def recordings(log: Log, runs: Iterable[str] | None, vault: ValueCipher, at: When = None) -> Iterator[Recording]:
    """Load many runs by their ids, or all (None) in the order of their ids, with one rebuild.

    Errors as in `load`, raised when a run is reached.
    """
    view = rebuilt(log, READ_TYPES, at)
    if runs is None:
        runs = [name.removeprefix("run/") for name in view or () if type_of(name) == "run"]

    def look(names: Iterable[str]) -> Mapping[str, EntityView]:
        return {} if view is None else {name: view[name] for name in names if name in view}

    return (recording_of(look, each, vault) for each in runs)


def rebuilt(log: Log, types: Iterable[str], at: When = None, since: int | None = None) -> StateView | None:
    """Return every entity of some types at a point; None if nothing of these types was ever recorded.

    since: leave out those closed before then, in microseconds.
    """
    cut = log.point(at).cut
    known = {version.definition.name for version in log.port.registry}
    recorded = [each for each in types if each in known]
    return log.rebuild(cut, types=recorded, since=since) if recorded else None


def recording_of(look: Look, run: str, vault: ValueCipher) -> Recording:
    """A run read by `look`."""
    fields = _run(look, run, vault)
    try:
        return _recording(look, fields, run, vault, ())
    except Expired as error:
        raise Expired(f"run {run}: {error}. Still known: {still_known(fields)}") from None


def has_ended(run: Fields) -> bool:
    """Whether a run has ended and was not resumed since. A resumed run continues, or was cut short."""
    status = run.plain("status", "ended" if run.plain("ended_at") else "")
    return bool(status == "ended" and (run.plain("ended_at") or run.plain("imported_from")))


def step_count(run: Fields) -> int | None:
    """Return how many steps it took, including those before a fork; None for a run that has not ended."""
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
    """Runs with ids like this one, for an error."""
    known = [name.removeprefix("run/") for name in rebuilt(log, ["run"]) or ()]
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
    if is_imported(fields):
        return imported(look, fields, run, vault)
    plain, exact = fields.plain, fields.exact
    parent = _parent(look, fields, run, vault, children)
    before = () if parent is None else parent.steps[: plain("forked_at_step", 0)]
    own = tuple(_steps(look, fields, run, vault, before))
    steps = (*before, *own)
    is_ended = has_ended(fields)  # else what an end before a resume said is no longer so
    return Recording(
        run=run,
        agent=plain("agent", "" if parent is None else parent.agent),
        version=plain("agent_version", ""),
        code_version=plain("code_version", ""),
        kind=plain("kind", ""),
        task=plain("task", ""),
        title=fields.opened("title") or "",
        user=plain("user", ""),
        input=_or(exact("input"), None if parent is None else parent.input),
        seed=_or(plain("seed"), None if parent is None else parent.seed),
        state=_or(exact("state"), {} if parent is None else parent.state),
        steps=steps,
        status=plain("status", ""),
        outcome=plain("outcome", "") if is_ended else "",
        output=exact("output") if is_ended else None,
        failure=fields.failure("error") if is_ended else None,
        started_at=plain("started_at", 0),
        ended_at=plain("ended_at", 0) if is_ended else 0,
        parent="" if parent is None else parent.run,
        forked_at=0 if parent is None else len(before),
        patch=exact("fork_patch"),
        forks=_forks(parent, len(before)),
        redacted=plain("redacted", False),
        hash=plain("hash", "") if is_ended else "",
        caller=plain("caller_run", ""),
        caller_step=plain("caller_step", 0),
        children=_within(look, (*children_of(steps), *_sub_agents(look, fields, run, own)), vault, (*children, run))
        | _of_parent(parent, len(before)),
        flagged=plain("flagged", False),
        pinned=plain("pinned", False),
        retention_class=plain("retention_class", ""),
        tags=tuple(plain("tags", ())),
        metadata=fields.metadata(),
    )


def _sub_agents(look: Look, fields: Fields, run: str, steps: Iterable[Step]) -> list[str]:
    """The ids of the runs that tool calls of a captured run began, by the links of the calls' actions."""
    if fields.plain("kind") != CAPTURED:
        return []
    names = [
        f"action/{run}#{step.number}.{k}" for step in steps
        for k, _ in enumerate((call for call in step.calls if call.asked.kind == "tool"), 1)
    ]  # fmt: skip
    actions = look(names) if names else {}
    links = (link for name in names if name in actions for link in actions[name].links)
    return [link["target"].removeprefix("run/") for link in links if link["relation"] == BEGAN]


def _of_parent(parent: Recording | None, at: int) -> dict[str, Recording]:
    """The runs within a parent that began up to where its child parts from it."""
    return {} if parent is None else {run: each for run, each in parent.children.items() if each.caller_step <= at}


def _within(look: Look, runs: Iterable[str], vault: ValueCipher, callers: tuple[str, ...]) -> dict[str, Recording]:
    """These runs, as far as they are there and can be read."""
    found: dict[str, Recording] = {}
    for run in runs:
        if run in callers:
            raise CorruptionError(f"run {run} is recorded as nested in itself")
        with contextlib.suppress(UnknownEntity, NotAnswerable):
            found[run] = _recording(look, _run(look, run, vault), run, vault, callers)
    return found


def _parent(look: Look, fields: Fields, run: str, vault: ValueCipher, children: tuple[str, ...]) -> Recording | None:
    """The run that this one is a fork of, if it is one."""
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
    """Where a parent, and those before it, part from theirs, up to the step after which its child parts from it."""
    return () if parent is None else tuple(each for each in parent.parted if each.at <= at)


def _steps(look: Look, fields: Fields, run: str, vault: ValueCipher, before: Sequence[Step]) -> Iterator[Step]:
    """The run's own steps: those after `before`, its parent's."""
    count = step_count(fields)
    views = own_steps(look, [(run, len(before), count)])[run]
    if count is not None and len(before) + len(views) < count:
        raise PartMissing(f"its step {len(before) + len(views) + 1} of {count} is missing at this point")
    last, bodies = before[-1] if before else None, BodyReader()
    for number, view in enumerate(views, len(before) + 1):
        yield (last := step_of(number, Fields(view, vault), last, bodies))


def own_steps(look: Look, runs: Iterable[tuple[str, int, int | None]]) -> dict[str, list[EntityView]]:
    """Return the steps of some runs in order, up to the first that is missing; many are looked up together.

    runs: id, the number after which its own steps begin, and how many steps it has, if that is known.
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

    before: the step before it, whose hashes it does not repeat. bodies: the reader of the steps before it.
    """
    plain = fields.plain
    known = ("", "") if before is None else (before.state_after, before.hash)
    parts = {int(key): part for key, part in fields.exact_map("journal").items()}
    last = parts[max(parts)] if parts else {}
    is_committed = plain("status") == "committed"  # else it was begun again, and its earlier end no longer holds
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
    """Yield all attempts that were begun. One that a crash cut short has its number, and its calls while its step
    continues."""
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


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given
