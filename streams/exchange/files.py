"""A file of observations: JSON lines (plain or gzip), or an Avro container.

Both yield the same two things: the type definitions in the file, and its observations as line
objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import InputError, SchemaError
from refold.streams.exchange.container import container_definitions, container_lines, is_container
from refold.streams.exchange.json_lines import DEFAULT, Progress, json_value, text_lines
from refold.streams.exchange.limits import FileLimits

DEFINITION = "definition"
DEFINITION_KEYS = frozenset({DEFINITION, "offset"})


class FileDefinition(NamedTuple):
    """A type definition in a file; `offset` is its position among the definitions of the log it came from."""

    place: str
    offset: int
    definition: TypeDefinition


class FileObservation(NamedTuple):
    """One unchecked observation of a file; `place` is FILE:LINE."""

    place: str
    line: Mapping[str, Any] | object


@dataclass(frozen=True, slots=True)
class ExchangeFile:
    """One file to import; it is read several times, within `limits`. Messages show `name` instead of the path."""

    path: Path
    name: str = ""
    limits: FileLimits = DEFAULT

    @property
    def shown(self) -> str:
        """The file's name in messages."""
        return self.name or str(self.path)

    def definitions(self) -> Iterator[FileDefinition]:
        """Yield the definitions, wherever they are in the file; InputError names the line."""
        if is_container(self.path):
            for place, tree in container_definitions(self.path, self.shown, self.limits):
                yield _carried(place, tree)
            return
        for place, text in text_lines(self.path, self.shown, limits=self.limits):
            # Most lines are skipped without parsing; one that only contains the word is parsed to no effect.
            if f'"{DEFINITION}"' in text:
                tree = json_value(text, place, self.limits)
                if is_definition(tree):
                    yield _carried(place, tree)

    def lines(self, progress: Progress | None = None) -> Iterator[FileObservation]:
        """Yield the observations in the file's order; InputError names the line."""
        if is_container(self.path):
            for place, tree in container_lines(self.path, self.shown, self.limits, progress):
                yield FileObservation(place, tree)
            return
        for place, text in text_lines(self.path, self.shown, progress, self.limits):
            tree = json_value(text, place, self.limits)
            if not is_definition(tree):
                yield FileObservation(place, tree)


def is_definition(tree: object) -> bool:
    """Return whether a line is a type definition and not an observation."""
    return isinstance(tree, dict) and DEFINITION in tree and tree.keys() <= DEFINITION_KEYS


def _carried(place: str, tree: Mapping[str, Any]) -> FileDefinition:
    offset = tree.get("offset", 0)
    if type(offset) is not int or offset < 0:
        raise InputError(f"{place}: a definition's offset is a whole number; given {offset!r:.80}")
    try:
        return FileDefinition(place, offset, parse(tree[DEFINITION]))
    except SchemaError as error:
        raise InputError(f"{place}: {error}") from None
