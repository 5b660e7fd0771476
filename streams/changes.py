"""Changes: the feed of what happened to each entity, as `.changes` holds it; change_codec.py has their bytes.

A change takes an entity from one version to a later one, with the hashes before and after, and one step for each
observation between; how steps are grouped into changes is not promised. A change without steps and with
`redefined` set says that the type's definition changed and the same observations now fold to another state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refold.avro.observation import Source
from refold.reducers.cells import Mutation


class Step(NamedTuple):
    """One observation and what it changed. observed_at in microseconds, recorded_at in milliseconds."""

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
    steps: Sequence[Step]
