"""Write threads and checkpoints, in the order that saver.py describes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from refold.agents.adapters.folded import settle
from refold.agents.adapters.langgraph.contents import StoredValue
from refold.agents.adapters.langgraph.threads import (
    DIRECTORY,
    CheckpointKey,
    ListedCheckpoint,
    StoredCheckpoint,
    StoredWrite,
    ThreadIndex,
    ThreadReader,
    thread_entity,
    write_tree,
)
from refold.agents.log import AgentLog
from refold.avro.canonical import JsonText, json_text

# The maximum number of causes of an observation: the parent, and the writes of a step with this many tasks.
CAUSES_MAX = 200
_OF_A_CHECKPOINT = ("parent", "step", "source", "run", "body", "body_type", "channels", "metadata", "changed", "writes")
_OF_A_THREAD = ("checkpoint", "step", "source", "run", "values", "interrupts")


class NewCheckpoint(NamedTuple):
    """A checkpoint to be put, whose values are already stored.

    Attributes:
        fields: Step, source and run, each optional.
        shown: Returns a channel's readable value by its name; None, like shown_metadata, if no readable values are
            stored.
    """

    parent: str
    body_type: str
    body: bytes
    values: Mapping[str, StoredValue]
    versions: Mapping[str, Any]
    fields: Mapping[str, Any]
    shown: Callable[[str], JsonText | None] | None
    shown_metadata: JsonText | None = None


class ThreadWriter:
    """Writes into a log. The caller must hold `Log.lock`.

    Args:
        agent: The source of the observations.
    """

    def __init__(self, log: AgentLog, reader: ThreadReader, agent: str) -> None:
        self._log = log
        self._reader = reader
        self._agent = agent

    def put(self, key: CheckpointKey, new: NewCheckpoint) -> None:
        """Record a checkpoint, and then that its thread has it. The caller's flush makes it durable."""
        index = self._reader.thread(key.thread)
        parent = self._reader.checkpoint(key._replace(checkpoint=new.parent)) if new.parent else StoredCheckpoint()
        observation = self._put_checkpoint(key, index, new, parent)
        patch: dict[str, Any] = {"checkpoints": 1}
        cleared = []
        if not key.namespace:
            patch |= {"checkpoint": key.checkpoint, **new.fields}
            if index.is_past_interrupt(key.checkpoint):
                cleared.append("interrupts")
            if new.shown is not None:
                head = self._reader.checkpoint(key._replace(checkpoint=index.head)) if index.head else parent
                patch["values"] = _changes(head.values, new.values, new.shown)
        self._begin(key.thread, index)
        self._enter(key.thread, index, {"put": [list(_listed_checkpoint(key, new))]}, patch, [observation], cleared)

    def _put_checkpoint(
        self, key: CheckpointKey, index: ThreadIndex, new: NewCheckpoint, parent: StoredCheckpoint
    ) -> str:
        patch: dict[str, Any] = {
            "thread": key.thread, "namespace": key.namespace, "checkpoint": key.checkpoint, **new.fields,
            "body": new.body, "body_type": new.body_type,
            "channels": {name: value.tree() | _version(new.versions, name) for name, value in new.values.items()},
        }  # fmt: skip
        if new.parent:
            patch["parent"] = new.parent
        if new.shown is not None:
            changed = _changes(parent.values, new.values, new.shown)
            patch |= {"metadata": new.shown_metadata, "changed": _json_object(changed)}
        causes = [*parent.ids][:CAUSES_MAX]
        return self._observe(key.entity, patch, causes, _cleared_again(index, key))

    def put_writes(self, key: CheckpointKey, writes: Mapping[StoredWrite, Any]) -> None:
        """Record writes of tasks, each with its readable value or None. The caller's flush makes them durable."""
        trees = {f"{each.task}/{each.number}": write_tree(each, shown) for each, shown in writes.items()}
        if any(each.value.pieces for each in writes):
            settle(self._log)
        self._observe(key.entity, {"writes": trees})

    def interrupted(self, key: CheckpointKey, shown: Mapping[str, Any]) -> None:
        """Record the interrupts at which a thread waits, at a checkpoint of the root namespace.

        Args:
            key: The checkpoint.
            shown: The readable values by task. Empty if no readable values are stored: then only the fact that the
                thread waits is recorded.
        """
        index = self._reader.thread(key.thread)
        # An answered interrupt is cleared here if its successor comes before the checkpoint that would clear it.
        cleared = ("interrupts",) if index.is_past_interrupt(key.checkpoint) else ()
        patch = {"interrupts": shown} if shown else {}
        self._enter(key.thread, index, {"interrupt": key.checkpoint}, patch, cleared=cleared)

    def copy(self, source: str, target: str, keys: Sequence[CheckpointKey], hidden: Collection[CheckpointKey],
             shown: Mapping[str, Any] | None) -> None:  # fmt: skip
        """Copy checkpoints to another thread. The caller's flush makes the copy durable.

        Args:
            source: The thread that has the checkpoints.
            target: The thread that gets them, all at once.
            keys: The source's checkpoints, each parent before its child.
            hidden: Those of `keys` that the target does not list.
            shown: The target's readable values; None if none are stored.
        """
        index = self._reader.thread(target)
        heads = [key for key in keys if not key.namespace and key not in hidden]
        puts: list[ListedCheckpoint] = []
        fields: dict[str, Any] = {}
        for key in keys:
            found, to = self._reader.checkpoint(key), key._replace(thread=target)
            patch = {
                **found.fields, "thread": target, "namespace": key.namespace, "checkpoint": key.checkpoint,
                "body": found.body, "body_type": found.body_type,
                "channels": {n: value.tree() | _version(found.versions, n) for n, value in found.values.items()},
            }  # fmt: skip
            if found.writes:
                patch["writes"] = {
                    f"{each.task}/{each.number}": write_tree(each, found.shown_writes.get((each.task, each.number)))
                    for each in found.writes.values()
                }
            self._observe(to.entity, patch, [*found.ids][:CAUSES_MAX], _cleared_again(index, to))
            puts.append(
                ListedCheckpoint(
                    key.namespace, key.checkpoint, found.fields.get("parent", ""), found.fields.get("run", "")
                )
            )
            if heads and key == heads[-1]:
                fields = {name: found.fields[name] for name in ("step", "source", "run") if name in found.fields}
        patch = {"checkpoints": len(keys)}
        if heads:
            patch |= {"checkpoint": heads[-1].checkpoint, **fields}
        if shown is not None:
            patch["values"] = shown
        entry: dict[str, Any] = {"copied": source, "put": [list(each) for each in puts]}
        if hidden:
            entry["remove"] = [[each.namespace, each.checkpoint] for each in hidden]
        self._begin(target, index)
        self._enter(target, index, entry, patch)

    def remove(self, thread: str, keys: Collection[CheckpointKey], kept: Collection[CheckpointKey], at: int) -> None:
        """Remove checkpoints from their thread, all at once. The caller's flush makes it durable.

        Args:
            thread: The thread of the checkpoints.
            keys: The checkpoints.
            kept: Those of `keys` whose contents are still needed.
            at: When, in microseconds.
        """
        entry = {"remove": [[each.namespace, each.checkpoint] for each in keys]}
        self._enter(thread, self._reader.thread(thread), entry, {})
        settle(self._log)
        for key in keys:
            self._observe(key.entity, {"removed_at": at}, cleared=() if key in kept else _OF_A_CHECKPOINT)

    def delete(self, thread: str, at: int) -> None:
        """Delete a thread with all its checkpoints, including hidden ones. The caller's flush makes it durable.

        Args:
            thread: The thread.
            at: When, in microseconds.
        """
        index = self._reader.thread(thread)
        keys = [CheckpointKey(thread, *each) for each in (*index.listed, *index.removed)]
        self._enter(thread, index, {"delete": True}, {"deleted_at": at}, cleared=_OF_A_THREAD)
        settle(self._log)
        for key in keys:
            if self._reader.checkpoint(key).body is not None:
                self._observe(key.entity, {"removed_at": at}, cleared=_OF_A_CHECKPOINT)

    def _begin(self, thread: str, index: ThreadIndex) -> None:
        """Enter a thread in the directory before it gets its first checkpoint."""
        if not index.listed:
            self._observe(DIRECTORY, {"thread": thread, "threads": 1})

    def _enter(
        self, thread: str, index: ThreadIndex, entry: Mapping[str, Any], patch: Mapping[str, Any],
        causes: Sequence[str] = (), cleared: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Record an entry of a thread, after making sure that everything before it cannot be lost without it."""
        settle(self._log)
        again = ("deleted_at",) if index.is_deleted and "deleted_at" not in patch else ()
        patch = {"thread": thread, "entry": entry, **patch}
        self._observe(thread_entity(thread), patch, causes, [*cleared, *again])

    def _observe(
        self, entity: str, patch: Mapping[str, Any], causes: Sequence[str | bytes] = (), cleared: Sequence[str] = ()
    ) -> str:
        return self._log.observe(entity, patch, source=self._agent, causes=causes, cleared=cleared)


def _changes(
    before: Mapping[str, StoredValue], values: Mapping[str, StoredValue], shown: Callable[[str], JsonText | None]
) -> dict[str, JsonText | None]:
    """Return the readable values of the channels that differ: None for null and for channels that no longer exist."""
    gone: dict[str, JsonText | None] = dict.fromkeys(before.keys() - values.keys())
    return gone | {name: shown(name) for name, value in values.items() if before.get(name) != value}


def _json_object(members: Mapping[str, JsonText | None]) -> JsonText:
    written = (f"{json_text(name)}:{'null' if each is None else each.text}" for name, each in sorted(members.items()))
    return JsonText(f"{{{','.join(written)}}}")


def _version(versions: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"version": versions[name]} if name in versions else {}


def _listed_checkpoint(key: CheckpointKey, new: NewCheckpoint) -> ListedCheckpoint:
    return ListedCheckpoint(key.namespace, key.checkpoint, new.parent, new.fields.get("run", ""))


def _cleared_again(index: ThreadIndex, key: CheckpointKey) -> list[str]:
    """Return the fields to clear when a removed checkpoint is put again under its id."""
    return ["removed_at", "writes"] if (key.namespace, key.checkpoint) in index.removed else []
