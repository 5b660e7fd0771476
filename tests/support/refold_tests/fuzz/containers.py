"""Avro containers as any writer could write them: any schema in the header, any declared size, any codec."""

from __future__ import annotations

import bz2
import json
import lzma
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

SYNC_BYTES = 16


@dataclass(frozen=True, slots=True)
class Container:
    """A container's parts. blocks: (declared records, bytes before compression)."""

    schema: Any
    codec: str
    metadata: dict[str, bytes]
    sync: bytes
    blocks: tuple[tuple[int, bytes], ...]


def varint(number: int) -> bytes:
    """Return a long as Avro writes it."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def parsed(data: bytes) -> Container:
    """Return the parts of a valid container that is compressed with deflate."""
    import io

    import fastavro

    stream = io.BytesIO(data)
    reader: Any = fastavro.block_reader(stream)
    blocks = []
    for block in reader:
        block.bytes_.seek(0)
        blocks.append((block.num_records, block.bytes_.read()))
    metadata = {key: each.encode() for key, each in reader.metadata.items() if not key.startswith("avro.")}
    return Container(json.loads(reader.metadata["avro.schema"]), "deflate", metadata, data[-SYNC_BYTES:], tuple(blocks))


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": lambda data: data,
    "snappy": lambda data: data,
    "nope": lambda data: data,
}


def written(container: Container) -> bytes:
    """Return the container's bytes."""
    metadata = {
        "avro.schema": json.dumps(container.schema).encode(), "avro.codec": container.codec.encode(),
        **container.metadata,
    }  # fmt: skip
    out = [b"Obj\x01", varint(len(metadata))]
    for key, value in metadata.items():
        out += [varint(len(key.encode())), key.encode(), varint(len(value)), value]
    out += [varint(0), container.sync]
    for count, data in container.blocks:
        packed = COMPRESS[container.codec](data)
        out += [varint(count), varint(len(packed)), packed, container.sync]
    return b"".join(out)


def mutated(
    chance: random.Random, container: Container, tree: Callable[[Any], Any], data: Callable[[bytes], bytes]
) -> Container:
    """Change one part. tree: changes the schema or the definitions; data: changes the bytes of a block before
    compression.
    """
    what = chance.randrange(8)
    if what < 2:
        return replace(container, schema=tree(container.schema))
    if what == 2:
        return replace(container, schema=_retyped(chance, container.schema))
    if what == 3:
        return replace(container, codec=chance.choice(list(COMPRESS)))
    if what == 4 and container.metadata:
        key = chance.choice(list(container.metadata))
        changed = json.dumps(tree(json.loads(container.metadata[key]))).encode()
        return replace(container, metadata={**container.metadata, key: changed})
    if what == 5:
        claims = (0, 1, -1, 2**20, 2**40, 2**62)
        return replace(container, blocks=tuple((chance.choice(claims), each) for _, each in container.blocks))
    blocks = list(container.blocks)
    at = chance.randrange(len(blocks))
    blocks[at] = (blocks[at][0], data(blocks[at][1]))
    return replace(container, blocks=tuple(blocks), codec=chance.choice(("null", "deflate", "bzip2", "xz")))


_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL = ("timestamp-millis", "timestamp-micros", "date", "uuid", "decimal", "time-millis", "duration")


def _retyped(chance: random.Random, schema: Any) -> Any:
    """Return the schema with one of its types replaced, or given a logical type."""
    from refold_tests.fuzz.mutate import places

    schema = json.loads(json.dumps(schema))
    found = [(holder, key) for holder, key in places(schema) if holder[key] in _PRIMITIVES]
    if found:
        holder, key = chance.choice(found)
        kind = chance.choice((holder[key], *_PRIMITIVES))
        holder[key] = chance.choice((kind, {"type": kind, "logicalType": chance.choice(_LOGICAL), "precision": 4}))
    return schema
