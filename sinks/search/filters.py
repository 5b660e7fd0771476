"""A Bloom filter of the hashed words of a run: it rules out most runs of a search without a look-up in the index.

1. It is computed from the hashes in the index (words.py) and nothing else. So it reveals no more than they do: without
   the run's key, nobody can compute the bits of a word.
2. A hash that was added is always found. One that was not is found by chance, at most once in about 60 times: a filter
   is made again, larger, before more than a quarter of its bits are set.
3. Its size is a power of two, so a position is some bits of the hash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_PROBES = 3
_BITS_MIN = 1 << 9
_BITS_OF_HASH = 12
"""At least, in a filter that was just made."""


class WordFilter:
    """The filter of one run.

    Args:
        bits: The bits of the filter, as they were stored.
    """

    __slots__ = ("_bits", "_count", "_mask")

    def __init__(self, bits: bytes) -> None:
        self._bits = bytearray(bits)
        self._mask = len(bits) * 8 - 1
        self._count = int.from_bytes(bits, "little").bit_count()

    @classmethod
    def of(cls, hashes: Collection[int]) -> WordFilter:
        """Return a filter for some hashes, with room for some more."""
        size = max(_BITS_MIN, 1 << (len(hashes) * _BITS_OF_HASH - 1).bit_length())
        made = cls(bytes(size // 8))
        made.add(hashes)
        return made

    @property
    def bits(self) -> bytes:
        """The bits to store."""
        return bytes(self._bits)

    @property
    def is_full(self) -> bool:
        """Whether it is to be made again, larger."""
        return self._count * 4 > self._mask

    def add(self, hashes: Iterable[int]) -> None:
        """Add hashes."""
        bits, mask = self._bits, self._mask
        for each in hashes:
            step = each >> 32 | 1
            for _ in range(_PROBES):
                at, bit = each & mask, 1 << (each & 7)
                if not bits[at >> 3] & bit:
                    bits[at >> 3] |= bit
                    self._count += 1
                each += step  # noqa: PLW2901  # the next position of the same hash

    def __len__(self) -> int:
        return len(self._bits)


def may_have(bits: bytes, number: int) -> bool:
    """Whether a stored filter may have a hash. False: it has not."""
    mask, step = len(bits) * 8 - 1, number >> 32 | 1
    for _ in range(_PROBES):
        at = number & mask
        if not bits[at >> 3] >> (at & 7) & 1:
            return False
        number += step
    return True
