"""The public surface: what `import refold` offers, and nothing by accident."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import refold
from refold import errors
from refold.avro import errors as shared
from refold_tests.tree import FOLDERS, ROOT

SURFACE = {
    "AgentLog", "Assertion", "Blob", "Change", "CorruptionError", "Cut", "Done", "EffectFailed", "EffectUnknown",
    "EntityView", "InputError", "Link", "Log", "NotAnswerable", "NotDone", "Observation", "Redactor", "RefoldError",
    "Row", "Run", "SchemaError", "Sealed", "Source", "StateView", "StorageError", "UnknownEntity", "ValidationError",
    "open", "reducer", "tool", "unrecorded",
}  # fmt: skip
FACADES = {
    "refold.policy": {
        "ApprovalNeeded", "Policy", "PolicyCheck", "PolicyDecision", "PolicyDenied", "RecordedRequest", "RunFacts",
        "check", "rule",
    },
    "refold.compare": {"Divergence", "Recording", "compare", "describe", "state_at", "states"},
    "refold.heal": {"Diagnosis", "Recording", "RemedyChange", "RunFinding", "diagnose", "remedy"},
    "refold.langgraph": {"RefoldSaver", "RefoldStore"},
    "refold.otel": {"Span", "export", "spans"},
    "refold.openai_agents": {"RefoldSession", "RefoldTracingProcessor"},
    "refold.sink": {
        "Batch", "Cut", "EntityState", "HistoryStep", "Load", "Row", "Sink", "SinkBusy", "SinkRefused", "SinkReport",
        "SinkWatch", "SnapshotSink", "formatter", "keep_snapshots", "keep_up", "open_sink", "packed", "parse_cut",
    },
    "refold.testing.sinks": {
        "FollowedLog", "ServedConformance", "SinkConformance", "SinkSamples", "Store", "StoreContent",
    },
    "refold.importer": {
        "Budget", "ToolCall", "Conversation", "Document", "ImportFile", "Importer", "Judgement", "FileLimits", "Line",
        "Message", "import_conversation", "importer_of", "names", "own_time", "parse_messages", "record",
    },
}  # fmt: skip
METHODS = {
    "append", "append_encoded", "blob", "changes", "close", "collect", "diff", "flush", "history", "link", "mark",
    "observe", "pin", "point", "port", "put_blob", "rebuild", "recover", "register", "retract", "snapshot",
    "snapshots", "state", "states", "types", "unlink", "unpin", "verify",
}  # fmt: skip


def test_surface_is_pinned() -> None:
    assert set(refold.__all__) == SURFACE
    assert {name for name in vars(refold.Log) if not name.startswith("_")} == METHODS


def test_everything_public_has_a_docstring() -> None:
    for name in refold.__all__:
        assert inspect.getdoc(getattr(refold, name)), name
    for name in METHODS:
        assert inspect.getdoc(getattr(refold.Log, name)), name


@pytest.mark.parametrize("name", FACADES)
def test_each_facade_is_pinned_and_has_a_docstring(name: str) -> None:
    facade = importlib.import_module(name)
    assert set(facade.__all__) == FACADES[name]
    for each in facade.__all__:
        assert inspect.getdoc(getattr(facade, each)), each


def test_pages_and_examples_import_no_internal_module() -> None:
    """The demo's agent is the material of docs/GOLDEN.md, not an interface."""
    internal = re.compile(rf"^\s*(?:from|import) refold\.(?:{'|'.join(FOLDERS)})\b(?!\.demo\b)", re.MULTILINE)
    assert internal.search("from refold.agents.otel import export")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "examples").rglob("*.py")]
    assert [str(page) for page in pages if "decisions" not in page.parts and internal.search(page.read_text())] == []


def test_errors_facade_has_every_error_of_the_package() -> None:
    """What only the demo, or refold's own child processes, raise is no user's concern."""
    raised: set[str] = set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "demo" in path.parts:
                continue
            module = importlib.import_module(f"refold.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}")
            raised |= {
                name for name, each in vars(module).items()
                if isinstance(each, type) and issubclass(each, refold.RefoldError) and not name.startswith("_")
                and each.__module__ == module.__name__
            }  # fmt: skip
    assert len(raised) > 40
    assert set(errors.__all__) == raised
    for name in errors.__all__:
        assert inspect.getdoc(getattr(errors, name)), name


def test_docstring_of_the_shared_errors_draws_their_tree() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for indent, name in re.findall(r"^    ([|+ -]*)(\w+)(?: |$)", shared.__doc__ or "", re.MULTILINE):
        del above[len(indent) // 4 :]
        drawn[name] = above[-1] if above else "Exception"
        above.append(name)
    defined = {
        name: each.__bases__[0].__name__ for name, each in vars(shared).items()
        if isinstance(each, type) and issubclass(each, refold.RefoldError)
    }  # fmt: skip
    assert drawn == defined
