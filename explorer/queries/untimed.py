"""Observations of imported runs whose source has no times.

Every observation needs a time, because observations are ordered by time. If the source has none, the importer
generates one. Answers hide a generated time: they say "no time" in text, and null with `synthetic_time` in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from refold.avro.envelope import check_entity
from refold.avro.errors import ValidationError
from refold.streams.client import Log
from refold.streams.cut import Cut

RUNS_AT_ONCE = 500
VALUES = frozenset({"value", "old", "new", "key", "patch", "conflicts"})
"""Keys whose values are recorded data. Objects inside them are never changed, even if they have the form of an
observation.
"""


def untimed_json(log: Log, tree: Any, cut: Cut) -> Any:
    """Mark the observations in an answer whose time was generated.

    Args:
        log: The log that was asked.
        tree: The answer; it is changed in place.
        cut: The point at which the runs of the observations are looked up.

    Returns:
        The same tree.
    """
    observed = list(_observed_objects(tree))
    found = untimed_runs(log, (each["source"]["run"] for each in observed), cut)
    for each in observed:
        if each["source"]["run"] in found:
            each["observed_at"] = None
            each["synthetic_time"] = True
    return tree


def _observed_objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield each object that has both a time of observation and the run that observed it."""
    if isinstance(tree, list):
        for each in tree:
            yield from _observed_objects(each)
    elif isinstance(tree, dict):
        source = tree.get("source")
        if "observed_at" in tree and isinstance(source, Mapping) and isinstance(source.get("run"), str):
            yield tree
        for key, each in tree.items():
            if key not in VALUES:
                yield from _observed_objects(each)


def untimed_runs(log: Log, runs: Iterable[str], cut: Cut) -> set[str]:
    """Return those of the given runs that were imported without any time. A run in which some messages have a time is
    not one of them.
    """
    names = sorted(filter(_is_entity, {f"run/{each}" for each in runs if each}))
    found: set[str] = set()
    for begin in range(0, len(names), RUNS_AT_ONCE):
        for name, view in log.states(names[begin : begin + RUNS_AT_ONCE], cut).items():
            fields = view.fields
            if fields.get("imported_from") and fields.get("synthetic_time") and fields.get("started_at") is None:
                found.add(name.removeprefix("run/"))
    return found


def _is_entity(name: str) -> bool:
    try:
        check_entity(name)
    except ValidationError:
        return False
    return True
