"""The tool `observe`, which is there only where the server was started with --write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.avro.errors import InputError
from refold.avro.observation import Source
from refold.explorer.mcp.answers import compact
from refold.explorer.queries.log_target import LogTarget

OBSERVE = "observe"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "entity": {"type": "string", "description": "TYPE/ID"},
        "patch": {"type": "object", "description": "Fields and their values; state shows the fields of an entity"},
        "agent": {"type": "string", "description": "Who observed it"},
        "run": {"type": "string", "description": "In which of its runs"},
        "causes": {"type": "array", "items": {"type": "string"},
                   "description": "Ids of observations that it was derived from"},
    },
    "required": ["entity", "patch", "agent"],
    "additionalProperties": False,
}  # fmt: skip
ABOUT = "Record an observation of an entity, durably. Values that were there stay in its history."
KINDS: Mapping[str, type] = {"entity": str, "patch": dict, "agent": str, "run": str, "causes": list}


def observe(place: LogTarget, given: Mapping[str, Any]) -> str:
    """Record it; JSON with its id, once it is durable.

    Raises:
        RefoldError: It was refused; nothing is recorded.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if name not in KINDS:
            raise InputError(f"{name!r:.60}: {OBSERVE} takes {', '.join(KINDS)}")
        if not isinstance(value, KINDS[name]):
            raise InputError(f"{name}: {SCHEMA['properties'][name]['type']} of JSON, given {value!r:.60}")
    missing = [name for name in SCHEMA["required"] if not found.get(name)]
    if missing:
        raise InputError(f"{OBSERVE} needs {', '.join(missing)}")
    source = Source(found["agent"], found.get("run", ""))
    with place.write(make=False) as log:
        observation = log.observe(found["entity"], found["patch"], source=source, causes=found.get("causes", ()))
        log.flush()
        return compact(
            {"again": {"at": str(log.point().cut)}, "answer": {"id": observation, "entity": found["entity"]}}
        )
