"""The observation: one immutable statement about one entity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"
"""A canonical value: numbers under the number rules, sets sorted, absent fields left out."""

Kind: TypeAlias = Literal["assert", "link", "unlink"]
KINDS: tuple[Kind, ...] = ("assert", "link", "unlink")

ID_BYTES = 32

Encoded: TypeAlias = tuple[str, bytes, bytes]
"""An observation as its entity, its id and its framed bytes."""


def type_of(entity: str) -> str:
    """The type of `type/id`: the part before the first slash."""
    return entity.partition("/")[0]


class Source(NamedTuple):
    """The source of an observation. agent, run and seq are part of the order key; step and tool only describe.

    The recorder counts seq from 0 within (agent, run).
    """

    agent: str = ""
    run: str = ""
    step: str = ""
    tool: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A typed relation from the observed entity to `target` (`type/id`), valid from and to in microseconds."""

    relation: str
    target: str
    valid_from: int | None = None
    valid_to: int | None = None


NOBODY = Source()
NOTHING: Mapping[str, Value] = MappingProxyType({})


class Observation(NamedTuple):
    """One event about one entity. A pure retraction is an assert with an empty patch.

    Attributes:
        observed_at: When it was observed, in microseconds since 1970 UTC, by the source's clock.
        causes, cleared, retracts: Sorted sets, as tuples.
        patch: The canonical values by each field's first name.
    """

    entity: str
    observed_at: int
    kind: Kind = "assert"
    priority: int = 0
    source: Source = NOBODY
    causes: tuple[bytes, ...] = ()
    patch: Mapping[str, Value] = NOTHING
    cleared: tuple[str, ...] = ()
    retracts: tuple[bytes, ...] = ()
    link: Link | None = None
    subject: str = ""

    @property
    def type(self) -> str:
        """The entity's type."""
        return type_of(self.entity)
