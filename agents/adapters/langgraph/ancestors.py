"""The values that a checkpoint takes from its ancestors.

Few checkpoints store the whole value of a delta channel (LangGraph's DeltaChannel). For any other checkpoint the value
is that of the nearest ancestor that stores it, plus the writes of tasks since then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

from refold.agents.adapters.langgraph.threads import CheckpointKey, StoredCheckpoint, ThreadReader

DELTA_COUNTERS = "counters_since_delta_snapshot"


class Ancestor(NamedTuple):
    """An ancestor on the path to whole values of channels.

    open_channels: those without a whole value in any nearer ancestor. seeds: those of them with a whole value in this
    one.
    """

    key: CheckpointKey
    checkpoint: StoredCheckpoint
    open_channels: Set[str]
    seeds: Set[str]


def walked(reader: ThreadReader, key: CheckpointKey, channels: Set[str]) -> Iterator[Ancestor]:
    """The ancestors of a checkpoint, the nearest first, until each of some channels was found whole, or to the root."""
    seen = {key}
    remaining = {*channels}
    parent = reader.checkpoint(key).fields.get("parent")
    while parent and remaining:
        key = key._replace(checkpoint=parent)
        found = reader.checkpoint(key)
        if key in seen or found.body is None:
            return
        seen.add(key)
        ancestor = Ancestor(key, found, frozenset(remaining), remaining & found.values.keys())
        yield ancestor
        remaining -= ancestor.seeds
        parent = found.fields.get("parent")


def needed_by(
    reader: ThreadReader, metadata: Callable[[CheckpointKey], Mapping[str, Any]], keys: Iterable[CheckpointKey]
) -> set[CheckpointKey]:
    """The ancestors that some checkpoints cannot be read whole without. metadata: of a checkpoint."""
    needed: set[CheckpointKey] = set()
    for key in keys:
        channels = (metadata(key).get(DELTA_COUNTERS) or {}).keys() - reader.checkpoint(key).values.keys()
        needed.update(each.key for each in walked(reader, key, channels))
    return needed
