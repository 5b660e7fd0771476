"""Entities whose place is in their name, as chunks, and ways to damage a chunk.

Names whose places are equal, and the highest place, are too rare to be found.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence

from hypothesis import strategies as st

from refold.avro.kernel import Kernel, find_kernel
from refold.streams.partitioner import PLACE_BYTES
from refold.streams.snapshots.chunk import chunks_of
from refold_tests.encoded_entities import encoded, grouped

States = dict[str, bytes]
"""The stored form of each entity."""

PLACES = [0, 1, 255, 256, *range(0x300, 0x318), 0x3FFFE, 0x3FFFF]
"""The lowest and the highest place, and so many of one slot that its buckets are hashed together."""
IDS = ["a", "aa", "a\0", "é", "\U00010000", "long" * 20]
NAMES = [f"t/{place}/{each}" for place in PLACES for each in IDS]
FEW_NAMES = [f"t/{place}/{each}" for place in (0, 0x3FFFF) for each in IDS[:4]]
ABSENT = ["t/0/b", "t/2/a", "t/255/", "t/262143/a\0\0", "t/262142/e"]
PLACE_END = 1 << 18
HEAD = struct.Struct(">BIII")


def values_of(*sizes: int) -> st.SearchStrategy[bytes]:
    """The state hash and the value of an entity's state. Equal ones occur."""
    return st.builds(
        lambda number, size: random.Random(number).randbytes(32 + size), st.integers(0, 9), st.sampled_from(sizes)
    )


def tables_of(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[str, bytes]]:
    return st.dictionaries(st.sampled_from(NAMES), values, max_size=60) | st.dictionaries(
        st.sampled_from(FEW_NAMES), values, min_size=1
    )


TABLES = tables_of(values_of(0, 90)) | tables_of(values_of(0, 1, 90))


def the_kernel() -> Kernel:
    kernel = find_kernel().kernel
    assert kernel is not None
    return kernel


def place_in_name(entity: str) -> int:
    return int(entity.split("/")[1])


def placed_by_name(entities: Sequence[str]) -> list[bytes]:
    return [place_in_name(entity).to_bytes(PLACE_BYTES, "big") + entity.encode() for entity in entities]


def packed(values: Mapping[str, bytes]) -> States:
    """A state whose value has one byte is left to Python by the kernel."""
    return {
        name: encoded(name, 1, value[:32], value[32:], highest=-1 if len(value) == 33 else 7)
        for name, value in values.items()
    }


def groups_of(table: Mapping[str, bytes]) -> list[tuple[int, list[tuple[bytes, bytes]]]]:
    return grouped(table.items(), place_in_name)


def chunks_of_layers(tables: Sequence[Mapping[str, bytes]], chunk_bytes: int) -> list[bytes]:
    """The chunks of all layers, those of the last table first."""
    return [data for table in reversed(tables) for data in chunks_of(groups_of(packed(table)), chunk_bytes)]


def flipped(data: bytes, chosen: random.Random) -> bytes:
    """A chunk with a byte changed, mostly in its tables."""
    end = tables_end(data) if chosen.random() < 0.7 else len(data)
    at = chosen.randrange(end)
    return data[:at] + bytes([data[at] ^ (1 << chosen.randrange(8))]) + data[at + 1 :]


def truncated(data: bytes, chosen: random.Random) -> bytes:
    return data[: chosen.randrange(len(data))]


def swapped(data: bytes, chosen: random.Random) -> bytes:
    """A chunk with two numbers of its tables swapped."""
    numbers = [data[at : at + 4] for at in range(HEAD.size, tables_end(data), 4)]
    one, other = chosen.randrange(len(numbers)), chosen.randrange(len(numbers))
    numbers[one], numbers[other] = numbers[other], numbers[one]
    return data[: HEAD.size] + b"".join(numbers) + data[tables_end(data) :]


def lengthened(data: bytes, chosen: random.Random) -> bytes:
    """A chunk with a number that exceeds the end: in its head, in its tables, or as a key's length."""
    at = chosen.choice((1, 5, 9, chosen.randrange(HEAD.size, tables_end(data), 4), tables_end(data)))
    number = chosen.choice((len(data), len(data) + 1, 2**31, 2**32 - 1))
    return data[:at] + number.to_bytes(4, chosen.choice(("big", "little"))) + data[at + 4 :]


def tables_end(data: bytes) -> int:
    groups, entities = struct.unpack_from(">II", data, 1)
    end: int = 4 * (3 * groups + entities)
    return HEAD.size + end


Damage = Callable[[bytes, random.Random], bytes]
DAMAGES: tuple[Damage, ...] = (flipped, truncated, swapped, lengthened)
