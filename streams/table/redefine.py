"""Taking up a new definition of a type whose entities are there: each is folded again by it, from all its observations.

What was folded again already folds to the same, so whoever is interrupted begins from the first entity.
"""

from __future__ import annotations

from collections.abc import Iterator

from refold.avro.errors import SchemaError
from refold.reducers.entity import pack, unpack
from refold.reducers.state import hash_state
from refold.streams.changes import Change
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.rocks.scan import Row
from refold.streams.table import keys
from refold.streams.table.batch import FoldOutcome, TableWriter
from refold.streams.table.checkpoints import FIRST
from refold.streams.table.folds import TypeFold


def states_of_type(database: Database, type_name: str) -> Iterator[Row]:
    """(key, encoded) of a type's entities."""
    prefix = f"{type_name}/"
    return (row for row in database.scan("state") if keys.entity_of(row[0]).startswith(prefix))


def require_foldable(database: Database, tables: TableWriter, type_fold: TypeFold) -> None:
    """Raise SchemaError, naming the entity, where a custom reducer fails on an entity that is there."""
    definition = type_fold.version.definition
    if all(field.reducer != "custom" for field in definition.fields.values()):
        return
    for key, _ in states_of_type(database, definition.name):
        name = keys.entity_of(key)
        try:
            type_fold.fold.from_nothing(name, tables.history(name))
        except SchemaError as error:
            raise SchemaError(f"{definition.name}: this version cannot fold {name}: {error}") from error


def fold_again(
    tables: TableWriter,
    type_fold: TypeFold,
    row: Row,
    partition: int,
    through: int,
    write: WriteSet,
    outcome: FoldOutcome,
) -> None:
    """Put an entity as the definition folds it; where its hash is another, hand over one change `redefined`.

    through: the next offset of its partition.
    """
    name, before = keys.entity_of(row[0]), unpack(keys.entity_of(row[0]), row[1])
    after = type_fold.fold.from_nothing(name, tables.history(name))
    after.state_hash = hash_state(type_fold.fold, after)
    state = pack(after)
    write.put("state", row[0], state)
    if after.version >= FIRST:
        tables.checkpoint(type_fold, after, write)
    if after.state_hash == before.state_hash:
        return
    change = Change(
        name, type_fold.version.definition.fingerprint, after.version, after.version, before.state_hash,
        after.state_hash, through, True, (),
    )  # fmt: skip
    outcome.changed(partition, row[0], state, type_fold.changes.encode(change))
