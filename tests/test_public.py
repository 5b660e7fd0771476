"""The public surface: what `import refold` offers, and nothing by accident."""

from __future__ import annotations

import importlib
import inspect

import pytest

import refold

SURFACE = {
    "AgentLog", "Assertion", "Blob", "Change", "CorruptionError", "Cut", "Done", "EffectFailed", "EffectUnknown",
    "EntityView", "InputError", "Link", "Log", "NotAnswerable", "NotDone", "Observation", "Redactor", "RefoldError",
    "Row", "Run", "SchemaError", "Sealed", "Source", "StateView", "StorageError", "UnknownEntity", "ValidationError",
    "open", "reducer", "tool", "unrecorded",
}  # fmt: skip
FACADES = {
    "refold.importer": {
        "Budget", "ToolCall", "Conversation", "Document", "ImportFile", "Importer", "Judgement", "FileLimits", "Line",
        "Message", "import_conversation", "importer_of", "names", "own_time", "parse_messages", "record",
    },
}  # fmt: skip
METHODS = {
    "blob", "changes", "close", "collect", "diff", "flush", "history", "link", "mark", "observe", "pin", "point",
    "port", "put_blob", "rebuild", "recover", "register", "retract", "snapshot", "snapshots", "state", "states", "take",
    "types", "unlink", "unpin", "verify",
}  # fmt: skip


def test_the_surface_is_pinned() -> None:
    assert set(refold.__all__) == SURFACE
    assert {name for name in vars(refold.Log) if not name.startswith("_")} == METHODS


def test_everything_public_says_what_it_is() -> None:
    for name in refold.__all__:
        assert inspect.getdoc(getattr(refold, name)), name
    for name in METHODS:
        assert inspect.getdoc(getattr(refold.Log, name)), name


@pytest.mark.parametrize("name", FACADES)
def test_each_facade_is_pinned_and_says_what_it_is(name: str) -> None:
    facade = importlib.import_module(name)
    assert set(facade.__all__) == FACADES[name]
    for each in facade.__all__:
        assert inspect.getdoc(getattr(facade, each)), each
