"""Bounds on how much of an untrusted file an import reads into memory. Each bound is an option of `refold import`."""

from __future__ import annotations

from dataclasses import dataclass

from refold.avro.errors import InputError
from refold.avro.strict_json import DEPTH_MAX, ITEMS_MAX

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Bounds on one file; each is checked while the file is read.

    Attributes:
        line_bytes: A line of text, decompressed.
        block_bytes: A block of an Avro container, compressed and decompressed, and its header.
        depth, items: The levels of nesting and the number of values of one JSON text.
        expansion: How many times larger than the file its decompressed content may be, beyond EXPANSION_FROM bytes.
        conversation_bytes: The text of a conversation that is spread over many lines, decompressed.
    """

    line_bytes: int = 64 * MIB
    block_bytes: int = 64 * MIB
    depth: int = DEPTH_MAX
    items: int = ITEMS_MAX
    expansion: int = 200
    conversation_bytes: int = 128 * MIB

    def check_expansion(self, read: int, expanded: int, place: str) -> None:
        """Refuse a file that expands to too much.

        Args:
            read: How many bytes of the file were read.
            expanded: How many bytes they expanded to.
            place: The file's place, for the error.

        Raises:
            InputError: `expanded` is above EXPANSION_FROM and more than `expansion` times `read`.
        """
        if expanded > EXPANSION_FROM and expanded > read * self.expansion:
            raise InputError(
                f"{place}: the file expands to more than {self.expansion} times its size; if it is meant to, raise the "
                "bound with --max-expansion"
            )


EXPANSION_FROM = 16 * MIB
