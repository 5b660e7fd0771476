"""refold: an append-only log of what agents observe and do, folded into entity tables and rebuilt exactly.

import refold

with refold.open("file:.refold") as log:
    log.observe("tool_config/acme", {"rate_limit": 50}, source="deployer")
    log.flush()
    view = log.rebuild()
    print(view["tool_config/acme"].fields, view.root)
"""

from __future__ import annotations

from refold.avro.blob import Blob, Sealed
from refold.avro.errors import (
    CorruptionError,
    InputError,
    NotAnswerable,
    RefoldError,
    SchemaError,
    StorageError,
    UnknownEntity,
    ValidationError,
)
from refold.avro.observation import Link, Observation, Source
from refold.reducers.cells import Assertion
from refold.streams.changes import Change
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.mutations import Row
from refold.streams.open import open_log as open
from refold.streams.view import EntityView, StateView

__version__ = "0.1.0"

__all__ = [
    "Assertion",
    "Blob",
    "Change",
    "CorruptionError",
    "Cut",
    "EntityView",
    "InputError",
    "Link",
    "Log",
    "NotAnswerable",
    "Observation",
    "RefoldError",
    "Row",
    "SchemaError",
    "Sealed",
    "Source",
    "StateView",
    "StorageError",
    "UnknownEntity",
    "ValidationError",
    "open",
]
