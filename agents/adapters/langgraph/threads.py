"""Threads and checkpoints as they stand in a log: their entities, and what all that was said of one amounts to.

Both are folded here from their observations in log order, each from where the last look ended. So every process that
reads the log decides alike which write of a task came first, and a look costs what is new.

The values that a checkpoint takes from its ancestors.

Few checkpoints store the whole value of a delta channel (LangGraph's DeltaChannel). For any other checkpoint the value
is that of the nearest ancestor that stores it, plus the writes of tasks since then.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from refold.agents.adapters.langgraph.contents import StoredValue, opened, stored_value
from refold.avro.observation import Observation
from refold.streams.client import Log
from refold.streams.log.port import observation_in

DIRECTORY = "langgraph_directory/threads"
THREADS_KEPT = 256
CHECKPOINTS_KEPT = 2048


def quoted(name: str) -> str:
    """A name as it stands in an entity's id: #, % and control characters as %XX of UTF-8; none at all as %."""
    return (
        re.sub("[%#\x00-\x1f\x7f-\x9f]", lambda found: "".join(f"%{each:02X}" for each in found[0].encode()), name)
        or "%"
    )


def thread_entity(thread: str) -> str:
    """langgraph_thread/<thread>"""
    return f"langgraph_thread/{quoted(thread)}"


class CheckpointKey(NamedTuple):
    """Which checkpoint."""

    thread: str
    namespace: str
    checkpoint: str

    @property
    def entity(self) -> str:
        """langgraph_checkpoint/<thread>#[<namespace>#]<checkpoint>"""
        parts = (self.thread, *([self.namespace] if self.namespace else ()), self.checkpoint)
        return f"langgraph_checkpoint/{'#'.join(map(quoted, parts))}"


class Listed(NamedTuple):
    """What a thread's index says of one checkpoint; parent and run are empty where there is none."""

    namespace: str
    checkpoint: str
    parent: str
    run: str


@dataclass(slots=True)
class ThreadIndex:
    """Which checkpoints a thread has, by namespace and id; taken on by `take`.

    waits_at: the checkpoint of the root namespace at which it was interrupted; an interrupt may be recorded before the
    checkpoint. head: the one put last in the root namespace. removed: those that were removed, and not put again.
    """

    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    listed: dict[tuple[str, str], Listed] = field(default_factory=dict)
    removed: set[tuple[str, str]] = field(default_factory=set)
    head: str = ""
    is_deleted: bool = False
    waits_at: str = ""

    def take(self, log: Log, observation: Observation) -> None:
        """The next observation of the thread, in log order."""
        held = observation.patch.get("entry")
        if held is None:
            return
        entry = json.loads(opened(log, held))
        if "delete" in entry:
            self.removed |= self.listed.keys()
            self.listed.clear()
            self.head, self.is_deleted, self.waits_at = "", True, ""
        for each in entry.get("put", ()):
            listed = Listed(*each)
            key = (listed.namespace, listed.checkpoint)
            self.listed[key] = listed
            self.removed.discard(key)
            self.is_deleted = False
            if not listed.namespace:
                self.head = listed.checkpoint
                self.waits_at = self.waits_at if self.waits_at == self.head else ""
        for each in entry.get("remove", ()):
            self.listed.pop((each[0], each[1]), None)
            self.removed.add((each[0], each[1]))
        self.waits_at = entry.get("interrupt", self.waits_at)

    @property
    def has_any(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self.listed or self.removed) and not self.is_deleted

    def run_of(self, key: CheckpointKey) -> str:
        """The run that made a checkpoint that is listed; empty where none is known."""
        return self.listed[key.namespace, key.checkpoint].run

    def latest(self, namespace: str) -> str | None:
        """The greatest id of a namespace: ids grow with time."""
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
    """One checkpoint as the log holds it; taken on by `take`.

    body is None where it was not put, or was erased: writes may come first. fields: what else its last put said.
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

    def take(self, log: Log, observation: Observation) -> None:
        """The next observation of the checkpoint, in log order."""
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
            # As every checkpointer: of what a task writes the first counts, of its errors and interrupts the last.
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
    """A write as JSON; shown: its value, to be read by people."""
    tree = {"task": write.task, "number": write.number, "channel": write.channel, "value": write.value.tree()}
    if write.path:
        tree["path"] = write.path
    return tree if shown is None else tree | {"shown": shown}


def write_of(tree: Mapping[str, Any]) -> StoredWrite:
    """The write behind its JSON."""
    return StoredWrite(tree["task"], tree["number"], tree.get("path", ""), tree["channel"], stored_value(tree["value"]))


@dataclass(slots=True)
class ThreadDirectory:
    """Every thread that ever got a checkpoint, in the order in which they came first."""

    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    threads: dict[str, None] = field(default_factory=dict)

    def take(self, log: Log, observation: Observation) -> None:
        """The next observation of the directory."""
        self.threads[str(observation.patch["thread"])] = None


class Folded(Protocol):
    """What is folded from one entity's observations.

    offset: up to where its partition was read. ids: of its observations, in log order.
    """

    offset: int
    ids: dict[bytes, None]

    def take(self, log: Log, observation: Observation) -> None:
        """The next one, in log order."""


F = TypeVar("F", bound=Folded)


class ThreadReader:
    """Reads threads and checkpoints of a log, whose turn the caller holds. `refresh` sees what others wrote."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._directory = ThreadDirectory()
        self._threads: OrderedDict[str, ThreadIndex] = OrderedDict()
        self._checkpoints: OrderedDict[CheckpointKey, StoredCheckpoint] = OrderedDict()

    def refresh(self) -> None:
        """See what is in the log by now, from here or elsewhere."""
        self._log.port.hand_over()
        self._log.port.refresh()

    def threads(self) -> list[str]:
        """Every thread that ever got a checkpoint, the oldest first."""
        return [*self._caught_up(DIRECTORY, self._directory).threads]

    def thread(self, thread: str) -> ThreadIndex:
        """A thread's index; an empty one where there is no such thread."""
        return self._caught_up(thread_entity(thread), _kept(self._threads, thread, ThreadIndex, THREADS_KEPT))

    def checkpoint(self, key: CheckpointKey) -> StoredCheckpoint:
        """A checkpoint as it stands in the log, whether or not its thread's index lists it."""
        return self._caught_up(key.entity, _kept(self._checkpoints, key, StoredCheckpoint, CHECKPOINTS_KEPT))

    def _caught_up(self, entity: str, folded: F) -> F:
        port = self._log.port
        end = port.ends()[port.partition_of(entity)]
        if end > folded.offset:
            for record in port.entity_records(entity, end, folded.offset):
                if record.id not in folded.ids:  # a process that was killed may have sent it twice
                    folded.take(self._log, observation_in(port.registry, record))
                    folded.ids[record.id] = None
                folded.offset = record.offset + 1
            folded.offset = end
        return folded


K = TypeVar("K")
V = TypeVar("V")


def _kept(cache: OrderedDict[K, V], key: K, new: Callable[[], V], limit: int) -> V:
    """The value of a key, which is now the last to be forgotten."""
    found = cache.pop(key, None)
    cache[key] = found = new() if found is None else found
    if len(cache) > limit:
        cache.popitem(last=False)
    return found


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
