"""What refold relies on in the OpenAI Agents SDK: a new release that changes it fails here, and nowhere else first."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

import pytest
from agents.tracing import TracingProcessor, span_data

from refold.agents.adapters.openai_agents.spans import KINDS

pytestmark = pytest.mark.outside  # it imports the SDK


def test_the_release_is_one_that_was_looked_at() -> None:
    major, minor = version("openai-agents").split(".")[:2]
    assert (major, minor) == ("0", "24"), "look at its spans and sessions, then take it up here and in pyproject.toml"


def test_each_kind_of_span_is_known_with_its_members() -> None:
    kinds: dict[str, set[str]] = {}
    for each in vars(span_data).values():
        if inspect.isclass(each) and issubclass(each, span_data.SpanData) and each is not span_data.SpanData:
            made: Any = each.__new__(each)
            members: Any = vars(each)["__slots__"]
            kinds[made.type] = {name for name in members if not name.startswith("_")}
    assert kinds == {kind: {*members} for kind, members in KINDS.items()}


def test_a_processor_has_these_methods() -> None:
    assert TracingProcessor.__abstractmethods__ == {
        "force_flush", "on_span_end", "on_span_start", "on_trace_end", "on_trace_start", "shutdown",
    }  # fmt: skip
