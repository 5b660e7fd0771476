"""Read threads and checkpoints from a log: their entities, and the state that follows from their observations.

Both are folded here from their observations in log order, starting where the last read ended. So all processes that
read the log agree on which write of a task came first, and a read costs only what is new.

The values that a checkpoint takes from its ancestors:

Few checkpoints store the whole value of a delta channel (LangGraph's DeltaChannel). For any other checkpoint the value
is that of the nearest ancestor that stores it, plus the writes of tasks since then.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from refold.agents.adapters.folded import caught_up, recent
from refold.agents.adapters.langgraph.contents import StoredValue, opened, stored_value
from refold.agents.adapters.quoting import quoted
from refold.avro.observation import Observation
from refold.streams.client import Log

DIRECTORY = "langgraph_directory/threads"
THREADS_KEPT = 256
CHECKPOINTS_KEPT = 2048


def thread_entity(thread: str) -> str:
    """Return the entity langgraph_thread/<thread>."""
    return f"langgraph_thread/{quoted(thread)}"


class CheckpointKey(NamedTuple):
    """Identifies a checkpoint."""

    thread: str
    namespace: str
    checkpoint: str

    @property
    def entity(self) -> str:
        """The entity langgraph_checkpoint/<thread>#[<namespace>#]<checkpoint>."""
        parts = (self.thread, *([self.namespace] if self.namespace else ()), self.checkpoint)
        return f"langgraph_checkpoint/{'#'.join(map(quoted, parts))}"


class ListedCheckpoint(NamedTuple):
    """A checkpoint's entry in its thread's index; parent and run are empty if there is none."""

    namespace: str
    checkpoint: str
    parent: str
    run: str


@dataclass(slots=True)
class ThreadIndex:
    """Which checkpoints a thread has, by namespace and id. `apply` updates it.

    Attributes:
        waits_at: The checkpoint of the root namespace at which the thread was interrupted. The interrupt may be
            recorded before that checkpoint, and before earlier ones: LangGraph puts checkpoints and writes in different
            threads.
        head: The checkpoint put last in the root namespace.
        removed: The checkpoints that were removed and not put again.
    """

    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    listed: dict[tuple[str, str], ListedCheckpoint] = field(default_factory=dict)
    removed: set[tuple[str, str]] = field(default_factory=set)
    head: str = ""
    is_deleted: bool = False
    waits_at: str = ""

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation of the thread, in log order."""
        held = observation.patch.get("entry")
        if held is None:
            return
        entry = json.loads(opened(log, held))
        if "delete" in entry:
            self.removed |= self.listed.keys()
            self.listed.clear()
            self.head, self.is_deleted, self.waits_at = "", True, ""
        for each in entry.get("put", ()):
            listed = ListedCheckpoint(*each)
            key = (listed.namespace, listed.checkpoint)
            self.listed[key] = listed
            self.removed.discard(key)
            self.is_deleted = False
            if not listed.namespace:
                self.head = listed.checkpoint
                if self.is_past_interrupt(self.head):
                    self.waits_at = ""
        for each in entry.get("remove", ()):
            self.listed.pop((each[0], each[1]), None)
            self.removed.add((each[0], each[1]))
        self.waits_at = entry.get("interrupt", self.waits_at)

    @property
    def has_any(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self.listed or self.removed) and not self.is_deleted

    def is_past_interrupt(self, checkpoint: str) -> bool:
        """Return whether a checkpoint of the root namespace is later than the one at which the thread waits. Ids grow
        with time. False if the thread does not wait."""
        return self.waits_at != "" and checkpoint > self.waits_at

    def run_of(self, key: CheckpointKey) -> str:
        """Return the run that made a listed checkpoint; empty if it is not known."""
        return self.listed[key.namespace, key.checkpoint].run

    def latest(self, namespace: str) -> str | None:
        """Return the greatest checkpoint id of a namespace, None if it has none. Ids grow with time."""
        return max((each for ns, each in self.listed if ns == namespace), default=None)


class StoredWrite(NamedTuple):
    """One write of a task."""

    task: str
    number: int
    path: str
    channel: str
    value: StoredValue


@dataclass(slots=True)
class StoredCheckpoint:
    """One checkpoint as the log holds it. `apply` updates it.

    Attributes:
        body: The checkpoint's bytes; None if it was not put or was erased. Writes may come before the put.
        fields: The other fields of its last put.
    """

    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    body_type: str = ""
    body: bytes | None = None
    values: dict[str, StoredValue] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    writes: dict[tuple[str, int], StoredWrite] = field(default_factory=dict)
    shown_writes: dict[tuple[str, int], Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation of the checkpoint, in log order."""
        if "writes" in observation.cleared:
            self.writes.clear()
            self.shown_writes.clear()
        if "body" in observation.cleared:
            self.body = None
        patch = observation.patch
        if "body" in patch:
            self._put(log, patch)
        for each in _members(patch.get("writes")):
            tree = json.loads(opened(log, each))
            write = write_of(tree)
            # As in every checkpointer: a task's first write counts, but for its errors and interrupts the last.
            if write.number < 0 or (write.task, write.number) not in self.writes:
                self.writes[write.task, write.number] = write
                self.shown_writes[write.task, write.number] = tree.get("shown")

    def _put(self, log: Log, patch: Mapping[str, Any]) -> None:
        self.body, self.body_type = opened(log, patch["body"]), patch["body_type"]
        channels = json.loads(opened(log, patch["channels"]))
        self.values = {name: stored_value(tree) for name, tree in channels.items()}
        self.versions = {name: tree.get("version") for name, tree in channels.items()}
        self.fields = {name: patch[name] for name in ("step", "source", "run", "parent") if name in patch}
        for name in ("metadata", "changed"):
            if name in patch:
                self.fields[name] = json.loads(opened(log, patch[name]))


def _members(held: Any) -> Iterator[Any]:
    return iter(held.values() if isinstance(held, Mapping) else ())


def write_tree(write: StoredWrite, shown: Any) -> dict[str, Any]:
    """Return a write as JSON.

    Args:
        write: The write.
        shown: Its readable value; None if it has none.
    """
    tree = {"task": write.task, "number": write.number, "channel": write.channel, "value": write.value.tree()}
    if write.path:
        tree["path"] = write.path
    return tree if shown is None else tree | {"shown": shown}


def write_of(tree: Mapping[str, Any]) -> StoredWrite:
    """Return the write that `write_tree` encoded."""
    return StoredWrite(tree["task"], tree["number"], tree.get("path", ""), tree["channel"], stored_value(tree["value"]))


@dataclass(slots=True)
class ThreadDirectory:
    """Every thread that ever got a checkpoint, in the order in which they were first named."""

    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    threads: dict[str, None] = field(default_factory=dict)

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation of the directory."""
        self.threads[str(observation.patch["thread"])] = None


class ThreadReader:
    """Reads threads and checkpoints of a log. The caller must hold `Log.lock`.

    `refresh` makes the records of other processes visible.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._directory = ThreadDirectory()
        self._threads: OrderedDict[str, ThreadIndex] = OrderedDict()
        self._checkpoints: OrderedDict[CheckpointKey, StoredCheckpoint] = OrderedDict()

    def refresh(self) -> None:
        """Make everything visible that is in the log now, from this process and others."""
        self._log.port.publish()
        self._log.port.refresh()

    def threads(self) -> list[str]:
        """Return every thread that ever got a checkpoint, oldest first."""
        return [*caught_up(self._log, DIRECTORY, self._directory).threads]

    def thread(self, thread: str) -> ThreadIndex:
        """Return a thread's index; an empty one if there is no such thread."""
        return caught_up(self._log, thread_entity(thread), recent(self._threads, thread, ThreadIndex, THREADS_KEPT))

    def checkpoint(self, key: CheckpointKey) -> StoredCheckpoint:
        """Return a checkpoint as the log holds it, whether or not its thread's index lists it."""
        return caught_up(self._log, key.entity, recent(self._checkpoints, key, StoredCheckpoint, CHECKPOINTS_KEPT))


DELTA_COUNTERS = "counters_since_delta_snapshot"


class Ancestor(NamedTuple):
    """An ancestor on the path to whole values of channels.

    Attributes:
        open_channels: The channels without a whole value in any nearer ancestor.
        seeds: The channels among them with a whole value in this ancestor.
    """

    key: CheckpointKey
    checkpoint: StoredCheckpoint
    open_channels: Set[str]
    seeds: Set[str]


def walked(reader: ThreadReader, key: CheckpointKey, channels: Set[str]) -> Iterator[Ancestor]:
    """Yield the ancestors of a checkpoint, nearest first, until a whole value of each channel is found, or the root.

    Args:
        reader: Reads the checkpoints.
        key: The checkpoint.
        channels: The channels whose whole values are searched.
    """
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
    """Return the ancestors without which the given checkpoints cannot be restored.

    Args:
        reader: Reads the checkpoints.
        metadata: Returns the metadata of a checkpoint.
        keys: The checkpoints.
    """
    needed: set[CheckpointKey] = set()
    for key in keys:
        channels = (metadata(key).get(DELTA_COUNTERS) or {}).keys() - reader.checkpoint(key).values.keys()
        needed.update(each.key for each in walked(reader, key, channels))
    return needed
