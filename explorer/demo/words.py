"""Observations and entities in few words, for lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import refold

WIDTH = 31
SAID = ("passed", "score", "rate_limit", "timeout_ms", "current_step", "outcome", "decision", "status")


def brief(statement: refold.Observation) -> str:
    """What an observation says, in at most WIDTH characters."""
    text = _said(statement.type, statement.patch)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _said(kind: str, patch: Mapping[str, Any]) -> str:
    if kind == "document":
        return _pairs({name: json.loads(value) for name, value in patch["fields"].items()})
    if kind == "pipeline" and "outputs" in patch:
        return _pairs({name: json.loads(value) for name, value in patch["outputs"].items()})
    if kind == "action" and "retries" in patch:
        return str(patch["retries"][-1]["error"])
    if kind == "action":
        return f"asks {patch['tool']}" if "tool" in patch else "has its answer"
    return _pairs({name: patch[name] for name in SAID if name in patch})


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def stands(entity: refold.EntityView) -> str:
    """Where an entity stands, in a few of its fields."""
    fields, kind = entity.fields, entity.entity.partition("/")[0]
    if kind == "pipeline":
        done, step = fields["outputs"], f"step {fields['position']} of {fields['position_total']}"
        return f"{fields['status']} {step}, {fields['current_step']}: {done['paid']} of {done['approved']} paid"
    if kind == "tool_config":
        return _pairs({name: fields[name] for name in ("rate_limit", "timeout_ms")})
    if kind == "action":
        return f"{fields['status']}: {fields['tool']} for claim {fields['inputs']['claim']}, no answer"
    return str(fields["fields"]["status"] if kind == "document" else fields["status"])
