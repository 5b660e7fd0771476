"""An observation as one JSON object: what export writes and import reads.

    {"id", "entity", "kind", "observed_at", "priority", "source", "causes", "patch", "cleared", "retracts", "link",
     "subject"}  and, outside the id,  "origin": {"log", "partition", "offset", "recorded_at"}, "blobs": {hash: base64}

Times are RFC 3339 text, ids hexadecimal, values as in avro/jsonform.py. Reading builds the observation and computes its
id again: a line with a different id is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from refold.avro.blob import Blobs, is_content_of
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import ObservationValidator, check_micros
from refold.avro.errors import InputError, ValidationError
from refold.avro.ids import ENVELOPE, identify
from refold.avro.jsonform import Format, formatter, reader
from refold.avro.observation import Link, Observation, Source
from refold.avro.times import parse_time, time_text

OUTSIDE_ID = frozenset({"id", "origin", "blobs"})
SOURCE_KEYS = frozenset(Source._fields)
LINK_KEYS = frozenset(Link.__slots__)
DEFINITIONS_MAX = 1000
_formatters: dict[bytes, Mapping[str, Format]] = {}
OPTIONAL = frozenset(ENVELOPE) - {"entity", "observed_at"}


def source_json(source: Source) -> dict[str, Any]:
    """Return a source as an object with all its parts."""
    return {name: getattr(source, name) for name in Source._fields}


def patch_json(observation: Observation, definition: TypeDefinition) -> dict[str, Any]:
    """Return the patch in its JSON form. `definition` is any version that has its fields."""
    formatters = _formatters_of(definition)
    return {name: formatters[name](value) for name, value in observation.patch.items()}


def _formatters_of(definition: TypeDefinition) -> Mapping[str, Format]:
    """The formatter of each field, by its first name. Created once for a definition."""
    found = _formatters.get(definition.fingerprint)
    if found is None:
        if len(_formatters) >= DEFINITIONS_MAX:
            _formatters.clear()
        found = {each.first_name: formatter(each.node) for each in definition.fields.values()}
        _formatters[definition.fingerprint] = found
    return found


def to_line(observation: Observation, observation_id: bytes, definition: TypeDefinition) -> dict[str, Any]:
    """Return everything that the id covers, and the id. `definition` is the writer's."""
    link = observation.link
    return {
        "id": observation_id.hex(),
        "entity": observation.entity,
        "kind": observation.kind,
        "observed_at": time_text(observation.observed_at),
        "priority": observation.priority,
        "source": source_json(observation.source),
        "causes": [each.hex() for each in observation.causes],
        "patch": patch_json(observation, definition),
        "cleared": list(observation.cleared),
        "retracts": [each.hex() for each in observation.retracts],
        "link": None if link is None else _link_json(link),
        "subject": observation.subject,
    }


def _link_json(link: Link) -> dict[str, Any]:
    times = {"valid_from": link.valid_from, "valid_to": link.valid_to}
    return {
        "relation": link.relation,
        "target": link.target,
        **{name: None if value is None else time_text(value) for name, value in times.items()},
    }


class LineReader:
    """Reads lines of one type. Tries its versions, newest first, until the computed id matches.

    Args:
        now: The reader's clock, in microseconds since 1970, to check the times of lines without an origin; a line with
            an origin was checked when it was written. None: any time is accepted.
    """

    def __init__(self, definitions: Iterable[TypeDefinition], now: int | None = None) -> None:
        self._now = now
        self._versions = [(each, ObservationValidator(each), _readers(each)) for each in definitions]

    def read(self, line: Mapping[str, Any], blobs: Blobs) -> tuple[Observation, bytes, TypeDefinition]:
        """Return the observation, its id, and the definition it was read by. Raises InputError."""
        if not self._versions:
            raise InputError("there is no definition of this type")
        refusal: InputError | None = None
        for definition, door, readers in self._versions:
            try:
                observation = _build(line, door, readers, blobs, None if line.get("origin") else self._now)
            except ValidationError as error:
                refusal = refusal or error
                continue
            found = identify(observation)
            given = line.get("id")
            if given is None or given == found.hex():
                return observation, found, definition
            refusal = refusal or InputError(
                f"the id {given!r:.80} is not the id of this content, which is {found.hex()}; "
                "the line was changed after it was exported: restore it, or drop its id to record it as new"
            )
        assert refusal is not None
        raise refusal


def _readers(definition: TypeDefinition) -> dict[str, Any]:
    by_name = {each.name: reader(each.node) for each in definition.fields.values()}
    by_first = {each.first_name: reader(each.node) for each in definition.fields.values()}
    return by_name | by_first


def _build(
    line: Mapping[str, Any], door: ObservationValidator, readers: Mapping[str, Any], blobs: Blobs, now: int | None
) -> Observation:
    observed_at = _time(line.get("observed_at"), "observed_at")
    patch = _object(line.get("patch"), "patch")
    read = {name: readers[name](value, f"patch.{name}") if name in readers else value for name, value in patch.items()}
    _carry_blobs(line, blobs)
    return door.build(
        line.get("entity"),  # type: ignore[arg-type]  # the door says what is wrong with it
        read,
        observed_at=observed_at,
        now=observed_at if now is None else now,
        kind=line.get("kind", "assert"),
        priority=line.get("priority", 0),
        source=_source(line.get("source")),
        causes=_list(line.get("causes"), "causes"),
        cleared=_list(line.get("cleared"), "cleared"),
        retracts=_list(line.get("retracts"), "retracts"),
        link=_link(line.get("link")),
        subject=line.get("subject") or "",
        blobs=blobs,
    )


def check_keys(line: object) -> Mapping[str, Any]:
    """Return the line as an object with known keys. Raises InputError."""
    if not isinstance(line, Mapping):
        raise InputError(f"an observation is a JSON object; given {line!r:.80}")
    unknown = line.keys() - ENVELOPE.keys() - OUTSIDE_ID
    if unknown:
        raise InputError(
            f"unknown key {sorted(unknown)[0]!r}; an observation has {', '.join([*ENVELOPE, *sorted(OUTSIDE_ID)])}"
        )
    missing = {"entity", "observed_at"} - line.keys()
    if missing:
        raise InputError(f"the key {sorted(missing)[0]!r} is missing")
    return line


def _carry_blobs(line: Mapping[str, Any], blobs: Blobs) -> None:
    for name, content in _object(line.get("blobs"), "blobs").items():
        try:
            digest, data = bytes.fromhex(name), base64.b64decode(content, validate=True)
        except (ValueError, TypeError):
            raise ValidationError("blobs", "contents as base64 by their SHA-256 in hex", name) from None
        if not is_content_of(digest, data):
            raise ValidationError(f"blobs.{name}", "a content's key is its own SHA-256", f"({len(data)} bytes)")
        blobs[digest] = data


def _time(given: object, path: str) -> int:
    return parse_time(given, path) if isinstance(given, str) else check_micros(given, path)


def _source(given: object) -> Source:
    parts = _object(given, "source")
    unknown = parts.keys() - SOURCE_KEYS
    if unknown:
        raise ValidationError(f"source.{sorted(unknown)[0]}", f"one of {', '.join(sorted(SOURCE_KEYS))}", given)
    return Source(**parts)


def _link(given: object) -> Link | None:
    if given is None:
        return None
    parts = dict(_object(given, "link"))
    unknown = parts.keys() - LINK_KEYS
    if unknown or not {"relation", "target"} <= parts.keys():
        raise ValidationError("link", f"an object of {', '.join(sorted(LINK_KEYS))}", given)
    for name in ("valid_from", "valid_to"):
        if parts.get(name) is not None:
            parts[name] = _time(parts[name], f"link.{name}")
    return Link(**parts)


def _object(given: object, path: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValidationError(path, "an object", given)
    return given


def _list(given: object, path: str) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise ValidationError(path, "a list", given)
    return given
