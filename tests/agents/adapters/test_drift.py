"""What the adapters rely on in the packages of others: a release that changes it fails here, and nowhere else first.

The OpenAI Agents SDK has openai_agents/test_drift.py, and the instrumentations of OpenTelemetry otlp/emitters.json.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any, get_args

import claude_agent_sdk
import mcp_types
import pytest
from claude_agent_sdk.types import HookEvent, SessionKey, SessionStore, SessionSummaryEntry
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store import base as stores
from mcp.client import streamable_http
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from refold.agents.capture.mcp_http import SESSION
from refold.agents.capture.mcp_playback import BY_METHOD
from refold.agents.capture.mcp_wire import CALL, LISTING
from refold.claude_agent_sdk import RefoldSessionStore
from refold.langgraph import RefoldSaver, RefoldStore

pytestmark = pytest.mark.outside  # it imports the SDKs

CHECKED = {
    "langgraph": "1.2", "langgraph-checkpoint": "4.3", "claude-agent-sdk": "0.2", "mcp": "2.3", "pydantic-ai-slim": "2",
    "langchain-core": "1", "dbos": "3",
}  # fmt: skip


@pytest.mark.parametrize("package", CHECKED)
def test_installed_release_is_a_checked_one(package: str) -> None:
    checked = CHECKED[package]
    found = ".".join(version(package).split(".")[: checked.count(".") + 1])
    assert found == checked, "look at what is new, run the adapter's tests, then take it up here and in pyproject.toml"


def public(declared: type) -> set[str]:
    return {name for name in vars(declared) if not name.startswith("_")}


def test_checkpointer_and_store_have_the_expected_methods() -> None:
    """Each method of LangGraph's that is new is one to look at: a saver may have to answer it."""
    saver = {"put", "put_writes", "get", "get_tuple", "list", "delete_thread", "delete_for_runs", "copy_thread",
             "prune", "get_delta_channel_history"}  # fmt: skip
    others = {"config_specs", "get_next_version", "with_allowlist", "serde"}
    assert public(BaseCheckpointSaver) == saver | {f"a{name}" for name in saver} | others
    for name in (saver | {f"a{each}" for each in saver}) - {"get", "aget"}:
        assert name in vars(RefoldSaver), name
        ours, theirs = (
            inspect.signature(getattr(each, name)).parameters for each in (RefoldSaver, BaseCheckpointSaver)
        )
        assert {*theirs} <= {*ours}, name
    assert stores.BaseStore.__abstractmethods__ == {"abatch", "batch"} <= public(RefoldStore)
    assert {each.__name__ for each in get_args(stores.Op)} == {"GetOp", "SearchOp", "PutOp", "ListNamespacesOp"}
    assert public(SerializerProtocol) == {"dumps_typed", "loads_typed"}


def test_serializer_has_the_expected_kinds_of_values() -> None:
    """Values of these kinds name a class to import: refold admits only listed classes."""
    kinds = {name: value for name, value in vars(jsonplus).items() if name.startswith("EXT_")}
    assert kinds == {
        "EXT_CONSTRUCTOR_SINGLE_ARG": 0, "EXT_CONSTRUCTOR_POS_ARGS": 1, "EXT_CONSTRUCTOR_KW_ARGS": 2,
        "EXT_METHOD_SINGLE_ARG": 3, "EXT_PYDANTIC_V1": 4, "EXT_PYDANTIC_V2": 5, "EXT_NUMPY_ARRAY": 6,
        "EXT_DELTA_SNAPSHOT": 7,
    }  # fmt: skip


def test_claude_sdk_has_the_expected_store_and_hooks() -> None:
    assert public(SessionStore) == {
        "append", "load", "list_sessions", "list_session_summaries", "delete", "list_subkeys",
    } <= public(RefoldSessionStore)  # fmt: skip
    assert {*SessionKey.__annotations__} == {"project_key", "session_id", "subpath"}
    assert {*SessionSummaryEntry.__annotations__} == {"session_id", "mtime", "data"}
    events = {event for each in get_args(HookEvent) for event in get_args(each)}
    assert events == {
        "PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "Stop", "SubagentStop", "PreCompact",
        "Notification", "SubagentStart", "PermissionRequest",
    }  # fmt: skip
    assert callable(claude_agent_sdk.fold_session_summary)


def test_protocol_has_the_expected_versions_and_names() -> None:
    assert {*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS} == {
        "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28",
    }, "a new version: look at its transport, its handshake and its errors"  # fmt: skip
    methods: set[str] = set()
    for each in vars(mcp_types).values():
        if inspect.isclass(each) and issubclass(each, mcp_types.Request):
            methods |= {str(name) for name in get_args(each.model_fields["method"].annotation)}
    assert {CALL, LISTING, *BY_METHOD} <= methods
    assert "readOnlyHint" in {field.alias for field in mcp_types.ToolAnnotations.model_fields.values()}
    header: Any = streamable_http.MCP_SESSION_ID
    assert header.lower() == SESSION.lower()
