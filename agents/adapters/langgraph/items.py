"""Read the items of a LangGraph store from a log: their index, and the items that were asked for, folded.

An item is the fold of its observations, as `refold state` shows it. So a retraction or a correction that somebody
records changes the item for the graph too.

`refresh` folds what is new into the items that are cached. It reads each new record of the log once, of any entity. If
there are more than `pass_records`, the cache is emptied instead, and an item is read again when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from refold.agents.adapters.folded import caught_up
from refold.agents.adapters.langgraph.contents import opened
from refold.agents.adapters.quoting import quoted
from refold.avro.envelope import check_entity
from refold.avro.errors import DamagedRecord, InputError
from refold.avro.observation import Observation
from refold.reducers.entity import Entity
from refold.reducers.fold import Seen
from refold.reducers.order import order_key, split_order_key
from refold.reducers.state import state_tree
from refold.streams.client import Log
from refold.streams.log.port import LogPort, Record, firsts, observation_in
from refold.streams.table.folds import Folds

ITEM_TYPE = "langgraph_item"
INDEX = "langgraph_store/items"
PASS_RECORDS = 5000
ITEMS_KEPT = 20_000


class ItemKey(NamedTuple):
    """Identifies an item."""

    namespace: tuple[str, ...]
    key: str

    @property
    def entity(self) -> str:
        """The entity langgraph_item/<label>#<label>#<key>. Raises ValidationError if that is too long."""
        return check_entity(f"{ITEM_TYPE}/{'#'.join(map(quoted, (*self.namespace, self.key)))}")


class StoredItem(NamedTuple):
    """An item that exists: its value, and when it was put first and last, in microseconds."""

    value: dict[str, Any]
    created_at: int
    updated_at: int


def _item_keys(text: bytes) -> Iterator[ItemKey]:
    """Yield the items that an entry of the index names. What another program wrote there and names none is skipped."""
    try:
        entry = json.loads(text)
    except ValueError:
        return
    for names in entry if isinstance(entry, list) else ():
        if isinstance(names, list) and names and all(isinstance(each, str) for each in names):
            key = ItemKey(tuple(names[:-1]), names[-1])
            try:
                key.entity  # noqa: B018  # it raises if the name is too long
            except InputError:
                continue
            yield key


@dataclass(slots=True)
class ItemIndex:
    """Every item that ever got a value, by namespace. `apply` updates it.

    Attributes:
        offset, ids: As in FoldedState.
    """

    offset: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    namespaces: dict[tuple[str, ...], dict[str, None]] = field(default_factory=dict)

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation of the index, in log order."""
        if observation.patch.get("entry") is None:
            return
        for key in _item_keys(opened(log, observation.patch["entry"])):
            self.namespaces.setdefault(key.namespace, {})[key.key] = None

    def __contains__(self, key: ItemKey) -> bool:
        return key.key in self.namespaces.get(key.namespace, ())


class ItemReader:
    """Reads the items of a log. The caller must hold `Log.lock`. `refresh` makes everything recorded visible.

    Args:
        pass_records: How many new records of a partition are folded onto its kept items.
        items_kept: How many are kept.
    """

    def __init__(self, log: Log, *, pass_records: int = PASS_RECORDS, items_kept: int = ITEMS_KEPT) -> None:
        self._log = log
        self._pass_records, self._items_kept = pass_records, items_kept
        self._folds = Folds(log.port.registry)
        self._index = ItemIndex()
        self._definitions = 0
        self._kept: dict[str, Entity] = {}
        self._offsets: dict[int, int] = {}  # the kept items of a partition are folded up to here

    def refresh(self) -> None:
        """Make everything visible that is in the log now, from this process and others."""
        port = self._log.port
        port.publish()
        port.refresh()
        if len(port.registry) != self._definitions:  # items may have to be folded by a newer definition
            self._definitions = len(port.registry)
            self._kept.clear()
        for partition, end in port.ends().items():
            start = self._offsets.get(partition, 0)
            if end > start and self._kept:
                self._continue(partition, start, end)
            self._offsets[partition] = end

    def _continue(self, partition: int, start: int, end: int) -> None:
        port = self._log.port
        if end - start > self._pass_records:
            for name in [each for each in self._kept if port.partition_of(each) == partition]:
                del self._kept[name]
            return
        for record in port.read(partition, start, end):
            entity = self._kept.pop(record.entity, None)
            with suppress(DamagedRecord):  # a read of the item raises it
                if entity is not None and self._try_fold(entity, record):
                    self._kept[record.entity] = entity

    def _try_fold(self, entity: Entity, record: Record) -> bool:
        """Fold a record into a kept item, if that is possible without the item's other observations."""
        seen, fold = _read_assertion(self._log.port, record), self._folds.of(ITEM_TYPE).fold
        return entity.dedup_state.certainly_new(seen.q) and fold.directly(entity, seen) is not None

    @property
    def index(self) -> ItemIndex:
        """The index of the items."""
        return caught_up(self._log, INDEX, self._index)

    def entities(self, names: Collection[str]) -> Mapping[str, Entity]:
        """Return items by their entities' names; one of version 0 if an item has no observation."""
        missing = [name for name in names if name not in self._kept]
        if missing and len(self._kept) + len(missing) > self._items_kept:
            self._kept.clear()
            missing = [*names]
        by_partition: dict[int, list[str]] = {}
        for name in missing:
            by_partition.setdefault(self._log.port.partition_of(name), []).append(name)
        for partition, some in by_partition.items():
            self._load(partition, some)
        return self._kept

    def _load(self, partition: int, names: list[str]) -> None:
        port, end = self._log.port, self._offsets[partition]
        records: Iterable[Record]
        if len(names) == 1:  # with a worker of Kafka this is a lookup
            records = port.entity_records(names[0], end)
        else:
            records = port.records_among(partition, names, end, lambda more: None)
        history: dict[str, list[Seen]] = {name: [] for name in names}
        for record in firsts(records):
            history[record.entity].append(_read_assertion(port, record))
        for name, seen in history.items():
            self._kept[name] = self._folds.of(ITEM_TYPE).fold.from_nothing(name, seen) if seen else Entity(name)

    def items(self, keys: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        """Return those of the items that exist, with their values decoded again."""
        named = {key: key.entity for key in keys}
        entities = self.entities(named.values())
        found = ((key, self._stored_item(entities[name])) for key, name in named.items())
        return {key: item for key, item in found if item is not None}

    def _stored_item(self, entity: Entity) -> StoredItem | None:
        fields = self.fields(entity)
        if "value" not in fields:
            return None
        try:
            text = opened(self._log, fields["value"])
        except InputError as error:  # the log's store lost the content, or it has expired
            raise type(error)(f"{entity.name}: {error}") from error
        try:
            value = json.loads(text, parse_int=_integer_or_float)
        except ValueError:  # another program put a content that is no JSON
            return None
        updated_at = fields.get("updated_at", last_observed_at(entity))
        is_item = isinstance(value, dict)
        return StoredItem(value, fields.get("created_at", updated_at), updated_at) if is_item else None

    def fields(self, entity: Entity) -> Mapping[str, Any]:
        """Return an item's fields, empty if it has no observation. An item with a value exists."""
        tree = state_tree(self._folds.of(ITEM_TYPE).fold, entity)["fields"] if entity.version else {}
        return cast(Mapping[str, Any], tree)


def _integer_or_float(digits: str) -> int | float:
    """Return the number: an integer of more than 64 bits was a float, for canonical JSON writes it without a point."""
    number = int(digits)
    return number if -(1 << 63) <= number < 1 << 64 else float(digits)


def _read_assertion(port: LogPort, record: Record) -> Seen:
    observation = observation_in(port.registry, record)
    return Seen(record.offset, order_key(observation, record.id), observation)


def last_observed_at(entity: Entity) -> int:
    """Return the greatest observed_at of an item's observations, in microseconds; -1 if it has none."""
    return split_order_key(entity.dedup_state.greatest).observed_at if entity.version else -1
