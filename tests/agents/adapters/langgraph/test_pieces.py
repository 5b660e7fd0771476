"""Values as pieces (agents/adapters/langgraph/pieces.py): the bytes are restored, from few pieces."""

from __future__ import annotations

import hashlib
import random

import ormsgpack
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.adapters.langgraph.pieces import FAN_OUT, PIECE_BYTES_MAX, Piece, PieceList, cut


def bytes_of(found: PieceList, stored: dict[str, bytes]) -> bytes:
    """Restore a value from what was stored of it and of other values."""
    stored |= found.new
    for piece in found.pieces:
        assert len(stored[piece.hash]) == piece.size
        assert hashlib.sha256(stored[piece.hash]).hexdigest() == piece.hash
    return found.head + b"".join(stored[piece.hash] for piece in found.pieces)


@given(st.lists(st.binary(max_size=200), max_size=8), st.randoms(use_true_random=False))
def test_any_value_after_any_other_round_trips(parts: list[bytes], chance: random.Random) -> None:
    stored: dict[str, bytes] = {}
    before = b""
    pieces: tuple[Piece, ...] = ()
    for _ in range(6):
        data = b"".join(part * chance.choice((1, 1, 20, 2000)) for part in chance.choices(parts, k=3)) if parts else b""
        found = cut(data, before, pieces)
        assert bytes_of(found, stored) == data
        assert all(0 < piece.size <= PIECE_BYTES_MAX for piece in found.pieces)
        before, pieces = data, found.pieces


def test_growing_list_stores_only_new_items() -> None:
    """600 steps, each of which adds a message. Each byte is stored a few times; whole lists would need 300 times."""
    chance = random.Random(7)
    stored: dict[str, bytes] = {}
    items: list[bytes] = []
    before = b""
    pieces: tuple[Piece, ...] = ()
    written = most = 0
    for _ in range(600):
        items.append(chance.randbytes(500))
        data = ormsgpack.packb(items)
        found = cut(data, before, pieces)
        assert bytes_of(found, stored) == data
        written += sum(map(len, found.new.values()))
        before, pieces, most = data, found.pieces, max(most, len(found.pieces))
    assert written < 6 * len(before)
    assert most < 5 * FAN_OUT


def test_edit_in_the_middle_stores_only_the_piece_around_it() -> None:
    chance = random.Random(8)
    items = [chance.randbytes(900) for _ in range(400)]
    before = ormsgpack.packb(items)
    pieces = cut(before).pieces
    items[200] = b"another"
    edited = cut(ormsgpack.packb(items), before, pieces)
    assert 0 < sum(map(len, edited.new.values())) <= PIECE_BYTES_MAX
