"""A LangGraph checkpointer whose threads are entities of a log.

    from refold.langgraph import RefoldSaver

    with RefoldSaver("file:.refold") as saver:
        graph = builder.compile(checkpointer=saver)

The log stores:

| entity | one for each | holds |
|---|---|---|
| langgraph_thread | thread | its current state, and one entry for each change of its list of checkpoints |
| langgraph_checkpoint | checkpoint | where its channels' values are, its metadata, the writes of the tasks after it |
| langgraph_content | content of a value | bytes, by their hash (pieces.py: a value that grows stores what is new) |
| langgraph_directory | log | the names of threads |

`put` writes

1. the contents that the log does not have;
2. the checkpoint, caused by its parent and its parent's writes;
3. for a thread's first checkpoint, the thread's name in the directory;
4. the thread's entry, caused by the checkpoint. From then on the checkpoint exists.

Then it waits until all of it is durable. A `file:` log keeps this order by itself. On Kafka, the entities are in
different partitions, so everything before the entry is made durable before the entry is sent. A process killed in
between leaves at most contents and a checkpoint that nothing lists. `put_writes` is one observation of the checkpoint,
after the contents.

A read fetches the entities' observations since the last read through the log's index. On Kafka this is a worker's
index; observations that the worker has not folded yet are read from the log. So a read sees everything that any process
wrote before it.

A log never deletes: `delete_thread`, `delete_for_runs` and `prune` record that checkpoints no longer exist. From then
on the state contains nothing of them; an earlier state still does. A kept checkpoint may need the writes of ancestors
for its delta channels; these are hidden and not deleted.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT

from refold.agents.adapters.langgraph.contents import Contents, StoredValue
from refold.agents.adapters.langgraph.listed_classes import ListedClassesSerializer
from refold.agents.adapters.langgraph.readable import readable, readable_json
from refold.agents.adapters.langgraph.thread_writer import NewCheckpoint, ThreadWriter
from refold.agents.adapters.langgraph.threads import (
    CheckpointKey,
    StoredCheckpoint,
    StoredWrite,
    ThreadReader,
    needed_by,
    walked,
)
from refold.agents.adapters.log_holder import LogContext
from refold.agents.log import AgentLog

# How many checkpoints an async listing reads at once.
PAGE = 20


class RefoldSaver(LogContext, BaseCheckpointSaver[int]):
    """Stores a graph's checkpoints in a log; sync and async, for any number of threads and processes.

    A context manager: on exit it closes the log if it opened it.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | AgentLog | None = None,
        *,
        classes: Iterable[type] = (),
        serde: SerializerProtocol | None = None,
        agent: str = "langgraph",
        is_readable: bool | None = None,
    ) -> None:
        """Open the log.

        Args:
            log: Its URL, file:PATH or kafka://HOST:PORT/PREFIX, as for `refold.open`; or an open log, which `close`
                leaves open.
            classes: Classes of your own that the graph's state has. A value of any other class is refused with
                InputError, both when it is written and when it is read. Messages and LangGraph's own classes need not
                be listed.
            serde: How values are written and read, instead of LangGraph's serializer for listed classes. LangGraph's
                serializer with its own defaults loads any class that a checkpoint names (docs/SECURITY.md).
            agent: The source of the observations.
            is_readable: Whether values are also stored as readable JSON. None: only if the serializer is LangGraph's
                own, which does not encrypt.
        """
        super().__init__(serde=ListedClassesSerializer(classes) if serde is None else serde)
        self._hold(log)
        self._is_readable = isinstance(self.serde, JsonPlusSerializer) if is_readable is None else is_readable
        self._contents = Contents(self._log, agent)
        self._reader = ThreadReader(self._log)
        self._writer = ThreadWriter(self._log, self._reader, agent)

    # Writing

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:  # fmt: skip
        """As BaseCheckpointSaver; durable on return."""
        key, parent_id = _key(config, checkpoint["id"]), get_checkpoint_id(config) or ""
        metadata = get_checkpoint_metadata(config, metadata)
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        body_type, body = self.serde.dumps_typed({"checkpoint": rest, "metadata": metadata})
        channels = checkpoint["channel_values"]
        with self._write_transaction():
            parent = self._reader.checkpoint(key._replace(checkpoint=parent_id)) if parent_id else StoredCheckpoint()
            new = NewCheckpoint(
                parent_id, body_type, body, self._values(checkpoint, new_versions, parent),
                checkpoint["channel_versions"], _fields(metadata),
                cache(lambda name: readable_json(channels[name])) if self._is_readable else None,
                readable_json(metadata) if self._is_readable else None,
            )  # fmt: skip
            self._writer.put(key, new)
        return _config(key)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As BaseCheckpointSaver; durable on return."""
        key = _key(config, config["configurable"]["checkpoint_id"])
        typed = [self.serde.dumps_typed(value) for _, value in writes]
        with self._write_transaction():
            known = self._reader.checkpoint(key).writes
            new: dict[StoredWrite, Any] = {}
            for position, ((channel, value), data) in enumerate(zip(writes, typed, strict=True)):
                number = WRITES_IDX_MAP.get(channel, position)
                if number < 0 or (task_id, number) not in known:
                    write = StoredWrite(task_id, number, task_path, channel, self._contents.store(*data))
                    new[write] = readable(value) if self._is_readable else None
            if new:
                self._writer.put_writes(key, new)
            waits = {each.task: shown for each, shown in new.items() if each.channel == INTERRUPT}
            if waits and not key.namespace:  # interrupts of subgraphs belong to their parents as well
                self._writer.interrupted(key, waits if self._is_readable else {})

    def delete_thread(self, thread_id: str) -> None:
        """As BaseCheckpointSaver; durable on return."""
        with self._write_transaction():
            if self._reader.thread(str(thread_id)).has_any:
                self._writer.delete(str(thread_id), self._now())

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As BaseCheckpointSaver; durable on return. Parts that checkpoints of other runs need are hidden, not
        deleted."""
        wanted = {*map(str, run_ids)}
        with self._write_transaction():
            for thread in self._reader.threads():
                index = self._reader.thread(thread)
                self._remove(thread, [each for each in self._keys(thread) if index.run_of(each) in wanted])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As BaseCheckpointSaver; durable on return. Parts that the kept checkpoints need are hidden, not deleted."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy {strategy!r}: keep_latest or delete")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            with self._write_transaction():
                latest = {each.namespace: each for each in reversed(self._keys(thread))}
                self._remove(thread, [each for each in self._keys(thread) if latest[each.namespace] != each])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As BaseCheckpointSaver; durable on return. The target gets the whole copy or none of it."""
        source, target = str(source_thread_id), str(target_thread_id)
        with self._write_transaction():
            listed = self._keys(source)
            if not listed or source == target:
                return
            hidden = needed_by(self._reader, self._metadata, listed) - {*listed}
            keys = sorted([*listed, *hidden], key=lambda key: key.checkpoint)
            head = next((key for key in listed if not key.namespace), None)
            shown = None
            if self._is_readable and head is not None:
                found = self._reader.checkpoint(head)
                shown = {name: readable(self._load_value(value)) for name, value in found.values.items()}
            self._writer.copy(source, target, keys, hidden, shown)

    def _remove(self, thread: str, keys: Sequence[CheckpointKey]) -> None:
        if keys:
            removed = {*keys}
            kept = [each for each in self._keys(thread) if each not in removed]
            self._writer.remove(thread, keys, needed_by(self._reader, self._metadata, kept), self._now())

    def _values(
        self, checkpoint: Checkpoint, new_versions: ChannelVersions, parent: StoredCheckpoint
    ) -> dict[str, StoredValue]:
        """Return each channel's stored value. A version that the parent has is not written again."""
        values = {}
        versions = checkpoint["channel_versions"]
        for name, value in checkpoint["channel_values"].items():
            before = parent.values.get(name)
            is_same = name not in new_versions and name in versions and parent.versions.get(name) == versions[name]
            if before is None or not is_same:
                before = self._contents.store(*self.serde.dumps_typed(value), before)
            values[name] = before
        return values

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        """Hold `Log.lock` and read its latest records first. On exit, everything recorded inside is durable."""
        with self._log.lock:
            self._reader.refresh()
            yield
            end = self._log.port.begin_flush()
        end()

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As BaseCheckpointSaver."""
        with self._log.lock:
            self._reader.refresh()
            key = _key(config, get_checkpoint_id(config) or "")
            index = self._reader.thread(key.thread)
            if not key.checkpoint:
                key = key._replace(checkpoint=index.latest(key.namespace) or "")
            return self._tuple(key) if (key.namespace, key.checkpoint) in index.listed else None

    def list(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None, limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:  # fmt: skip
        """As BaseCheckpointSaver: newest first; each checkpoint is read when the iteration reaches it."""
        found = self._matching_checkpoints(config, filter or {}, before)
        return found if limit is None else islice(found, max(limit, 0))

    def _matching_checkpoints(
        self, config: RunnableConfig | None, wanted: Mapping[str, Any], before: RunnableConfig | None
    ) -> Iterator[CheckpointTuple]:
        configurable = (config or {}).get("configurable") or {}
        namespace, checkpoint = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id")
        bound = get_checkpoint_id(before) if before is not None else None
        with self._log.lock:
            self._reader.refresh()
            threads = [str(configurable["thread_id"])] if "thread_id" in configurable else self._reader.threads()
            keys = [
                key for thread in threads for key in self._keys(thread)
                if namespace in (None, key.namespace) and (not checkpoint or checkpoint == key.checkpoint)
                and (bound is None or key.checkpoint < bound)
            ]  # fmt: skip
        keys.sort(key=lambda key: key.checkpoint, reverse=True)
        for key in keys:
            with self._log.lock:
                metadata = self._metadata(key)
                is_wanted = all(name in metadata and metadata[name] == value for name, value in wanted.items())
                found = self._tuple(key) if is_wanted else None
            if found is not None:
                yield found

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As BaseCheckpointSaver. The history includes ancestors that are no longer listed."""
        with self._log.lock:
            self._reader.refresh()
            key = _key(config, get_checkpoint_id(config) or "")
            if not key.checkpoint:
                key = key._replace(checkpoint=self._reader.thread(key.thread).latest(key.namespace) or "")
            writes: dict[str, builtins.list[PendingWrite]] = {name: [] for name in channels}
            seeds: dict[str, Any] = {}
            for found in walked(self._reader, key, {*channels}):
                for write in reversed(_sorted_writes(found.checkpoint)):
                    if write.channel in found.open_channels:
                        writes[write.channel].append((write.task, write.channel, self._load_value(write.value)))
                for name in found.seeds:
                    seeds[name] = self._load_value(found.checkpoint.values[name])
        found_of: dict[str, DeltaChannelHistory] = {}
        for name in channels:
            found_of[name] = {"writes": writes[name][::-1]}
            if name in seeds:
                found_of[name]["seed"] = seeds[name]
        return found_of

    def _keys(self, thread: str) -> builtins.list[CheckpointKey]:
        """Return a thread's listed checkpoints, newest first."""
        listed = (CheckpointKey(thread, *each) for each in self._reader.thread(thread).listed)
        return sorted(listed, key=lambda key: key.checkpoint, reverse=True)

    def _tuple(self, key: CheckpointKey) -> CheckpointTuple | None:
        found = self._reader.checkpoint(key)
        if found.body is None:
            return None
        body = self.serde.loads_typed((found.body_type, found.body))
        checkpoint = body["checkpoint"]
        checkpoint["channel_values"] = {name: self._load_value(value) for name, value in found.values.items()}
        parent = found.fields.get("parent")
        return CheckpointTuple(
            _config(key), checkpoint, body["metadata"],
            _config(key._replace(checkpoint=parent)) if parent else None,
            [(each.task, each.channel, self._load_value(each.value)) for each in _sorted_writes(found)],
        )  # fmt: skip

    def _metadata(self, key: CheckpointKey) -> Mapping[str, Any]:
        found = self._reader.checkpoint(key)
        if found.body is None:
            return {}
        metadata: Mapping[str, Any] = self.serde.loads_typed((found.body_type, found.body))["metadata"]
        return metadata

    def _load_value(self, value: StoredValue) -> Any:
        return self.serde.loads_typed((value.type, self._contents.load(value)))

    @staticmethod
    def _now() -> int:
        return time.time_ns() // 1000

    # Async versions. They run in a thread, because each waits for the disk or for brokers.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None, limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:  # fmt: skip
        """As `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while page := await asyncio.to_thread(lambda: [*islice(found, PAGE)]):
            for each in page:
                yield each

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:  # fmt: skip
        """As `put`."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await asyncio.to_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))


def _key(config: RunnableConfig, checkpoint: str) -> CheckpointKey:
    configurable = config["configurable"]
    return CheckpointKey(str(configurable["thread_id"]), configurable.get("checkpoint_ns") or "", checkpoint)


def _config(key: CheckpointKey) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": key.thread, "checkpoint_ns": key.namespace, "checkpoint_id": key.checkpoint,
        }
    }  # fmt: skip


def _fields(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a checkpoint's metadata that are stored in fields of their own."""
    names = (("step", "step", int), ("source", "source", str), ("run", "run_id", str))
    return {field: metadata[name] for field, name, kind in names if isinstance(metadata.get(name), kind)}


def _sorted_writes(found: StoredCheckpoint) -> builtins.list[StoredWrite]:
    return sorted(found.writes.values(), key=lambda each: writes_sort_key(each.path, each.task, each.number))
