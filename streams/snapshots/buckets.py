"""The digests of one partition's buckets, cached from epoch to epoch, with the hashed entities while these are small.

A bucket's digest covers all of its entities, so changing it for one of them needs the others' keys and hashes. With
this cache they need not be read from the table for every epoch. Beyond bytes_max only the digests are kept. The native
kernel keeps the entities and hashes the buckets, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from refold.avro.errors import CorruptionError
from refold.avro.kernel import Kernel, LayerMerger, find_kernel
from refold.streams.digest import EMPTY, Digests
from refold.streams.partitioner import BUCKETS
from refold.streams.snapshots.chunk import Piece, merged_preimages

PREIMAGES_BYTES = 128 << 20
"""For all partitions of a log that one process folds."""
_OBJECT_BYTES = 33


class Buckets:
    """Bucket digests, set from all groups of a table, or changed by some entities. No entity ever disappears."""

    def __init__(self, bytes_max: int) -> None:
        self._digests = Digests()
        self._bytes_max = bytes_max
        self._bytes = 0
        kernel = find_kernel().kernel
        # One of them has the preimages; none if they are too large.
        self._preimages: dict[int, list[bytes]] | None = {} if kernel is None else None
        self._kept: LayerMerger | None = None if kernel is None else kernel.LayerMerger()

    @property
    def digests(self) -> Digests:
        """The digests of all buckets.

        Raises:
            CorruptionError: The kernel cannot hash them.
        """
        if self._kept is not None:
            found = self._kept.digests()
            if found is None:
                raise _damaged()
            for slot, buckets in found:
                self._digests.set_buckets(slot, buckets)
        return self._digests

    @property
    def preimages_bytes(self) -> int:
        """About how much memory the preimages take, in bytes."""
        if self._kept is not None:
            places, covered = self._kept.size()
            return places * _OBJECT_BYTES + covered
        return self._bytes

    def may_change(self) -> bool:
        """Whether `change` may be called for the next epoch; otherwise the buckets have to be set again."""
        if self.preimages_bytes > self._bytes_max:
            self._digests = self.digests
            self._preimages = self._kept = None
            self._bytes = 0
        return self._preimages is not None or self._kept is not None

    def passing(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Pass on the pieces of a whole table, and set each."""
        for piece in pieces:
            self.set(*piece)
            yield piece

    def set(self, place: int, preimages: bytes, _: list[bytes]) -> None:
        """Set a bucket from a piece with all its entities."""
        if self.may_change() and self._kept is not None:
            if preimages:
                self._put([place], [preimages])
            return
        self._digests.set(place, sha256(preimages).digest() if preimages else EMPTY)
        if self._preimages is not None:
            self._keep(place, preimages)

    def set_slot(self, slot: int, digests: bytes, preimages: list[bytes]) -> None:
        """Set all buckets of a slot of which none was set before.

        Args:
            preimages: Empty for an empty bucket.
        """
        if self.may_change() and self._kept is not None:
            places = [slot * BUCKETS + bucket for bucket, each in enumerate(preimages) if each]
            self._put(places, [each for each in preimages if each])
            return
        self._digests.set_buckets(slot, digests)
        if self._preimages is not None:
            self._preimages[slot] = preimages
            self._bytes += sum([len(each) + _OBJECT_BYTES for each in preimages if each])

    def change(self, piece: Piece) -> None:
        """Change a bucket by a piece with its changed and new entities."""
        place, preimages, _ = piece
        if self._kept is not None:
            self._put([place], [preimages])
            return
        assert self._preimages is not None
        slot = self._preimages.get(place >> 8)
        before = slot[place & 0xFF] if slot is not None else b""
        whole = merged_preimages(before, preimages) if before else preimages
        self._digests.set(place, sha256(whole).digest())
        self._keep(place, whole)

    def change_each(self, places: Sequence[int], preimages: Sequence[bytes]) -> None:
        """`change` many buckets."""
        if self._kept is not None:
            self._put(places, preimages)
            return
        for place, own in zip(places, preimages, strict=True):
            self.change((place, own, []))

    def set_each(self, kernel: Kernel, places: Sequence[int], preimages: Sequence[bytes]) -> None:
        """`set` many buckets by the kernel."""
        if self.may_change() and self._kept is not None:
            self._put(places, preimages)
            return
        found = kernel.merged([b""] * len(places), preimages)
        if found is None:
            raise _damaged()
        for place, whole, digest in zip(places, *found, strict=True):
            self._digests.set(place, digest)
            if self._preimages is not None:
                self._keep(place, whole)

    def _put(self, places: Sequence[int], preimages: Sequence[bytes]) -> None:
        assert self._kept is not None
        if not self._kept.put(places, preimages):
            raise _damaged()

    def _keep(self, place: int, preimages: bytes) -> None:
        kept = self._preimages
        assert kept is not None
        slot = kept.get(place >> 8)
        if slot is None:
            slot = kept[place >> 8] = [b""] * BUCKETS
        before = slot[place & 0xFF]
        slot[place & 0xFF] = preimages
        self._bytes += len(preimages) - len(before) if before else len(preimages) + _OBJECT_BYTES


def _damaged() -> CorruptionError:
    return CorruptionError("the preimage of a bucket is damaged in memory")
