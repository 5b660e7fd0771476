"""Contents in an object store: PREFIX/<first two digits>/<SHA-256 in hex>, one object each, as in a folder.

An object store has no locks, no lists to add to and no deletes that look first, so what a folder does by those is done
by objects beside the contents:

    expired/<SHA-256 in hex>   empty: this content was removed because it had expired
    removing/<token>           32 bytes a name: contents that somebody is removing now

To put a content:
1. Write it, whether it is there or not: equal names are equal contents, and its time is that of this put.
2. Look who is removing. Nobody names it: done. Else somebody may have looked at it before step 1, and remove it still:
   wait until that object is gone, or has been looked at for LEASE_S, which no remover outlives; then again from step 1.
To remove some:
1. Write `removing/<token>` with their names. Its time is the store's clock, by which `before_ms` is put right.
2. Leave those put since. Whoever puts one from here on sees step 1, for it looks after it wrote.
3. Where they have expired, write `expired/<name>` of each: nothing that is missing may be taken for that.
4. Remove them, none later than LEASE_S / 2 after step 1, then `removing/<token>`. What there was no time
   for is begun anew.
A process killed in between leaves `removing/<token>`: who puts one of its contents waits for LEASE_S, then removes it;
the next remover removes it too.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from refold.avro.blob import is_expired
from refold.avro.errors import StoreUnavailable
from refold.avro.observation import ID_BYTES
from refold.streams.blobs.store import ContentStore, Removed, StoredContent, in_lots, whole
from refold.streams.objects.port import ObjectInfo, Objects

EXPIRED, REMOVING = "expired", "removing"
# Longer than twice what any one request may take (streams/objects/remote.py).
LEASE_S = 150.0
_LOOKED_EVERY_S = 0.2
_REMOVED_AT_ONCE = 64
_REQUESTS_AT_ONCE = 8
# A store's times may be in whole seconds, rounded down.
_TIME_STEP_MS = 1000
_EVER_MS = 1 << 49


class BlobObjects(ContentStore):
    """Contents by SHA-256. wait: time.sleep, or what a test lets pass instead; now_s: a clock that only goes on."""

    def __init__(
        self, objects: Objects, *, lease_s: float = LEASE_S, now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.url = objects.url
        self._objects = objects
        self._lease_s = lease_s
        self._now_s = now_s
        self._wait = wait

    def __repr__(self) -> str:
        return f"<contents {self.url}>"

    def put(self, digest: bytes, content: bytes) -> None:
        if is_expired(digest, content):
            self._objects.prepare()
            if not self.has(digest):
                self._objects.put(f"{EXPIRED}/{digest.hex()}", b"")
            return
        self._objects.put(_name(digest), content)
        while (found := self._remover_of(digest)) is not None:
            self._outwait(found)
            self._objects.put(_name(digest), content)

    def get(self, digest: bytes) -> bytes | None:
        content = self._objects.get(_name(digest))
        return None if content is None else whole(digest, content, f"{self.url}/{_name(digest)}")

    def size(self, digest: bytes) -> int | None:
        found = self._objects.stat(_name(digest))
        return None if found is None else found.size

    def has_expired(self, digest: bytes) -> bool:
        return self._objects.stat(f"{EXPIRED}/{digest.hex()}") is not None

    def stored(self) -> Iterator[StoredContent]:
        for folder in self._objects.folders(""):
            for each in self._objects.names(folder) if len(folder) == len("00") else ():
                digits = each.name.removeprefix(f"{folder}/")
                if len(digits) == 2 * ID_BYTES and digits.startswith(folder):
                    yield StoredContent(bytes.fromhex(digits), each.size, each.put_ms)

    def expired(self) -> Iterator[bytes]:
        return (_digest(each) for each in self._objects.names(EXPIRED))

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> Removed:
        contents = size = left = 0
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="refold-contents") as several:
            for lot in in_lots(digests, _REMOVED_AT_ONCE):
                waiting = lot
                while waiting:
                    removed, waiting = self._removed(waiting, before_ms, several, is_expiry=is_expiry)
                    contents, size, left = contents + removed.contents, size + removed.bytes, left + removed.left
        return Removed(contents, size, left)

    def _removed(
        self, digests: list[bytes], before_ms: int, several: ThreadPoolExecutor, *, is_expiry: bool
    ) -> tuple[Removed, list[bytes]]:
        """Steps 1 to 4; also those that there was no time for."""
        lease = f"{REMOVING}/{secrets.token_hex(16)}"
        until_s = self._now_s() + self._lease_s / 2
        here_ms = time.time_ns() // 1_000_000
        self._objects.put(lease, b"".join(digests))  # step 1
        try:
            lease_ms = self._put_ms(lease)
            self._remove_left(lease_ms)
            if before_ms < _EVER_MS:  # a time of this machine's clock, as one of the store's
                before_ms += min(0, lease_ms - here_ms)
            found = [each for each in several.map(self._objects.stat, map(_name, digests)) if each is not None]
            going = [each for each in found if each.put_ms + _TIME_STEP_MS <= before_ms]  # step 2
            if is_expiry:
                marks = [f"{EXPIRED}/{each.name.rpartition('/')[2]}" for each in going]
                [*several.map(lambda mark: self._objects.put(mark, b""), marks)]  # step 3
            gone = [*several.map(lambda each: self._remove_before(until_s, each), going)]  # step 4
        finally:
            self._objects.delete(lease)
        done = [each for each, is_gone in zip(going, gone, strict=True) if is_gone]
        undone = [_digest(each) for each, is_gone in zip(going, gone, strict=True) if not is_gone]
        return Removed(len(done), sum(each.size for each in done), len(found) - len(going)), undone

    def _remove_before(self, until_s: float, found: ObjectInfo) -> bool:
        if self._now_s() >= until_s:
            return False
        self._objects.delete(found.name)
        return True

    def _put_ms(self, lease: str) -> int:
        found = self._objects.stat(lease)
        if found is None:
            raise StoreUnavailable(f"{self.url}: {lease} was just written, and is missing; repeat")
        return found.put_ms

    def _remove_left(self, now_ms: int) -> None:
        """What removers left that were killed."""
        for each in self._objects.names(REMOVING):
            if each.put_ms + 2 * self._lease_s * 1000 < now_ms:
                self._objects.delete(each.name)

    def _remover_of(self, digest: bytes) -> ObjectInfo | None:
        for each in self._objects.names(REMOVING):
            named = self._objects.get(each.name)
            if named is not None and digest in {*_digests(named)}:
                return each
        return None

    def _outwait(self, lease: ObjectInfo) -> None:
        """Return when it is gone; when it was there for LEASE_S, its owner is, and it is removed."""
        until_s = self._now_s() + self._lease_s
        while self._objects.stat(lease.name) is not None:
            if self._now_s() >= until_s:
                self._objects.delete(lease.name)
                return
            self._wait(_LOOKED_EVERY_S)


def _name(digest: bytes) -> str:
    name = digest.hex()
    return f"{name[:2]}/{name}"


def _digest(found: ObjectInfo) -> bytes:
    return bytes.fromhex(found.name.rpartition("/")[2])


def _digests(named: bytes) -> Iterator[bytes]:
    return (named[start : start + ID_BYTES] for start in range(0, len(named), ID_BYTES))
