"""What refold relies on in the OpenAI Agents SDK: a new release that changes it fails here, and nowhere else first."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

import pytest
from agents.memory import Session
from agents.tracing import TracingProcessor, span_data

from refold.agents.adapters.openai_agents.spans import KINDS
from refold.openai_agents import RefoldSession

pytestmark = pytest.mark.outside  # it imports the SDK


def test_installed_sdk_release_is_a_checked_one() -> None:
    major, minor = version("openai-agents").split(".")[:2]
    assert (major, minor) == ("0", "24"), "look at its spans and sessions, then take it up here and in pyproject.toml"


def test_span_types_have_the_expected_members() -> None:
    kinds: dict[str, set[str]] = {}
    for each in vars(span_data).values():
        if inspect.isclass(each) and issubclass(each, span_data.SpanData) and each is not span_data.SpanData:
            made: Any = each.__new__(each)
            members: Any = vars(each)["__slots__"]
            kinds[made.type] = {name for name in members if not name.startswith("_")}
    assert kinds == {kind: {*members} for kind, members in KINDS.items()}


def test_session_implements_the_sdk_protocol() -> None:
    declared = {name for name in vars(Session) if not name.startswith("_")}
    assert declared == {"add_items", "clear_session", "get_items", "pop_item", "session_settings"}
    for name in ("add_items", "clear_session", "get_items", "pop_item"):
        ours, theirs = (inspect.signature(vars(each)[name]).parameters for each in (RefoldSession, Session))
        assert [*ours] == [*theirs]


def test_processor_implements_the_sdk_methods() -> None:
    assert TracingProcessor.__abstractmethods__ == {
        "force_flush", "on_span_end", "on_span_start", "on_trace_end", "on_trace_start", "shutdown",
    }  # fmt: skip
