"""Contents in an object store: one object per content, PREFIX/<first two digits>/<SHA-256 in hex>, as in a folder.

An object store has no locks, no appendable lists and no conditional deletes. Objects next to the contents replace them:

    expired/<SHA-256 in hex>   empty: this content was removed because it had expired
    removing/<token>           32 bytes a name: contents that a process is removing now

To put a content:
1. Write it, whether it exists or not: equal names are equal contents, and its time becomes that of this put.
2. List the removers. If none names the content: done. Otherwise a remover may have checked it before step 1, and may
   still remove it: wait until its object is gone, or has been seen for LEASE_S, which no remover outlives; then repeat
   from step 1.
To remove some:
1. Write `removing/<token>` with their names. Its time is the store's clock, by which `before_ms` is corrected.
2. Skip those put since. Any process that puts one from now on sees the object of step 1, because it checks after its
   write.
3. If they have expired, write `expired/<name>` for each: a missing content without this mark never counts as expired.
4. Remove them, none later than LEASE_S / 2 after step 1, then remove `removing/<token>`. Start over for those for which
   there was no time.
A process killed in between leaves `removing/<token>`. A process that puts one of its contents waits for LEASE_S, then
removes it; so does the next remover.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from refold.avro.blob import is_expired
from refold.avro.errors import StoreUnavailable
from refold.avro.observation import ID_BYTES
from refold.streams.blobs.store import ContentStore, RemovalResult, StoredContent, in_batches, whole
from refold.streams.objects.port import ObjectInfo, Objects

EXPIRED, REMOVING = "expired", "removing"
# More than twice the longest time of one request (streams/objects/remote.py).
LEASE_S = 150.0
_LOOKED_EVERY_S = 0.2
_REMOVED_AT_ONCE = 64
_REQUESTS_AT_ONCE = 8
# Some stores round times down to whole seconds.
_TIME_STEP_MS = 1000
_EVER_MS = 1 << 49


class BlobObjects(ContentStore):
    """Contents by SHA-256.

    Args:
        wait: `time.sleep`, or a test's replacement.
        now_s: A monotonic clock, in seconds.
    """

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

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> RemovalResult:
        contents = size = left = 0
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="refold-contents") as several:
            for lot in in_batches(digests, _REMOVED_AT_ONCE):
                waiting = lot
                while waiting:
                    removed, waiting = self._removed(waiting, before_ms, several, is_expiry=is_expiry)
                    contents, size, left = contents + removed.contents, size + removed.bytes, left + removed.left
        return RemovalResult(contents, size, left)

    def _removed(
        self, digests: list[bytes], before_ms: int, several: ThreadPoolExecutor, *, is_expiry: bool
    ) -> tuple[RemovalResult, list[bytes]]:
        """Run steps 1 to 4; also returns the contents for which there was no time."""
        lease = f"{REMOVING}/{secrets.token_hex(16)}"
        until_s = self._now_s() + self._lease_s / 2
        here_ms = time.time_ns() // 1_000_000
        self._objects.put(lease, b"".join(digests))  # step 1
        try:
            lease_ms = self._put_ms(lease)
            self._remove_left(lease_ms)
            if before_ms < _EVER_MS:  # convert from this machine's clock to the store's
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
        return RemovalResult(len(done), sum(each.size for each in done), len(found) - len(going)), undone

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
        """Remove the `removing/` objects of killed removers."""
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
        """Wait until a remover's object is gone. After LEASE_S its owner has ended, and the object is removed."""
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
