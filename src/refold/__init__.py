"""refold: an append-only log of what agents observe and do, folded into entity tables and rebuilt exactly.

import refold

with refold.open("file:.refold") as log:
    log.observe("tool_config/acme", {"rate_limit": 50}, source="deployer")
    log.flush()
    view = log.rebuild()
    print(view["tool_config/acme"].fields, view.root)

Each name is imported at its first use, so `import refold` alone is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AgentLog",
    "Assertion",
    "Blob",
    "Change",
    "CorruptionError",
    "Cut",
    "Done",
    "EffectFailed",
    "EffectUnknown",
    "EntityView",
    "InputError",
    "Link",
    "Log",
    "NotAnswerable",
    "NotDone",
    "Observation",
    "Redactor",
    "RefoldError",
    "Row",
    "Run",
    "SchemaError",
    "Sealed",
    "Source",
    "StateView",
    "StorageError",
    "UnknownEntity",
    "ValidationError",
    "open",
    "reducer",
    "tool",
    "unrecorded",
]

if TYPE_CHECKING:
    from refold.agents.effects.errors import EffectFailed, EffectUnknown, NotDone
    from refold.agents.effects.order import Done
    from refold.agents.log import AgentLog
    from refold.agents.log import open_log as open
    from refold.agents.recorder.context import unrecorded
    from refold.agents.recorder.run import Run
    from refold.agents.recorder.tools import tool
    from refold.agents.redaction.redactor import Redactor
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
    from refold.reducers.registered import reducer
    from refold.streams.changes import Change, Row
    from refold.streams.client import Log
    from refold.streams.cut import Cut
    from refold.streams.view import EntityView, StateView
else:
    # The same for the interpreter: each name's module below refold, and its name there if that differs.
    _HOMES = {
        "AgentLog": "agents.log",
        "Assertion": "reducers.cells",
        "Blob": "avro.blob",
        "Change": "streams.changes",
        "CorruptionError": "avro.errors",
        "Cut": "streams.cut",
        "Done": "agents.effects.order",
        "EffectFailed": "agents.effects.errors",
        "EffectUnknown": "agents.effects.errors",
        "EntityView": "streams.view",
        "InputError": "avro.errors",
        "Link": "avro.observation",
        "Log": "streams.client",
        "NotAnswerable": "avro.errors",
        "NotDone": "agents.effects.errors",
        "Observation": "avro.observation",
        "Redactor": "agents.redaction.redactor",
        "RefoldError": "avro.errors",
        "Row": "streams.changes",
        "Run": "agents.recorder.run",
        "SchemaError": "avro.errors",
        "Sealed": "avro.blob",
        "Source": "avro.observation",
        "StateView": "streams.view",
        "StorageError": "avro.errors",
        "UnknownEntity": "avro.errors",
        "ValidationError": "avro.errors",
        "open": "agents.log:open_log",
        "reducer": "reducers.registered",
        "tool": "agents.recorder.tools",
        "unrecorded": "agents.recorder.context",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module, _, there = _HOMES[name].partition(":")
        found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), there or name)
        return found

    def __dir__():
        return sorted({*globals(), *_HOMES})
