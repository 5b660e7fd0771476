"""A LangGraph store whose items are entities of a log.

    from refold.langgraph import RefoldStore

    with RefoldStore("file:.refold") as store:
        graph = builder.compile(store=store)

The log stores:

| entity | one for each | holds |
|---|---|---|
| langgraph_item | item | its namespace, key and value, when it was put first and last, and by which thread and node |
| langgraph_store | log | the items that ever got a value: its history is their index |

The item with the key `tea` in the namespace `("users", "ann")` is the entity `langgraph_item/users#ann#tea`.

`batch` does the following, as LangGraph's own stores do:

1. It checks every operation: namespaces, and the values, which must be JSON. If one is refused, nothing is written.
2. It reads what is in the log now, and answers all reads of the batch from this. So a read does not see the puts of
   its own batch.
3. Of several puts and deletes of one item it takes the last.
4. Items that the index does not have are added to it, in one observation.
5. Each put, and each delete of an item that exists, is one observation of the item. A put states the whole value.
6. It waits until all of it is durable.

A `file:` log keeps the order of 4 and 5 by itself. On Kafka they are in different partitions, so the index is made
durable before an item is written. A process killed in between leaves at most names in the index without items, and
items of the batch that were written before others.

An observation of an item has a later time than every observation of the item that was read in 2. So a put that follows
another one wins, whatever the clocks of their processes. Of puts at the same time all processes take the same one.
Within one store the clock only goes forward, so `search` has the order of its puts.

`search` returns the items below the prefix that match the filter, the ones put last first. There are no embeddings.
With a query, items are ordered first by the share of the query's words that their values contain; this is their score.
As in LangGraph's store without an index, a query leaves no item out, and the argument `index` of a put has no effect.

`list_namespaces` returns the namespaces of items that exist.

A put with a time to live is refused. A log never deletes: an earlier state still shows a deleted item.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.config import get_config
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from refold.agents.adapters.folded import settle
from refold.agents.adapters.langgraph.items import INDEX, ItemKey, ItemReader, StoredItem, last_observed_at
from refold.agents.adapters.langgraph.matching import is_under, matches, share_found, words
from refold.agents.adapters.log_holder import LogContext
from refold.agents.log import AgentLog
from refold.avro.canonical import json_tree
from refold.avro.errors import InputError

_OF_A_VALUE = ("value", "created_at", "updated_at", "thread", "node")


class RefoldStore(LogContext, BaseStore):
    """Stores a graph's items in a log; sync and async, for any number of threads and processes.

    A context manager: on exit it closes the log if it opened it.
    """

    def __init__(self, log: str | os.PathLike[str] | AgentLog | None = None, *, agent: str = "langgraph") -> None:
        """Open the log.

        Args:
            log: Its URL, file:PATH or kafka://HOST:PORT/PREFIX, as for `refold.open`; or an open log, such as
                `RefoldSaver.log`, which `close` leaves open.
            agent: The source of the observations.
        """
        self._hold(log)
        self._agent = agent
        self._items = ItemReader(self._log)
        self._clock_micros = 0

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """As BaseStore; what it put is durable on return.

        Raises:
            InputError: A value is not JSON, a name is too long, or a filter's operator is unknown.
            InvalidNamespaceError: A label of a namespace is empty, or contains a period.
            NotImplementedError: A put has a time to live.
        """
        operations = [*ops]
        puts = _puts_of(operations)
        with self._log.lock:
            self._items.refresh()
            results = [self._answer(op) for op in operations]
            if not puts:
                return results
            self._write(puts)
            end = self._log.port.begin_flush()
        end()
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`. It runs in a thread, because it waits for the disk or for brokers."""
        return await asyncio.to_thread(self.batch, ops)

    # Reading

    def _answer(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            key = ItemKey(tuple(op.namespace), op.key)
            found = self._items.items([key]).get(key)
            return None if found is None else Item(**_parts(key, found))
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        return None

    def _search(self, op: SearchOp) -> list[SearchItem]:
        prefix, filters = tuple(op.namespace_prefix), op.filter or {}
        found = [
            (key, item) for key, item in self._items_under(prefix).items()
            if all(matches(item.value.get(name), wanted) for name, wanted in filters.items())
        ]  # fmt: skip
        found.sort(key=lambda each: each[0])
        found.sort(key=lambda each: each[1].updated_at, reverse=True)
        wanted_words = words(op.query or "")
        if not wanted_words:
            return [SearchItem(**_parts(key, item)) for key, item in found[op.offset : op.offset + op.limit]]
        scored = [(share_found(wanted_words, item.value), key, item) for key, item in found]
        scored.sort(key=lambda each: each[0], reverse=True)
        some = scored[op.offset : op.offset + op.limit]
        return [SearchItem(**_parts(key, item), score=score) for score, key, item in some]

    def _items_under(self, prefix: tuple[str, ...]) -> dict[ItemKey, StoredItem]:
        """Return the items that exist in the namespaces that begin with a prefix."""
        return self._items.items(
            ItemKey(namespace, key)
            for namespace, keys in self._items.index.namespaces.items()
            if namespace[: len(prefix)] == prefix
            for key in keys
        )

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        names = {key.namespace for key in self._items_under(())}
        found = {name[: op.max_depth] for name in names if is_under(name, op.match_conditions or ())}
        return sorted(found)[op.offset : op.offset + op.limit]

    # Writing

    def _write(self, puts: Mapping[ItemKey, Any]) -> None:
        """Record puts (an item's value) and deletes (None). The caller's flush makes them durable."""
        index = self._items.index
        added = [[*key.namespace, key.key] for key, value in puts.items() if value is not None and key not in index]
        entities = self._items.entities([key.entity for key in puts])
        if added:
            self._observe(INDEX, {"entry": added, "items": len(added)}, self._tick())
            settle(self._log)
        graph = _place_in_graph()
        for key, value in puts.items():
            at = max(self._tick(), last_observed_at(entities[key.entity]) + 1)
            name = {"namespace": [*key.namespace], "key": key.key}
            if value is not None:
                put = {"value": value, "created_at": at, "updated_at": at}
                self._observe(key.entity, name | put | graph, at, ("deleted_at", "thread", "node"))
            elif "value" in self._items.fields(entities[key.entity]):
                self._observe(key.entity, name | {"deleted_at": at}, at, _OF_A_VALUE)

    def _tick(self) -> int:
        """Return the time in microseconds, later at each call also if the system's clock is set back."""
        self._clock_micros = max(time.time_ns() // 1000, self._clock_micros + 1)
        return self._clock_micros

    def _observe(self, entity: str, patch: Mapping[str, Any], at: int, cleared: Sequence[str] = ()) -> None:
        """Record an observation that was made at a time in microseconds; it may be ahead of this process's clock."""
        self._log.observe(entity, patch, observed_at=at, source=self._agent, cleared=cleared, allow_future=True)


def _puts_of(ops: Iterable[Op]) -> dict[ItemKey, Any]:
    """Check every operation, and return the last put of each item: its value as JSON, or None to delete it."""
    found: dict[ItemKey, Any] = {}
    for op in ops:
        validate_op_namespace(op)
        if isinstance(op, PutOp):
            if op.ttl is not None:
                raise NotImplementedError("RefoldStore has no time to live: put the item without ttl, and delete it")
            key = ItemKey(tuple(op.namespace), op.key)
            found[key] = None if op.value is None else _checked_value(key, op.value)
        elif not isinstance(op, (GetOp, SearchOp, ListNamespacesOp)):
            raise InputError(f"{op!r:.80} is no operation of a store")
    return found


def _checked_value(key: ItemKey, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise InputError(f"{key.entity}: a value is a mapping, and this is of type {type(value).__name__}")
    return json_tree(value, f"{key.entity}.value")


def _place_in_graph() -> dict[str, str]:
    """Return the thread and the node of the graph that runs here, as far as there are any."""
    try:
        config = get_config()
    except RuntimeError:  # no graph runs here
        return {}
    found = {
        "thread": (config.get("configurable") or {}).get("thread_id"),
        "node": (config.get("metadata") or {}).get("langgraph_node"),
    }
    return {name: str(each) for name, each in found.items() if each}


def _parts(key: ItemKey, item: StoredItem) -> dict[str, Any]:
    created_at, updated_at = map(_time, (item.created_at, item.updated_at))
    return {
        "namespace": key.namespace, "key": key.key, "value": item.value, "created_at": created_at,
        "updated_at": updated_at,
    }  # fmt: skip


def _time(micros: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=micros)


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
