"""Find runs: first by fields in clear, then by content.

1. All runs come from one rebuild of their type; runs that ended before `since` are not even read. A log with indexes
   (streams/entity_index.py) reads only the runs that are listed.
2. Those that match by agent, outcome, user, flag, tag, parent and time are sorted, newest first. Of several records of
   one session only the fullest is found (same_turns.py).
3. For a tool, an error or a text, the steps of a few runs at a time are read, newest first, until there are enough
   matches. Names of tools are stored in clear; errors and texts are in contents, which are decrypted.

A run matches by its own steps; the steps that a fork shares with its parent are the parent's. A run cannot be searched
if a content is gone, or is sealed and no key here opens it. Such runs are listed in `unread`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

from refold.agents.journal.record import Plain
from refold.agents.recordings.fields import Fields, Look, PlainFields
from refold.agents.recordings.load import has_ended, own_steps, rebuilt, step_count
from refold.agents.recordings.received import is_received, received_parts
from refold.agents.recordings.same_turns import SAME
from refold.agents.usage.of_runs import UsageSum, summed, usage_of_fields
from refold.agents.vault import ValueCipher
from refold.avro.errors import CorruptionError, InputError, NotAnswerable
from refold.avro.times import EPOCH, datetime_micros, parse_time
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.entity_index import facts
from refold.streams.point import When
from refold.streams.view import EntityView

READ_AT_ONCE = 32
MODELS = ("model", "response_model")
RUNNING = "running"
OUTCOMES = ("succeeded", "failed", "cancelled", "timed_out", "unknown", RUNNING)


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Which runs to find; all given conditions must hold.

    Attributes:
        since, until: The bounds of a run's start, in microseconds since 1970.
        outcome: A run's outcome, or "running".
        error: A part of an exception's name or of its message, in any case of letters.
        text: A part of any text that the run was given, said, called, received or returned, in any case of letters.
        model: A part of the name of a model that it called, in any case of letters.
        usage: Whether rows report what model calls used.
        further: Whether runs are found too that are further records of a session (same_turns.py).
    """

    since: int | None = None
    until: int | None = None
    agent: str = ""
    outcome: str = ""
    user: str = ""
    tag: str = ""
    parent: str = ""
    flagged: bool = False
    tool: str = ""
    error: str = ""
    text: str = ""
    model: str = ""
    usage: bool = False
    further: bool = False

    def __post_init__(self) -> None:
        if self.outcome and self.outcome not in OUTCOMES:
            raise InputError(f"outcome: one of {', '.join(OUTCOMES)}, given {self.outcome!r}")

    @property
    def is_in_steps(self) -> bool:
        """Whether the search must read steps."""
        return bool(self.tool or self.error or self.text or self.model)

    def clear(self, run: RunKey) -> bool:
        """Return whether a run matches by its fields in clear."""
        return (
            (self.since is None or run.started_at >= self.since)
            and (self.until is None or run.started_at <= self.until)
            and self.agent in ("", run.agent)
            and self.user in ("", run.user)
            and self.parent in ("", run.parent)
            and self.outcome in ("", run.outcome)
            and (not self.tag or self.tag in run.tags)
            and (not self.flagged or run.flagged)
            and (self.further or not run.is_further)
        )


class RunKey(NamedTuple):
    """The key by which runs are selected and sorted.

    Attributes:
        started_at: When the run began, in microseconds since 1970; 0 if unknown.
        is_further: Whether it is a further record of a session (same_turns.py).
    """

    entity: str
    started_at: int
    agent: str
    outcome: str
    user: str
    parent: str
    tags: tuple[str, ...]
    flagged: bool
    is_further: bool


def run_key(view: EntityView) -> RunKey:
    """Return the key of a run."""
    run = PlainFields(view)
    plain = run.plain
    return RunKey(
        view.entity, plain("started_at", 0), plain("agent", ""), outcome_of(run), plain("user", ""),
        plain("parent_run", ""), tuple(plain("tags", ())), plain("flagged", False), bool(run.linked(SAME)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list.

    Attributes:
        started_at, ended_at: When it began and when it ended, in microseconds since 1970; None if there is no such time
            yet.
        outcome: The outcome; "running" if it has not ended.
        parent: The run that it was forked from; "" if it is not a fork.
        synthetic_time: Whether its source left out times. Then a time that is None was never known.
        caller, caller_step: For a nested run, the outer run and its step.
        steps: How many it has taken, including those before a fork.
        title: The title; "" if it has none, None if it cannot be read.
        input_tokens, output_tokens: The numbers of tokens; None if no model call recorded any.
        usage: What the model calls of its own steps used; None if they do not say, or it was not requested.
        recorded_at: When the newest record of it was recorded, in milliseconds since 1970; None if it has ended.
    """

    run: str
    agent: str
    version: str
    started_at: int | None
    ended_at: int | None
    outcome: str
    steps: int
    parent: str
    title: str | None
    flagged: bool
    synthetic_time: bool = False
    caller: str = ""
    caller_step: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    usage: UsageSum | None = None
    recorded_at: int | None = None

    @property
    def started(self) -> dt.datetime | None:
        """When it began, UTC; None if that is not known."""
        return _moment(self.started_at)

    @property
    def ended(self) -> dt.datetime | None:
        """The time at which it ended, UTC; None while it runs."""
        return _moment(self.ended_at)


@dataclass(slots=True)
class RunList(Sequence[RunRow]):
    """The matching runs, newest first.

    Attributes:
        unread: The ids of runs that may match, but have a content that cannot be read.
        damaged: The damage of a run's content or of its key, by the run's id.
        older: How many more match by their fields in clear and were left out by the limit; their steps were not
            searched. It includes newer runs with more steps than a search may read.
    """

    cut: Cut
    rows: list[RunRow] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    older: int = 0

    @overload
    def __getitem__(self, at: int) -> RunRow: ...

    @overload
    def __getitem__(self, at: slice) -> list[RunRow]: ...

    def __getitem__(self, at: int | slice) -> RunRow | list[RunRow]:
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)


def time_of(given: dt.datetime | str | None, name: str) -> int | None:
    """Convert an aware datetime or an RFC 3339 text to microseconds since 1970.

    Args:
        given: The time; None is returned unchanged.
        name: The name of the parameter, for the error.

    Raises:
        InputError: The value is not a time, or has no time zone. The message shows the value.
    """
    if not isinstance(given, dt.datetime):
        return None if given is None else parse_time(given, name)
    if given.tzinfo is None:
        raise InputError(f"{name}: {given.isoformat()} has no time zone; give an aware datetime, such as one in UTC")
    return datetime_micros(given)


def _moment(micros: int | None) -> dt.datetime | None:
    return None if micros is None else EPOCH + dt.timedelta(microseconds=micros)


def find(
    log: Log, vault: ValueCipher, wanted: RunConditions, limit: int | None = None, at: When = None,
    search_steps: int | None = None, *, runs_at_once: int = READ_AT_ONCE,
) -> RunList:  # fmt: skip
    """Find the matching runs as they were at a point.

    Args:
        log: The log.
        vault: Decrypts contents.
        wanted: The conditions.
        limit: At most so many runs.
        at: The point; None is now.
        search_steps: How many steps a search for a tool, an error, a text or a model reads at most: those of the newest
            runs, without runs that have more steps than that. None: all.
        runs_at_once: How many runs are read together.

    Raises:
        InputError: The limit or `search_steps` is negative.
    """
    for name, value in (("limit", limit), ("search_steps", search_steps)):
        if value is not None and value < 0:
            raise InputError(f"{name}: 0 or more, given {value}")
    cut = log.point(at).cut
    found = RunList(cut)
    left = search_steps if wanted.is_in_steps else None
    every, look = _keys(log, wanted, cut)
    searched = 0
    agreeing = sorted(filter(wanted.clear, every), key=lambda each: (-each.started_at, each.entity))
    for begin in range(0, len(agreeing), runs_at_once):
        names = [each.entity for each in agreeing[begin : begin + runs_at_once]]
        views = look(names)
        some, is_over = [Fields(views[name], vault) for name in names], False
        if left is not None:
            some, left, is_over = _affordable(some, search_steps or 0, left)
        is_read = wanted.is_in_steps or wanted.usage or _any_open(some)
        steps = _steps(log, vault, some, cut) if is_read else {}
        for run in some:
            if limit is not None and len(found.rows) >= limit:
                found.older = len(agreeing) - searched
                return found
            searched += 1
            count, own = steps.get(run.entity, NO_PARTS)
            try:
                if wanted.is_in_steps and not _matches(log, vault, wanted, run, own, cut):
                    continue
            except NotAnswerable:
                found.unread.append(id_of(run))
                continue
            except CorruptionError as error:  # it affects only this run; the others are searched
                found.damaged[id_of(run)] = str(error)
                continue
            row = _row(run, count, found.damaged)
            if row.outcome == RUNNING:
                row = replace(row, recorded_at=max(each.recorded_at for each in (run, *own[-1:])))
            found.rows.append(replace(row, usage=_usage_of(own)) if wanted.usage else row)
        if is_over:
            break
    found.older = len(agreeing) - searched
    return found


def _affordable(runs: Sequence[Fields], most: int, left: int) -> tuple[list[Fields], int, bool]:
    """Return the first runs whose steps are to be searched.

    Args:
        runs: Runs, newest first. One that does not record its number of steps, because it has not ended, counts as 0.
        most: Runs with more steps are left out.
        left: How many steps the runs may have together.

    Returns:
        The runs; how many steps are left; whether a run needs more than these.
    """
    found: list[Fields] = []
    for run in runs:
        count = step_count(run) or 0
        if count > most:
            continue
        if count > left:
            return found, left, True
        left -= count
        found.append(run)
    return found, left, False


def run_keys(log: Log, cut: Cut) -> Mapping[str, RunKey]:
    """Return the key of each run at a cut, by entity."""
    return facts(log, "run", run_key, cut)


def _keys(log: Log, wanted: RunConditions, cut: Cut) -> tuple[Iterable[RunKey], Look]:
    """Return the keys of all runs that can match, and a function that looks up runs."""
    if log.indexes is not None:
        return run_keys(log, cut).values(), lambda names: log.states(names, cut)
    view = rebuilt(log, ["run"], cut, since=wanted.since)
    if view is None:
        return (), lambda names: {}
    return (run_key(view[name]) for name in view), lambda names: {name: view[name] for name in names}


def id_of(run: Fields) -> str:
    """Return the id of a run's entity."""
    return run.entity.removeprefix("run/")


def outcome_of(run: PlainFields) -> str:
    """Return how a run ended, or "running" if it has not."""
    outcome: str = run.plain("outcome", "unknown") if has_ended(run) else RUNNING
    return outcome


def _row(run: Fields, own: int, damaged: dict[str, str]) -> RunRow:
    plain = run.plain
    try:
        title = run.opened("title") or ""
    except NotAnswerable:
        title = None
    except CorruptionError as error:
        title, damaged[id_of(run)] = None, str(error)
    return RunRow(
        run=id_of(run),
        agent=plain("agent", ""),
        version=plain("agent_version", ""),
        started_at=plain("started_at"),
        ended_at=plain("ended_at") if has_ended(run) else None,
        synthetic_time=plain("synthetic_time", False),
        outcome=outcome_of(run),
        steps=plain("forked_at_step", 0) + own if step_count(run) is None else step_count(run) or 0,
        parent=plain("parent_run", ""),
        caller=plain("caller_run", ""),
        caller_step=plain("caller_step", 0),
        title=title,
        flagged=plain("flagged", False),
        input_tokens=plain("input_tokens"),
        output_tokens=plain("output_tokens"),
    )


def usage_of_rows(
    log: Log, vault: ValueCipher, rows: Iterable[RunRow], cut: Cut, steps_max: int
) -> dict[str, UsageSum | None]:  # fmt: skip
    """Return what the model calls of listed runs used, by run, as `find` with `usage` does.

    Args:
        log: The log.
        vault: Decrypts contents.
        rows: The runs. A run is left out if it has more steps than may still be read.
        cut: The point.
        steps_max: How many steps are read at most.
    """
    left, chosen = steps_max, []
    for row in rows:
        if row.steps <= left:
            left -= row.steps
            chosen.append(f"run/{row.run}")
    return usage_by_run(log, vault, chosen, cut)


def usage_by_run(log: Log, vault: ValueCipher, runs: Sequence[str], cut: Cut) -> dict[str, UsageSum | None]:
    """Return what the model calls of runs used, by the run's id, as the fields of their own steps have it.

    Args:
        log: The log.
        vault: Decrypts contents.
        runs: The entities of the runs.
        cut: The point.
    """
    views = log.states(runs, cut)
    found = [Fields(views[name], vault) for name in runs]
    steps = _steps(log, vault, found, cut)
    return {id_of(run): _usage_of(steps.get(run.entity, NO_PARTS).parts) for run in found}


def _usage_of(steps: Iterable[Fields]) -> UsageSum | None:
    return summed(usage for step in steps if not step.linked(SAME) for usage in usage_of_fields(step))


def _any_open(runs: Iterable[Fields]) -> bool:
    """Return whether a run that does not record its number of steps is among them."""
    return any(step_count(run) is None for run in runs)


class _OwnParts(NamedTuple):
    """The number of a run's own steps, and the entities that are searched: its steps, or all of a received run."""

    steps: int
    parts: list[Fields]


NO_PARTS = _OwnParts(0, [])


def _steps(log: Log, vault: ValueCipher, runs: Sequence[Fields], cut: Cut) -> dict[str, _OwnParts]:
    """Return the own steps of some runs, by the runs' entities. They are read together."""

    def look(names: Iterable[str]) -> Mapping[str, EntityView]:
        return log.states(names, cut)

    places = {
        run.entity: (id_of(run), run.plain("forked_at_step", 0), step_count(run))
        for run in runs if not is_received(run)
    }  # fmt: skip
    views = own_steps(look, places.values())
    found = {
        entity: _OwnParts(len(own), [Fields(each, vault) for each in own])
        for entity, own in ((entity, views[place[0]]) for entity, place in places.items())
    }
    for run in runs:
        if is_received(run):
            found[run.entity] = _OwnParts(*received_parts(look, run, id_of(run), vault))
    return found


def _matches(
    log: Log, vault: ValueCipher, wanted: RunConditions, run: Fields, steps: Sequence[Fields], cut: Cut
) -> bool:
    if wanted.tool and not any(
        wanted.tool in (step.plain("tool"), *(each["tool"] for each in step.opened("calls") or ())) for step in steps
    ):
        return False
    models = (each.get(name) or "" for step in steps for each in step.plain("model_calls") or () for name in MODELS)
    if wanted.model and not _contains(wanted.model, models):
        return False
    if wanted.error and not _contains(wanted.error, _errors(run, steps)):
        return False
    return not wanted.text or _contains(wanted.text, _words(log, vault, run, steps, cut))


def _errors(run: Fields, steps: Iterable[Fields]) -> Iterator[str]:
    """Yield exceptions and messages of the run, its steps and the failed attempts."""
    for failure in (run.failure("error"), *(step.failure("failure") for step in steps)):
        if failure is not None:
            yield f"{failure.exception}: {failure.message}"
            yield from words(failure.output)
    for step in steps:
        for retry in step.opened("retries") or ():
            yield retry.get("error") or ""


def _words(log: Log, vault: ValueCipher, run: Fields, steps: Iterable[Fields], cut: Cut) -> Iterator[str]:
    """Yield every word in the contents of a run, its steps, and its session, which has the messages."""
    for entity in (run, *steps):
        yield from _contents(entity)
    session = f"agent_session/{run.plain('session', '')}"
    if run.plain("session"):
        yield from (word for view in log.states([session], cut).values() for word in _contents(Fields(view, vault)))


def _contents(entity: Fields) -> Iterator[str]:
    for name in entity.payloads:
        yield from words(entity.opened(name))


def words(tree: Plain) -> Iterator[str]:
    """Yield the texts and numbers in a JSON tree, without the names of its members."""
    if isinstance(tree, dict):
        for each in tree.values():
            yield from words(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from words(each)
    elif isinstance(tree, str):
        yield tree
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield str(tree)


def _contains(part: str, texts: Iterable[str]) -> bool:
    folded = part.casefold()
    return any(folded in each.casefold() for each in texts)
