"""Changes: the feed of each entity's mutations in `.changes`; change_codec.py encodes them.

A change takes an entity from one version to a later one, with the hashes before and after, and one step for each
observation between; how steps are grouped into changes is not promised. A change without steps and with
`redefined` set says that the type's definition changed and the same observations now fold to another state.

Rows are mutations for people: one for each field that an observation changed, with time, source and old value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.jsonform import formatter
from refold.avro.observation import Source
from refold.reducers.cells import Mutation
from refold.reducers.links import FIELD as LINKS
from refold.reducers.order import split_order_key


@dataclass(frozen=True, slots=True)
class Row:
    """One mutation of one entity.

    observation holds the field now, by caused the change (hex ids); of `by`: observed_at in microseconds, recorded_at
    in milliseconds, source, position (partition, offset) and the version it made.
    """

    entity: str
    field: str
    op: str
    key: Any
    old: Any
    new: Any
    observation: str
    by: str
    version: int
    partition: int
    offset: int
    observed_at: int
    recorded_at: int
    source: Source


class MutationFormatter:
    """Converts keys and values of one type's mutations to JSON form; python=True keeps bytes, Blob and Sealed as
    objects.
    """

    def __init__(self, definition: TypeDefinition, *, python: bool = True) -> None:
        self._values: dict[str, Callable[[Any], Any]] = {}
        for field in definition.fields.values():
            plain = field.reducer in ("sum", "count")
            self._values[field.first_name] = (lambda v: v) if plain else formatter(field.element, python=python)

    def value(self, field: str, value: Any) -> Any:
        """A mutation's old or new value."""
        return value if value is None or field == LINKS else self._values[field](value)

    def key(self, key: Any) -> Any:
        """A mutation's key in JSON form.

        Returns:
            Text, [relation, target], or [[observed_at, agent, run, seq, id], index]; None if the mutation has no key.
        """
        if isinstance(key, tuple) and isinstance(key[0], bytes):
            place = split_order_key(key[0])
            return [[*place[:4], place.id.hex()], key[1]]
        return list(key) if isinstance(key, tuple) else key


def rows(
    shown: MutationFormatter, entity: str, mutations: Sequence[Mutation], *, by: bytes, version: int, partition: int,
    offset: int, observed_at: int, recorded_at: int, source: Source,
) -> Iterator[Row]:  # fmt: skip
    """Yield the mutations of one observation as rows.

    Args:
        shown: The conversion of the definition's values.
        entity: `type/id`.
        mutations: The mutations.
        by: The observation's id.
        version: The entity's version after it.
        partition: Its partition.
        offset: Its offset.
        observed_at: When it happened, in microseconds since 1970.
        recorded_at: When the log took it, in milliseconds since 1970.
        source: Who made it.
    """
    for each in mutations:
        yield Row(
            entity=entity,
            field=each.field,
            op=each.op,
            key=shown.key(each.key),
            old=shown.value(each.field, each.old),
            new=shown.value(each.field, each.new),
            observation=each.observation.hex(),
            by=by.hex(),
            version=version,
            partition=partition,
            offset=offset,
            observed_at=observed_at,
            recorded_at=recorded_at,
            source=source,
        )


class ChangeStep(NamedTuple):
    """One observation and its mutations. observed_at in microseconds, recorded_at in milliseconds, since 1970."""

    offset: int
    version: int
    observation: bytes
    observed_at: int
    recorded_at: int
    source: Source
    mutations: Sequence[Mutation]


class Change(NamedTuple):
    """One entity from `from_version` to `to_version`; `through` is the next offset of the batch that made it."""

    entity: str
    definition: bytes
    from_version: int
    to_version: int
    hash_before: bytes | None
    hash_after: bytes
    through: int
    redefined: bool
    steps: Sequence[ChangeStep]
