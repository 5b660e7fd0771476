"""An observation in few words, for lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import refold

WIDTH = 33
SAID = ("passed", "score", "rate_limit", "timeout_ms", "current_step", "outcome", "decision", "status")


def brief(statement: refold.Observation) -> str:
    """What it says, in at most WIDTH characters."""
    text = _of_type(statement.type, statement.patch)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _of_type(kind: str, patch: Mapping[str, Any]) -> str:
    if kind == "document":
        return _pairs({name: json.loads(value) for name, value in patch["fields"].items()})
    if kind == "action" and "retries" in patch:
        return str(patch["retries"][-1]["error"])
    if kind == "action" and "output" in patch:
        return "answered"
    if kind == "action":
        return f"asks {patch['tool']}"
    if kind == "pipeline" and "outputs" in patch:
        return _pairs({name: json.loads(value) for name, value in patch["outputs"].items()})
    return _pairs({name: patch[name] for name in SAID if name in patch})


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
