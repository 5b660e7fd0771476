"""The JSON of answers, as `--json`, the pages, the HTTP API and MCP return it.

Ids and hashes are hex text. Times are RFC 3339 UTC: observed_at to the microsecond, recorded_at to the millisecond.
Other programs depend on these keys: they may be added, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refold.avro.json_line import patch_json, source_json
from refold.avro.observation import Link as Relation
from refold.avro.observation import Observation
from refold.avro.registry import Registry
from refold.avro.times import millis_text, time_text
from refold.reducers.links import FIELD as LINKS
from refold.streams.changes import Change, MutationFormatter, Row, rows
from refold.streams.cut import read_cut
from refold.streams.log.port import Foreign, Marked, Position, SetAside
from refold.streams.point import Point
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.store import Snapshot
from refold.streams.verify.report import VerifyReport
from refold.streams.view import EntityView, Holder, StateView, TraceLink


def point_json(point: Point) -> dict[str, Any]:
    """Return the cut of an answer, and whether the answer may still change."""
    return {"cut": str(point.cut), "cut_short": point.cut.short, "open": point.open}


def marker_json(marker: Marked) -> dict[str, Any]:
    """Return one marker in JSON."""
    point = Point(read_cut(marker.cut))
    return {
        "name": marker.name,
        "marked_at": millis_text(marker.marked_at),
        **point_json(point),
        "fold_version": point.cut.fold_version,
    }


def position_json(position: Position) -> dict[str, int]:
    """Return a position in the log in JSON."""
    return {"partition": position.partition, "offset": position.offset}


def time_json(micros: int | None) -> str | None:
    """Return a time as RFC 3339 in UTC; None if there is none."""
    return time_text(micros) if micros else None


def row_json(row: Row) -> dict[str, Any]:
    """Return one mutation in JSON."""
    is_link = row.field == LINKS
    return {
        "entity": row.entity,
        "field": row.field,
        "op": row.op,
        "key": row.key,
        "old": _validity(row.old) if is_link else row.old,
        "new": _validity(row.new) if is_link else row.new,
        "observation": row.observation,
        "by": row.by,
        "version": row.version,
        "position": {"partition": row.partition, "offset": row.offset},
        "observed_at": time_text(row.observed_at),
        "recorded_at": millis_text(row.recorded_at),
        "source": source_json(row.source),
    }


def _validity(given: Mapping[str, int] | None) -> dict[str, str] | None:
    return None if given is None else {side: time_text(micros) for side, micros in given.items()}


def rebuild_json(point: Point, view: StateView, root: str | None) -> dict[str, Any]:
    """Return the result of a rebuild, without the states.

    Args:
        point: The point of the rebuild.
        view: The rebuilt states.
        root: The root of the view; None if the rebuild was limited, such as to some types.
    """
    return {
        **point_json(point),
        "observations": view.observations,
        "entities": len(view),
        "root": root,
        "source": view.source,
    }


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return one sealed epoch in JSON. A damaged one has only its position and the problem."""
    epoch = snapshot.epoch
    place = {"partition": epoch.partition, "offset": epoch.offset, "schemas": epoch.schemas}
    pinned_at = None if snapshot.pinned_at is None else millis_text(snapshot.pinned_at)
    if snapshot.problem:
        return {**place, "kind": "damaged", "pinned_at": pinned_at, "problem": snapshot.problem}
    return {
        **place,
        "kind": "base" if snapshot.is_base else "delta",
        "entities": snapshot.entities,
        "observations": snapshot.observations,
        "records": snapshot.records,
        "bytes": snapshot.size,
        "recorded_at": millis_text(snapshot.recorded_at),
        "pinned_at": pinned_at,
        "root": snapshot.root.hex(),
    }


def collected_json(found: Sequence[Collected], *, dry_run: bool) -> dict[str, Any]:
    """Return which snapshots of a log were removed, or, with dry_run, would be removed."""
    return {
        "dry_run": dry_run,
        "records": sum(each.records for each in found),
        "bytes": sum(each.removed_bytes for each in found),
        "partitions": [
            {
                "partition": each.partition,
                "kept": each.kept,
                "removed": [{"offset": epoch.offset, "schemas": epoch.schemas} for epoch in each.removed],
                "slower": [stretch._asdict() for stretch in each.slower],
                "records": each.records,
                "bytes": each.removed_bytes,
                "waiting": each.waiting,
                "problems": list(each.problems),
            }
            for each in found
        ],
    }


def state_json(point: Point, view: EntityView) -> dict[str, Any]:
    """Return one entity in JSON. Each field has the newest observation that holds it, each element its own."""
    conflicts = view.conflicts
    shown = MutationFormatter(view.definition.definition, python=False)
    return {
        "entity": view.entity,
        "version": view.version,
        "state_hash": view.state_hash,
        **point_json(point),
        "fields": {name: _field_json(view, shown, name, value) for name, value in view.shown().items()},
        "links": [link_json(each) for each in view.links],
        "conflicts": [
            {
                **each._asdict(),
                "observation": each.observation.hex(),
                "value": shown.value(each.field, each.value),
            }
            for each in conflicts.losers
        ],
        "conflicts_count": conflicts.total,
    }


def link_json(link: Mapping[str, Any]) -> dict[str, Any]:
    """Return a live link and the observation that created it."""
    times = {side: time_text(link[side]) for side in ("valid_from", "valid_to") if link.get(side) is not None}
    return {"relation": link["relation"], "target": link["target"], "by": link["by"].hex(), **times}


def _field_json(view: EntityView, shown: MutationFormatter, name: str, value: Any) -> dict[str, Any]:
    field = {"value": value, **holder_json(view.holder(name))}
    if view.definition.definition.by_first_name[name].reducer in ("union", "append", "map"):
        field["elements"] = [
            ({} if key is None else {"key": shown.key(key)})
            | {"value": shown.value(name, element), **holder_json(holder)}
            for key, element, holder in view.element_holders(name)
        ]
    return field


def holder_json(holder: Holder) -> dict[str, Any]:
    """Return the observation that set a value, in JSON."""
    return {
        "observed_at": time_text(holder.observed_at),
        "recorded_at": millis_text(holder.recorded_at),
        "observation": holder.observation_id,
        "source": source_json(holder.source),
    }


def foreign_json(foreign: Foreign) -> dict[str, Any]:
    """Return the records of a topic that refold did not write."""
    return {"topic": foreign.topic, "records": foreign.records, "first": position_json(foreign.first)}


def set_aside_json(aside: SetAside) -> dict[str, Any]:
    """Return the damaged records of a topic that were set aside or passed over."""
    return {"topic": aside.topic, "records": aside.records, "first": position_json(aside.first)}


def verdict_json(point: Point, verdict: VerifyReport) -> dict[str, Any]:
    """Return the result of `verify` in JSON."""
    return {
        "ok": verdict.ok,
        "root": verdict.root,
        "mismatches": [each._asdict() for each in verdict.mismatches],
        "unchecked": verdict.unchecked,
        "foreign": [foreign_json(each) for each in verdict.foreign],
        "set_aside": [set_aside_json(each) for each in verdict.set_aside],
        "passed_over": [set_aside_json(each) for each in verdict.passed_over],
        "observations": verdict.observations,
        "entities": verdict.entities,
        **point_json(point),
    }


def why_json(link: TraceLink, registry: Registry) -> dict[str, Any]:
    """Return one observation of a chain. A cause that is not in the log before the cut has only its id."""
    observation = link.observation
    return {
        "observation": link.observation_id,
        "entity": None if observation is None else observation.entity,
        "position": None if link.position is None else position_json(link.position),
        "source": None if observation is None else source_json(observation.source),
        "causes": link.causes,
        "kind": None if observation is None else observation.kind,
        "observed_at": None if observation is None else time_text(observation.observed_at),
        "recorded_at": None if link.recorded_at is None else millis_text(link.recorded_at),
        "patch": None if observation is None else patch_of(observation, registry),
        "cleared": None if observation is None else list(observation.cleared),
        "retracts": None if observation is None else [each.hex() for each in observation.retracts],
        "link": None if observation is None or observation.link is None else relation_json(observation.link),
        "depth": link.depth,
    }


def relation_json(link: Relation) -> dict[str, Any]:
    """Return the relation, the target and the times of a link or an unlink."""
    times = {"valid_from": link.valid_from, "valid_to": link.valid_to}
    return {
        "relation": link.relation,
        "target": link.target,
        **{side: time_text(micros) for side, micros in times.items() if micros is not None},
    }


def patch_of(observation: Observation, registry: Registry) -> dict[str, Any]:
    """Return an observation's patch in JSON, using the newest version of its type that has all its fields."""
    versions = registry.versions(observation.type)
    for version in reversed(versions):
        if observation.patch.keys() <= version.definition.by_first_name.keys():
            return patch_json(observation, version.definition)
    return patch_json(observation, versions[-1].definition)


def change_json(change: Change, shown: MutationFormatter, partition: int) -> dict[str, Any]:
    """Return one change of an entity, with the mutations of each step."""
    return {
        "entity": change.entity,
        "from_version": change.from_version,
        "to_version": change.to_version,
        "hash_before": None if change.hash_before is None else change.hash_before.hex(),
        "hash_after": change.hash_after.hex(),
        "definition": change.definition.hex(),
        "through": {"partition": partition, "offset": change.through},
        "redefined": change.redefined,
        "mutations": [row_json(row) for row in change_rows(change, shown, partition)],
    }


def change_rows(change: Change, shown: MutationFormatter, partition: int) -> list[Row]:
    """Return a change's mutations as rows."""
    return [
        row
        for step in change.steps
        for row in rows(
            shown,
            change.entity,
            step.mutations,
            by=step.observation,
            version=step.version,
            partition=partition,
            offset=step.offset,
            observed_at=step.observed_at,
            recorded_at=step.recorded_at,
            source=step.source,
        )
    ]
