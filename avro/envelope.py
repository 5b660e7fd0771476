"""Validation of the envelope: names, times, sets and kinds, checked before an observation is built.

`ObservationValidator` checks the author's values and builds the observation. `check_observation` checks records of the
log by the same rules, so that no other producer can add what refold's refuses.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from refold.avro.blob import Blobs
from refold.avro.canonical import text
from refold.avro.definition import TypeDefinition
from refold.avro.errors import ValidationError
from refold.avro.kernel import find_kernel
from refold.avro.kernel_layouts import field_layouts
from refold.avro.nodes import NAME
from refold.avro.observation import ID_BYTES, KINDS, Kind, Link, Observation, Source, Value
from refold.avro.times import TIME_MAX, TIME_MIN, time_text
from refold.avro.values import Check, checker

NAME_BYTES_MAX = 1024
FUTURE_MICROS = 5 * 60 * 1_000_000
PRIORITY_RANGE = (-(2**31), 2**31)
SEQ_END = 2**63
NO_FRAME = bytes(5)


def check_name(value: object, path: str, *, empty: bool = False) -> str:
    """Check a short, printable, single-line text: an id, an agent, a run, a relation.

    Args:
        value: The text.
        path: Its place, for errors.
        empty: Whether it may be empty.

    Raises:
        ValidationError: It is no such text.
    """
    if not isinstance(value, str):
        raise ValidationError(path, "a string", value)
    if not value and not empty:
        raise ValidationError(path, "must not be empty", value)
    if value.isascii() and value.isprintable() and len(value) <= NAME_BYTES_MAX:
        return value
    if len(text(value, path).encode()) > NAME_BYTES_MAX:
        raise ValidationError(path, f"at most {NAME_BYTES_MAX} bytes of UTF-8", f"({len(value.encode())} bytes)")
    if any(unicodedata.category(each) == "Cc" for each in value):
        raise ValidationError(path, "no control characters", value)
    return value


def check_entity(value: object, path: str = "entity") -> str:
    """Check `type/id`: a type's name, a slash and any printable id.

    Raises:
        ValidationError: It is no such text.
    """
    name = check_name(value, path)
    kind, slash, rest = name.partition("/")
    if not slash or not NAME.match(kind) or not rest:
        raise ValidationError(path, "TYPE/ID, such as tool_config/acme", value)
    return name


def check_id(value: object, path: str) -> bytes:
    """Return an observation's id, from 32 bytes or 64 hexadecimal digits.

    Raises:
        ValidationError: It is neither.
    """
    try:
        raw = bytes.fromhex(value) if isinstance(value, str) and len(value) == 2 * ID_BYTES else value
    except ValueError:
        raw = b""
    if not isinstance(raw, (bytes, bytearray, memoryview)) or len(raw) != ID_BYTES:
        raise ValidationError(path, "an observation's id: 64 hexadecimal digits", value)
    return bytes(raw)


def check_micros(value: object, path: str) -> int:
    """Check microseconds since 1970, between the years 1 and 9999.

    Raises:
        ValidationError: It is no int, or outside of these years.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not TIME_MIN <= value <= TIME_MAX:
        raise ValidationError(path, "microseconds since 1970, within the years 1 to 9999", value)
    return value


def is_far_ahead(observed_at: int, now: int) -> bool:
    """Whether a time is so far in the future that an observation of it has to be allowed."""
    return observed_at > now + FUTURE_MICROS


class ObservationValidator:
    """Builds observations of one type; an error names field and rule."""

    def __init__(self, definition: TypeDefinition) -> None:
        self.definition = definition
        self._fields: dict[str, tuple[str, Check]] = {}
        for each in definition.fields.values():
            pair = (each.first_name, checker(each.node, each.inline_bytes))
            self._fields[each.name] = self._fields[each.first_name] = pair
        kernel = find_kernel().kernel
        self._native = None if kernel is None else kernel.ObservationReader(
            definition.name, NO_FRAME, field_layouts(definition)
        )  # fmt: skip

    def build(
        self,
        entity: str,
        patch: Mapping[str, Any] | None,
        *,
        observed_at: int,
        now: int,
        kind: Kind = "assert",
        priority: int = 0,
        source: Source,
        causes: Iterable[str | bytes] = (),
        cleared: Iterable[str] = (),
        retracts: Iterable[str | bytes] = (),
        link: Link | None = None,
        subject: str = "",
        allow_future: bool = False,
        blobs: Blobs | None = None,
    ) -> Observation:
        """Check the values and return the observation. The arguments are an Observation's, not yet canonical, and:

        Args:
            observed_at: Microseconds since 1970.
            now: The writer's clock, in microseconds.
            allow_future: Accept an `observed_at` more than 5 minutes after `now`.
            blobs: Gets the contents of large values, by their SHA-256; None refuses values above the inline limit.

        Raises:
            ValidationError: A value is invalid; the message names the field, the rule and the value.
        """
        check_micros(observed_at, "observed_at")
        if is_far_ahead(observed_at, now) and not allow_future:
            rule = f"at most 5 minutes ahead of this clock ({time_text(now)}), unless allowed (--allow-future)"
            raise ValidationError("observed_at", rule, time_text(observed_at))
        observation = Observation(
            entity=entity,
            observed_at=observed_at,
            kind=kind,
            priority=priority,
            source=source,
            causes=() if causes == () else _id_set(causes, "causes"),
            patch=self.canonical(patch or {}, blobs),
            cleared=() if cleared == () else self._cleared(cleared),
            retracts=() if retracts == () else _id_set(retracts, "retracts"),
            link=link,
            subject=subject,
        )
        check_observation(observation, self.definition)
        return observation

    def canonical(self, patch: Mapping[str, Any], blobs: Blobs | None) -> dict[str, Value]:
        """Check the values of a patch and return them in canonical form, by their fields' first names.

        Raises:
            ValidationError: As `build`.
        """
        if not isinstance(patch, Mapping):
            raise ValidationError("patch", "an object of fields and their values", patch)
        doubtful = self._native.doubtful(patch) if type(patch) is dict and self._native is not None else None
        if doubtful is not None and self._are_first_names(doubtful, patch):
            checked: dict[str, Value] = dict(patch)
            for name in doubtful:
                checked[name] = self._fields[name][1](patch[name], f"patch.{name}", blobs)
            return checked
        tree: dict[str, Value] = {}
        for name, value in patch.items():
            found = self._fields.get(name)
            if found is None:
                known = ", ".join(self.definition.fields)
                raise ValidationError(f"patch.{name}", f"{self.definition.name} has the fields {known}", name)
            if value is None:
                rule = "an assertion has a value; to take a field back, name it in cleared"
                raise ValidationError(f"patch.{name}", rule, value)
            first, check = found
            if first in tree:
                raise ValidationError(
                    f"patch.{name}", f"{first} is given twice, by its first name and its later one", name
                )
            tree[first] = check(value, f"patch.{name}", blobs)
        return tree

    def _are_first_names(self, names: list[str], patch: Mapping[str, Any]) -> bool:
        """Whether these are fields by their first names, each with a value."""
        return all(
            (found := self._fields.get(name)) is not None and found[0] == name and patch[name] is not None
            for name in names
        )  # fmt: skip

    def _cleared(self, names: Iterable[str]) -> tuple[str, ...]:
        firsts = set()
        for name in _several(names, "cleared", "field names"):
            if not isinstance(name, str) or name not in self._fields:
                known = ", ".join(self.definition.fields)
                raise ValidationError("cleared", f"{self.definition.name} has the fields {known}", name)
            firsts.add(self._fields[name][0])
        return tuple(sorted(firsts))


def _id_set(ids: Iterable[str | bytes], path: str) -> tuple[bytes, ...]:
    found = [check_id(each, path) for each in _several(ids, path, "ids")]
    return tuple(sorted(set(found))) if found else ()


def _several(given: Iterable[Any], path: str, what: str) -> Iterable[Any]:
    """Refuse a text where a list is expected: a text is iterable too, by character."""
    if type(given) is tuple or type(given) is list:
        return given
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Iterable):
        raise ValidationError(path, f"a list of {what}", given)
    return given


def check_observation(observation: Observation, definition: TypeDefinition) -> None:
    """Check the rules between an envelope's fields. Raises ValidationError."""
    entity, prefix = check_name(observation.entity, "entity"), f"{definition.name}/"
    if not entity.startswith(prefix) or entity == prefix:
        check_entity(entity)
        raise ValidationError("entity", f"an entity of type {definition.name}", entity)
    check_micros(observation.observed_at, "observed_at")
    _check_source(observation.source)
    low, end = PRIORITY_RANGE
    if type(observation.priority) is not int or not low <= observation.priority < end:
        raise ValidationError("priority", f"an integer in [{low}, {end - 1}]", observation.priority)
    if observation.causes:
        _check_id_set("causes", observation.causes)
    if observation.retracts:
        _check_id_set("retracts", observation.retracts)
    if observation.cleared:
        if list(observation.cleared) != sorted(set(observation.cleared)):
            raise ValidationError("cleared", "a set: sorted, without repeats", observation.cleared)
        unknown = set(observation.cleared) - definition.by_first_name.keys()
        if unknown:
            raise ValidationError("cleared", f"fields of {definition.name}, by their first names", min(unknown))
    if observation.subject != "":
        check_name(observation.subject, "subject")
    _check_kind(observation)


def _check_id_set(path: str, ids: tuple[bytes, ...]) -> None:
    if list(ids) != sorted(set(ids)):
        raise ValidationError(path, "a set: sorted, without repeats", [each.hex()[:8] for each in ids])


@lru_cache(maxsize=1024)  # a run says the same names with every observation; a refusal is never kept
def check_names(agent: object, run: object, step: object, tool: object) -> None:
    for part, value in (("agent", agent), ("run", run), ("step", step), ("tool", tool)):
        check_name(value, f"source.{part}", empty=True)


def _check_source(source: Source) -> None:
    if not isinstance(source, Source):
        raise ValidationError("source", "a Source", source)
    agent, run, step, tool = source.agent, source.run, source.step, source.tool
    if not (type(agent) is str and type(run) is str and type(step) is str and type(tool) is str):
        for name, value in (("agent", agent), ("run", run), ("step", step), ("tool", tool)):
            if type(value) is not str:
                raise ValidationError(f"source.{name}", "a string", value)
    check_names(agent, run, step, tool)
    if type(source.seq) is not int or not 0 <= source.seq < SEQ_END:
        raise ValidationError("source.seq", "an integer from 0, below 2^63", source.seq)


def _check_kind(observation: Observation) -> None:
    kind, link = observation.kind, observation.link
    if kind not in KINDS:
        raise ValidationError("kind", f"one of {', '.join(KINDS)}", kind)
    if kind == "assert":
        if link is not None:
            raise ValidationError("link", "goes with the kinds link and unlink", f"(one to {link.target})")
        if not (observation.patch or observation.cleared or observation.retracts):
            raise ValidationError("patch", "an assert says something: fields, cleared or retracts", "(nothing)")
        return
    if not isinstance(link, Link):
        raise ValidationError("link", f"the kind {kind} needs a Link: a relation and a target", link)
    if observation.patch or observation.cleared or observation.retracts:
        raise ValidationError("kind", f"{kind} has no patch, no cleared and no retracts", kind)
    check_name(link.relation, "link.relation")
    check_entity(link.target, "link.target")
    for path, value in (("link.valid_from", link.valid_from), ("link.valid_to", link.valid_to)):
        if value is not None:
            check_micros(value, path)
