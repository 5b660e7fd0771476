"""Split a serialized value into pieces, so that a value that grows a little needs only a little more storage.

A channel such as `messages` is written whole at each step, and its bytes are those of the step before with some more at
the end. So:

1. The header of a msgpack array, which holds its length, is stored separately, because it differs at each step.
2. In the rest, pieces of the earlier value within the common prefix or the common suffix are reused.
3. The part between becomes new pieces.
4. FAN_OUT adjacent pieces of one size class are merged into one of the next class. So a value of n steps has about
   FAN_OUT * log(n) pieces, and each byte is stored about log(n) times, to the base FAN_OUT.

Pieces are named by their hashes, so no value depends on another value's pieces.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

FAN_OUT = 8
PIECE_BYTES_MAX = 128 << 10
# The lower bound of each size class but the first. Pieces of the last class are never merged.
_CLASS_BYTES = (2 << 10, 16 << 10, PIECE_BYTES_MAX)
_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD


class Piece(NamedTuple):
    """Some bytes of a value.

    Attributes:
        hash: The SHA-256 of the bytes, in hex.
        size: The number of bytes.
    """

    hash: str
    size: int


class PieceList(NamedTuple):
    """A value as a header and the pieces that follow it.

    Attributes:
        new: The bytes of the pieces that no other value stored.
    """

    head: bytes
    pieces: tuple[Piece, ...]
    new: dict[str, bytes]


def cut(data: bytes, before: bytes = b"", before_pieces: Sequence[Piece] = ()) -> PieceList:
    """Split a value into pieces.

    Args:
        data: The serialized value.
        before: A value that may share bytes with it, with its header.
        before_pieces: That value's pieces.

    Returns:
        The pieces; those reused from `before_pieces` are not in `new`.
    """
    head = header_bytes(data)
    body, old = data[head:], before[header_bytes(before) :]
    shared = _common_prefix(body, old)
    first, first_end = 0, 0
    while first < len(before_pieces) and first_end + before_pieces[first].size <= shared:
        first_end += before_pieces[first].size
        first += 1
    most = min(len(body), len(old)) - first_end
    shared = _common_prefix(body[::-1][:most], old[::-1][:most]) if most > 0 and first_end < len(old) else 0
    last, last_size = len(before_pieces), 0
    while last > first and last_size + before_pieces[last - 1].size <= shared:
        last -= 1
        last_size += before_pieces[last].size
    middle = _new_pieces(body[first_end : len(body) - last_size])
    pieces = merged(body, [*before_pieces[:first], *middle, *before_pieces[last:]])
    known = set(before_pieces)
    new: dict[str, bytes] = {}
    at = 0
    for piece in pieces:
        if piece not in known:
            new[piece.hash] = body[at : at + piece.size]
        at += piece.size
    return PieceList(data[:head], tuple(pieces), new)


def header_bytes(data: bytes) -> int:
    """Return how many bytes at the beginning hold the length of a msgpack array; 0 for any other value."""
    if not data:
        return 0
    if 0x90 <= data[0] <= 0x9F:
        return 1
    return 3 if data[0] == _ARRAY_16 else 5 if data[0] == _ARRAY_32 else 0


def merged(body: bytes, pieces: Sequence[Piece]) -> list[Piece]:
    """Merge groups of small adjacent pieces; the bytes stay the same.

    Args:
        body: The bytes of all pieces.
        pieces: The pieces, in order.
    """
    found = list(pieces)
    for size_class in range(len(_CLASS_BYTES)):
        classes = [bisect_right(_CLASS_BYTES, piece.size) for piece in found]
        if classes.count(size_class) < FAN_OUT:
            continue
        kept: list[Piece] = []
        row: list[Piece] = []
        at = 0  # where the row begins
        for piece, its_class in zip(found, classes, strict=True):
            if its_class == size_class:
                row.append(piece)
                if len(row) == FAN_OUT:
                    size = sum(each.size for each in row)
                    kept += _new_pieces(body[at : at + size])
                    at, row = at + size, []
                continue
            kept += [*row, piece]
            at += sum(each.size for each in row) + piece.size
            row = []
        found = [*kept, *row]
    return found


def _new_pieces(data: bytes) -> list[Piece]:
    parts = (data[at : at + PIECE_BYTES_MAX] for at in range(0, len(data), PIECE_BYTES_MAX))
    return [Piece(hashlib.sha256(part).hexdigest(), len(part)) for part in parts]


def _common_prefix(a: bytes, b: bytes) -> int:
    """Return the length of the common prefix. It compares halves, which runs at the speed of memory."""
    low, high = 0, min(len(a), len(b))
    if a.startswith(b) or b.startswith(a):
        return high
    while high - low > 1:  # the first `low` bytes are equal, the first `high` bytes are not
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
