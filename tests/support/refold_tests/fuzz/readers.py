"""Readers of records, as a log on Kafka or a file's owner calls them: bytes in; what they refuse is a RefoldError."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from refold.avro.definition import parse
from refold.avro.errors import RefoldError, SchemaError
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold.streams.cut import parse_cut
from refold.streams.log.file.messages import result_of
from refold.streams.log.kafka.reading import Raw
from refold.streams.log.kafka.records import NoObservation, observed


@cache
def registry() -> Registry:
    """The shipped types, in the order of their names."""
    found = Registry()
    for _, each in sorted(shipped_types().items()):
        found.add(each)
    return found


def observation(data: bytes) -> None:
    """A record of `.observations`: what is none gets a verdict."""
    try:
        found, _ = observed(registry(), 0, 1, Raw(0, 0, None, data, []))
    except NoObservation:
        return
    raise AssertionError(f"a record without a key was taken for {found}")


def definition(data: bytes) -> None:
    """A record of `.schemas`, once its JSON is read."""
    tree = json.loads(data)
    try:
        registry().check(parse(tree))
    except SchemaError as error:
        str(error).encode()


def cut(data: bytes) -> None:
    """The text of a cut."""
    parse_cut(data.decode())


def answer(data: bytes) -> None:
    """What the owner of a log answered."""
    import cbor2

    try:
        said = cbor2.loads(data)
    except cbor2.CBORDecodeError:  # as `receive` has it
        return
    result_of(said)


READERS: dict[str, Callable[[bytes], None]] = {
    "observation": observation, "definition": definition, "cut": cut, "answer": answer,
}  # fmt: skip


def call(name: str, file: str) -> int:
    """Read a file's bytes; 0 where they are good, 2 where they are refused."""
    try:
        READERS[name](Path(file).read_bytes())
    except RefoldError as error:
        print("refold:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0
