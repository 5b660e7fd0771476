"""Effects for display: the status of each, and what is known of it.

The folded state holds most of it. The log's order decides who holds an open claim. So the records of an effect are read
if it is not done and has a claim that is only intended or unknown. `intended` past its lease is shown as unknown,
because its holder was killed, or may no longer be relied on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from refold.agents.effects.claims import EffectState, run_of
from refold.agents.effects.keys import TYPE, entity_of
from refold.streams.client import Log
from refold.streams.entity_index import facts
from refold.streams.log.port import observation_in
from refold.streams.point import When
from refold.streams.view import EntityView

FATES = ("intended", "done", "failed", "released", "unknown")


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect. Times are microseconds since 1970, 0 if there is none.

    Attributes:
        status: One of FATES.
        run: The run that carried it out, or has the claim.
        runs: All runs that carried it out, or else the one that has the claim.
        inputs, result, error, retries: The values as stored in the log (Ledger.arguments and result decrypt them). An
            effect that is done has no error.
        until: When the lease of the open claim ends.
        times_done: How many claims are recorded to have done it; if it is above 1, somebody wrongly recorded for one
            that it was not done.
    """

    key: str
    status: str
    tool: str
    run: str
    runs: frozenset[str]
    agent: str
    step: str
    token: str
    inputs: Any
    result: Any
    receipt: Any
    error: Mapping[str, Any]
    retries: tuple[Mapping[str, Any], ...]
    attempts: int
    intended_at: int
    until: int
    settled_at: int
    reconciled_by: str
    undo: str
    compensates: str
    compensated_by: str
    times_done: int


class EffectKey(NamedTuple):
    """Selects a closed effect.

    Attributes:
        status: The status; "" for an open effect, whose status only the log's order decides.
    """

    status: str
    tool: str
    runs: frozenset[str]


def effect_key(view: EntityView) -> EffectKey:
    """Return the key of an effect."""
    fields = view.fields
    claims: Mapping[str, str] = fields.get("claims") or {}
    if _is_open(claims):
        return EffectKey("", fields.get("tool", ""), frozenset())
    token, done = _token(fields, claims)
    return EffectKey(_closed_status(claims) or fields.get("status", "unknown"), fields.get("tool", ""),
                     _runs(token, done))  # fmt: skip


def listed(
    log: Log, now_micros: int, *, keys: Iterable[str] | None = None, at: When = None, status: str = "", run: str = "",
    tool: str = "",
) -> list[Effect]:  # fmt: skip
    """Return every effect of a log at a point, or some, in the order in which they were first intended.

    Args:
        log: The log.
        now_micros: The time, microseconds; it decides which leases are over.
        keys: The keys of the effects; None is all.
        at: The point; None is now.
        status, run, tool: A log with indexes does not read an effect that cannot have this status, run or tool; ""
            is any. Others may be in the result.
    """
    cut = log.point(at).cut
    if TYPE not in {version.definition.name for version in log.port.registry}:
        return []
    views: Mapping[str, EntityView]
    if keys is None and log.indexes is not None:
        every = facts(log, TYPE, effect_key, cut)
        views = log.states([name for name, key in every.items() if _may_be(key, status, run, tool)], cut)
    else:
        names = None if keys is None else [entity_of(each) for each in keys]
        view = log.rebuild(cut, types=[TYPE]) if names is None else log.rebuild(cut, entities=names)
        views = {name: view[name] for name in view}
    open_ones = [name for name, each in views.items() if _is_open(each.fields.get("claims") or {})]
    standings = dict(_standings(log, open_ones, cut.offsets))
    found = [_effect(each, standings.get(name), now_micros) for name, each in views.items()]
    return sorted(found, key=lambda each: (each.intended_at, each.key))


def _may_be(key: EffectKey, status: str, run: str, tool: str) -> bool:
    is_open = not key.status
    return (
        tool in ("", key.tool) and (is_open or status in ("", key.status)) and (is_open or not run or run in key.runs)
    )  # fmt: skip


def _token(fields: Mapping[str, Any], claims: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the token of the claim that holds, unless the log's order decides otherwise, and those that did it."""
    done = [token for token, status in claims.items() if status == "done"]
    return (done[0] if done else fields.get("token", "")), done


def _runs(token: str, done: Iterable[str]) -> frozenset[str]:
    """Return the runs that carried an effect out, or else the one that has the claim."""
    return frozenset(map(run_of, done)) or frozenset((run_of(token),))


def _is_open(claims: Mapping[str, str]) -> bool:
    """Return whether only the log's order can decide the result."""
    statuses = set(claims.values())
    return "done" not in statuses and bool(statuses & {"intended", "unknown"})


def _standings(log: Log, names: list[str], offsets: Mapping[int, int]) -> Iterator[tuple[str, EffectState]]:
    """Yield the state of some effects before a cut: one pass over each partition that has any of them."""
    by_partition: dict[int, list[str]] = defaultdict(list)
    for name in names:
        by_partition[log.port.partition_of(name)].append(name)
    for partition, some in by_partition.items():
        found = {name: EffectState() for name in some}
        for record in log.port.records_among(partition, some, offsets[partition], lambda more: None):
            observation = observation_in(log.port.registry, record)
            found[record.entity].apply(observation.patch, observation.cleared)
        yield from found.items()


def _effect(view: EntityView, state: EffectState | None, now_micros: int) -> Effect:
    fields = view.fields
    claims: Mapping[str, str] = fields.get("claims") or {}
    token, done = _token(fields, claims)
    status = _closed_status(claims) or fields.get("status", "unknown")
    until = 0
    if state is not None:
        status = state.status or status
        if state.holder is not None:
            token, until = state.holder.token, state.holder.until
            if status == "intended" and until <= now_micros:
                status = "unknown"
    runs = _runs(token, done)
    compensation = fields.get("compensation")
    return Effect(
        key=fields.get("key") or view.entity.partition("/")[2], status=status, tool=fields.get("tool", ""),
        run=run_of(token) or fields.get("run", ""), runs=runs, agent=fields.get("agent", ""),
        step=fields.get("step", ""), token=token, inputs=fields.get("inputs"), result=fields.get("result"),
        receipt=fields.get("receipt"), error={} if status == "done" else fields.get("error") or {},
        retries=tuple(fields.get("retries") or ()),
        attempts=fields.get("attempts", 0), intended_at=_micros(fields.get("intended_at")),
        until=until, settled_at=_micros(fields.get("settled_at")), reconciled_by=fields.get("reconciled_by", ""),
        undo=compensation.get("undo", "") if isinstance(compensation, dict) else "",
        compensates=fields.get("compensates", ""), compensated_by=fields.get("compensated_by", ""),
        times_done=len(done),
    )  # fmt: skip


def _closed_status(claims: Mapping[str, str]) -> str:
    """Return the status of an effect without an open claim; "" if nothing is recorded."""
    statuses = claims.values()
    return next((each for each in ("done", "failed", "released") if each in statuses), "")


def _micros(given: Any) -> int:
    return int(given or 0)


Chosen: TypeAlias = Callable[[Effect], bool]


def chosen_by(status: str = "", run: str = "", tool: str = "") -> Chosen:
    """Return the condition for effects; an empty text matches all."""

    def is_chosen(each: Effect) -> bool:
        return each.status == (status or each.status) and (not run or run in each.runs) and tool in ("", each.tool)

    return is_chosen
