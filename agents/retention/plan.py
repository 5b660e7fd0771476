"""Compute what retention would remove now, and why it keeps the rest. Nothing here writes.

A run's content expires when the days of its class have passed since it ended, or since the log recorded its end if that
is later (an import counts from its import), and no reason to keep it applies:
    open                   it has not ended; a resumed run continues
    pinned, golden         a user pinned it, or a golden trace was made of it
    parent of RUN          a kept fork begins with this run's steps
    within RUN             a kept run, in which this one is nested
    class NAME for N days  it is not that old yet; a flagged run is of the class `flagged`
    class NAME             which has no days: for ever

One pass over a log's observations finds which contents belong to which run, and which to anything else.

A run owns the contents that are named by observations of its own entities: run/<id> and step/<id>#<n>; actions and
effects whose observation has this run as its source; and for an imported run, also its session. Any other observation
that names a content, of a document for example, keeps that content, because equal contents are stored once.
content, of a document for example, keeps it: equal contents are stored once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refold.agents.keys.ring import KeyDamage, KeyRing
from refold.agents.recordings.load import rebuilt
from refold.agents.retention.classes import DAY_MICROS, FLAGGED, class_of, kept_days
from refold.agents.vault import SEALED_CONTENT, run_key
from refold.avro.blob import Blob, references
from refold.avro.errors import InputError, UndecodableError
from refold.avro.observation import Observation, type_of
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.log.port import LogReader

_BY_SOURCE = frozenset({"action", "effect", "agent_session"})


@dataclass(slots=True)
class ContentUse:
    """The result of a pass.

    Attributes:
        ended_ms: When the log recorded that a run ended, by run, in milliseconds since 1970.
        owned: The existing contents of each run, each with its size in bytes and whether it is sealed.
        held: The contents named by an observation that belongs to no run.
    """

    ended_ms: dict[str, int] = field(default_factory=dict)
    owned: dict[str, dict[bytes, tuple[int, bool]]] = field(default_factory=lambda: defaultdict(dict))
    held: set[bytes] = field(default_factory=set)

    def free(self, expiring: Iterable[str]) -> dict[bytes, tuple[int, bool]]:
        """Return the contents that only these runs name, each with its bytes and whether it is sealed."""
        gone = {*expiring}
        found = {digest: each for run in gone for digest, each in self.owned.get(run, {}).items()}
        for digest in self.held:
            found.pop(digest, None)
        for run, contents in self.owned.items():
            if run not in gone:
                for digest in contents:
                    found.pop(digest, None)
        return found


def survey(log: LogReader, cut: Cut, runs: Mapping[str, bool]) -> ContentUse:
    """Read the log up to a cut, and find the contents of each run.

    Args:
        log: The log.
        cut: Where to stop.
        runs: All runs, and whether each was imported.
    """
    found = ContentUse()
    for partition, end in cut.offsets.items():
        for record in log.read(partition, 0, end):
            try:
                observation = log.registry.decode(record.data)
            except UndecodableError:  # it has a verdict, or verify reports it; it names no content
                continue
            run = run_of(observation, runs)
            patch = observation.patch
            if (
                run is not None
                and observation.type == "run"
                and ("ended_at" in patch or patch.get("status") == "ended")
            ):
                found.ended_ms[run] = max(found.ended_ms.get(run, 0), record.recorded_at)
            for blob in references(observation.patch.values(), log.blobs.get):
                _take(log, found, run, blob)
    return found


def _take(log: LogReader, found: ContentUse, run: str | None, blob: Blob) -> None:
    if run is None:
        found.held.add(blob.hash)
    elif (size := log.blobs.size(blob.hash)) is not None:
        found.owned[run][blob.hash] = (size, blob.media_type == SEALED_CONTENT)


def run_of(observation: Observation, runs: Mapping[str, bool]) -> str | None:
    """Return the run that an observation belongs to, if any.

    Args:
        observation: The observation.
        runs: All runs, and whether each was imported.
    """
    kind, name = type_of(observation.entity), observation.entity.partition("/")[2]
    if kind == "step":
        name = name.rpartition("#")[0]
    elif kind in _BY_SOURCE:
        name = observation.source.run
        if kind == "agent_session" and not runs.get(name):
            return None
    elif kind != "run":
        return None
    return name if name in runs else None


@dataclass(slots=True)
class PlannedRun:
    """The judgement of one run.

    Attributes:
        ended_at: When it ended, in microseconds since 1970; None if it has not ended, or that is not known.
        due_at: When it expires, in microseconds since 1970; None if it has not ended, or its class is kept for ever.
        kept: The reasons to keep it; empty if it expires.
        has_key: Whether its content is sealed and a key exists.
        contents, bytes: The number and the size of the contents that only this run has in the store.
    """

    run: str
    agent: str
    retention_class: str
    ended_at: int | None
    due_at: int | None
    kept: list[str] = field(default_factory=list)
    has_key: bool = False
    contents: int = 0
    bytes: int = 0

    @property
    def expires(self) -> bool:
        """Whether something of the run is removed."""
        return not self.kept and (self.has_key or self.contents > 0)


@dataclass(slots=True)
class Plan:
    """All runs as of a cut, by id.

    Attributes:
        free: The contents to remove, each with its size in bytes and whether it is sealed.
        damaged: The existing keys that cannot be used, whether or not their runs expire.
    """

    cut: Cut
    runs: dict[str, PlannedRun]
    free: dict[bytes, tuple[int, bool]]
    seen: ContentUse
    damaged: list[KeyDamage] = field(default_factory=list)

    @property
    def expiring(self) -> list[PlannedRun]:
        """The runs of which something is removed."""
        return [each for each in self.runs.values() if each.expires]


def plan(
    log: Log, ring: KeyRing | None, days: Mapping[str, float], now_micros: int, before: Plan | None = None
) -> Plan:
    """Compute what would be removed at a time.

    Args:
        log: The log.
        ring: The key ring; None if there is none.
        days: The days of each class.
        now_micros: The time, microseconds.
        before: A plan whose pass over the log is reused; only the judgement of the runs is computed again.

    Raises:
        InputError: Content is sealed, and there is no ring in which to destroy its key.
    """
    cut = log.point().cut
    fields = run_fields(log, cut)
    imported = {run: bool(each.get("imported_from")) for run, each in fields.items()}
    seen = survey(log.port, cut, imported) if before is None else before.seen
    runs = judged(fields, seen, days, now_micros)
    damaged = ring.damaged(map(run_key, runs)) if ring is not None else []
    # A damaged key must be destroyed like any other.
    keys = {*ring.ids(), *(each.key_id for each in damaged)} if ring is not None else set()
    free = seen.free(run for run, each in runs.items() if not each.kept)
    for run, each in runs.items():
        each.has_key = run_key(run) in keys
        if not each.kept:
            own = {digest: free[digest] for digest in seen.owned.get(run, ()) if digest in free}
            each.contents, each.bytes = len(own), sum(size for size, _ in own.values())
            if ring is None and any(is_sealed for _, is_sealed in own.values()):
                raise InputError(
                    f"run {run}: its content is sealed, and no key ring is open here to destroy its key in; "
                    "name it with REFOLD_KEYS, or set REFOLD_MASTER_KEY"
                )
    return Plan(cut, runs, free, seen, damaged)


def run_fields(log: Log, cut: Cut) -> dict[str, Mapping[str, Any]]:
    """Return the fields of every run, by its id."""
    view = rebuilt(log, ["run"], cut)
    return {} if view is None else {name.partition("/")[2]: view[name].fields for name in view}


def judged(
    fields: Mapping[str, Mapping[str, Any]], seen: ContentUse, days: Mapping[str, float], now_micros: int
) -> dict[str, PlannedRun]:
    """Judge each run: when its content is due, and why it is kept.

    Args:
        fields: The fields of each run.
        seen: The result of the pass.
        days: The days of each class.
        now_micros: The time of judgement, microseconds.
    """
    found: dict[str, PlannedRun] = {}
    for run, each in fields.items():
        recorded_at = seen.ended_ms.get(run, 0) * 1000
        known = each.get("ended_at") or (recorded_at if each.get("imported_from") else 0)
        ended_at = known or None if each.get("status") == "ended" else None
        name, kept_for = class_of(each), kept_days(each, days)
        since = None if ended_at is None else max(ended_at, recorded_at)
        due_at = None if since is None or math.isinf(kept_for) else since + round(kept_for * DAY_MICROS)
        span = f"{kept_for:g} day{'s' if kept_for != 1 else ''}"
        name = FLAGGED if each.get("flagged") and kept_for == days[FLAGGED] else name
        kept = [reason for reason, holds in (
            ("open", ended_at is None),
            ("pinned", each.get("pinned")),
            ("golden", each.get("golden")),
            (f"class {name}", ended_at is not None and due_at is None),
            (f"class {name} for {span}", due_at is not None and due_at > now_micros),
        ) if holds]  # fmt: skip
        found[run] = PlannedRun(run, each.get("agent", ""), name, ended_at, due_at, kept)
    holds: dict[str, list[tuple[str, str]]] = {run: [] for run in fields}
    for run, each in fields.items():
        parent, caller = each.get("parent_run"), each.get("caller_run")
        if parent and parent != run:
            holds[run].append((parent, f"parent of {run}"))
        if caller in holds and caller != run:
            holds[caller].append((run, f"within {caller}"))
    _hold(holds, found)
    return found


def _hold(holds: Mapping[str, Sequence[tuple[str, str]]], runs: Mapping[str, PlannedRun]) -> None:
    """Propagate: a kept run keeps other runs, with a reason, and these keep theirs."""
    waiting: Sequence[str] = [run for run, each in runs.items() if each.kept]
    while waiting:
        held = []
        for run in waiting:
            for other, reason in holds[run]:
                planned = runs.get(other)
                if planned is not None:
                    if not planned.kept:
                        held.append(other)
                    planned.kept.append(reason)
        waiting = held
