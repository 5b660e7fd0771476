"""The fold of the Python peers, with only the standard library and fastavro: the worker's fold, and the plain fold.

A state is JSON: {"version", "last": the greatest order, "fields": {name: [order, value]}}. An order is hex text that
sorts as (observed_at, agent, run, seq, id). States and changes are encoded by orjson, which both peers install.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

FRAME_BYTES = 5
_SORTED = struct.Struct(">Q")
_SIGN = 1 << 63


def reader(schema: str, frame_bytes: int) -> Callable[[bytes], dict[str, Any]]:
    """Return a decoder for records of the schema in a file, after this many bytes of frame."""
    parsed = fastavro.parse_schema(json.loads(Path(schema).read_text(encoding="utf-8")))

    def read(data: bytes) -> dict[str, Any]:
        body = io.BytesIO(data)
        body.seek(frame_bytes)
        return fastavro.schemaless_reader(body, parsed, None)  # type: ignore[arg-type, return-value]

    return read


def new_state() -> dict[str, Any]:
    """Return the state of an entity without observations."""
    return {"version": 0, "last": "", "fields": {}}


def order_of(observation: dict[str, Any], observation_id: bytes) -> bytes:
    """Return bytes that sort as (observed_at, agent, run, seq, id)."""
    by = observation["source"]
    return b"%b%b\0%b\0%b%b" % (
        _SORTED.pack(observation["observed_at"] + _SIGN), by["agent"].encode(), by["run"].encode(),
        _SORTED.pack(by["seq"]), observation_id,
    )  # fmt: skip


def fold(state: dict[str, Any], observation: dict[str, Any], order: str) -> dict[str, list[Any]]:
    """Fold a new observation, and return the mutations: [old, new] by field."""
    state["version"] += 1
    state["last"] = max(state["last"], order)
    fields, mutations = state["fields"], {}
    for name, value in observation["patch"].items():
        if value is None:
            continue
        held = fields.get(name)
        if held is not None and order < held[0]:
            continue
        fields[name] = [order, value]
        if held is None or held[1] != value:
            mutations[name] = [None if held is None else held[1], value]
    return mutations


def change_of(
    observation: dict[str, Any], observation_id: bytes, version: int, offset: int, recorded_at: int,
    mutations: dict[str, list[Any]],
) -> dict[str, Any]:  # fmt: skip
    """Return the change to publish."""
    by = observation["source"]
    return {"entity": observation["entity"], "version": version, "offset": offset, "id": observation_id.hex(),
            "observed_at": observation["observed_at"], "recorded_at": recorded_at, "agent": by["agent"],
            "run": by["run"], "seq": by["seq"], "mutations": mutations}  # fmt: skip


def fold_plain(state: dict[str, Any], record: dict[str, Any]) -> None:
    """Fold a record: the last write wins, and nothing else is stored."""
    state["version"] += 1
    fields, observed_at = state["fields"], record["observed_at"]
    for name, value in record["fields"].items():
        held = fields.get(name)
        if held is None or observed_at >= held[0]:
            fields[name] = [observed_at, value]
