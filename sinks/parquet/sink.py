"""`refold sink parquet --to URL`: every entity at an exact cut, as Parquet files in a folder or in S3.

    commits/<number>-<token>/type=<type>/partition=<partition>/part.parquet   one commit's files, the whole state
    manifests/<number>.json   creates the commit: its cut, root, folder and files
    CURRENT                   the folder of the newest commit, as text
    current                   in a folder: a link to it

To commit a view:
1. Read the newest manifest, number n. The view must follow it: same log, and the cut that `position` returned.
2. Write all files into commits/<n + 1>-<token>, with a unique token. If a partition got no record and no definition
   since commit n, its files are linked, or copied inside the store. After a commit of an earlier format every file is
   written again, even if the cut is the same.
3. Create manifests/<n + 1>.json, which only one process can: this is the commit. A second process is refused; no
   manifest names its folder, and step 5 removes it.
4. Write CURRENT and move the link. Then check for a newer manifest, and if there is one, write both again with it. So
   they always name a complete commit, and the newest one when the last writer is done.
5. Remove what is no longer needed: first the files, then the manifest, of each commit that was replaced longer ago than
   the grace period, but never of CURRENT's commit. Also remove folders with a used number that no manifest names.
A process that is killed before step 3 has committed nothing; after step 3 it has. `position` is read from the newest
manifest, never from CURRENT. The next process that opens the sink repeats steps 4 and 5 for the newest commit.

Guarantees for readers. A commit's folder is complete before CURRENT names it, and never changes. A reader that reads
CURRENT (or resolves the link) once, and then uses a plain glob below that folder, sees exactly one complete commit. A
glob through the link resolves each name separately and may mix two commits, so resolve the link first. Do not read
`commits/*`: it holds several states at a time. The files of a replaced commit stay for the grace period.

The manifest of a commit is JSON.

A sink removes the folders that old manifests name, and other programs may be able to write a manifest. So a manifest is
rejected unless all its names have the form that a sink writes: a manifest never causes a read or a removal outside of
the sink's own folder.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import msgspec

from refold.avro.errors import CorruptionError, InputError, NotAnswerable, StoreRefused, StoreUnavailable
from refold.sinks.parquet.files import write_partition
from refold.sinks.port import SinkBusy, SinkRefused, SnapshotSink
from refold.streams.blobs.url import store_url
from refold.streams.cut import Cut, parse_cut
from refold.streams.objects.folder import FolderObjects
from refold.streams.objects.port import Objects
from refold.streams.objects.remote import RemoteObjects
from refold.streams.view import StateView

FORMAT = 2
"""Format 2: a text that may be a Blob or Sealed is stored as text; in format 1 as its JSON."""
_FOLDER = re.compile(r"commits/\d{1,20}-[0-9a-f]{16}")
_PATH = re.compile(r"type=[A-Za-z0-9_]+/partition=\d{1,9}/part\.parquet")


class CommittedFile(msgspec.Struct, frozen=True):
    """A file of a commit: its path below the commit's folder, and its content."""

    path: str
    type: str
    partition: int
    rows: int
    bytes: int
    definition: str


class CommitManifest(msgspec.Struct, frozen=True):
    """One commit.

    Attributes:
        folder: The folder of its files, below the sink's URL.
        cut: The cut as text.
        root: The root of the state, in hex.
    """

    refold_parquet: int
    number: int
    folder: str
    cut: str
    entities: int
    root: str
    files: tuple[CommittedFile, ...]

    def at(self) -> Cut:
        """The cut of the commit's state."""
        return parse_cut(self.cut)


def encoded(manifest: CommitManifest) -> bytes:
    """Return a manifest as the bytes of its file."""
    return msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"


def decoded(data: bytes, place: str) -> CommitManifest:
    """Parse a commit's manifest.

    Args:
        data: The file's content.
        place: Where it is, for the error.

    Raises:
        CorruptionError: It is not a manifest that this release can read.
    """
    try:
        found = msgspec.json.decode(data, type=CommitManifest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptionError(f"{place}: not a manifest of a Parquet sink: {error}") from None
    if found.refold_parquet > FORMAT:
        raise CorruptionError(f"{place}: of format {found.refold_parquet}; install the newer refold that wrote it")
    if not _FOLDER.fullmatch(found.folder) or not all(_PATH.fullmatch(each.path) for each in found.files):
        raise CorruptionError(f"{place}: it names files that no sink writes; remove it, and commit again")
    return found


COMMITS, MANIFESTS, CURRENT, LINK = "commits", "manifests", "CURRENT", "current"
GRACE_S = 3600.0
_DIGITS = 12

Progress = Callable[[int, int], None]


def open_sink(url: str) -> SnapshotSink:
    """Open the sink at file:///FOLDER or s3://BUCKET/PREFIX, with ?grace_s=SECONDS.

    Raises:
        InputError: The URL is invalid.
    """
    place, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    grace = options.pop("grace_s", str(GRACE_S))
    if options or not grace.replace(".", "", 1).isdecimal():
        raise InputError(f"{place}: a Parquet sink takes ?grace_s=SECONDS and no more")
    kept = store_url(place)
    objects: Objects = (
        FolderObjects(Path(unquote(kept.removeprefix("file://")))) if kept.startswith("file:") else RemoteObjects(kept)
    )
    return ParquetSink(objects, float(grace))


class ParquetSink(SnapshotSink):
    """Commits in an object store. For one thread."""

    def __init__(self, objects: Objects, grace_s: float = GRACE_S) -> None:
        self.name = f"parquet {objects.url}"
        self._objects = objects
        self._grace_s = grace_s
        self._followed: int | None = None
        self._finished: int | None = None
        self._is_outdated = False

    @property
    def is_outdated(self) -> bool:
        return self._is_outdated

    def position(self) -> Cut | None:
        with self._asking():
            self._objects.prepare()
            if isinstance(self._objects, FolderObjects):
                self._objects.tidy()
            newest = self._newest()
            self._followed = 0 if newest is None else newest.number
            self._is_outdated = newest is not None and newest.refold_parquet < FORMAT
            if newest is None:
                return None
            if newest.number != self._finished:
                self._finish(newest)
            return newest.at()

    def commit(self, view: StateView, progress: Progress = lambda more, total: None) -> None:
        with self._asking():
            before = self._newest()  # step 1
            number = (0 if before is None else before.number) + 1
            if self._followed is not None and number != self._followed + 1:
                raise self._overtaken()
            if before is not None and before.at().log_id != view.cut.log_id:
                raise SinkRefused(
                    f"{self.name}: it holds the log {before.at().log_id.hex()}, not this one; give another URL"
                )
            folder = f"{COMMITS}/{_text(number)}-{secrets.token_hex(8)}"
            files = self._write_files(view, folder, before, progress)  # step 2
            manifest = CommitManifest(
                FORMAT, number, folder, str(view.cut), sum(each.rows for each in files), _root(view), tuple(files)
            )
            if not self._objects.create(_manifest(number), encoded(manifest)):  # step 3
                raise self._overtaken()
            self._followed = number
            self._finish(manifest)

    def close(self) -> None:
        """Nothing to close."""

    def current(self) -> CommitManifest | None:
        """The newest commit."""
        with self._asking():
            return self._newest()

    def _overtaken(self) -> SinkRefused:
        return SinkRefused(
            f"{self.name}: another process commits to it; end one of the two, or give it a URL of its own"
        )

    def _newest(self) -> CommitManifest | None:
        names = max((each.name for each in self._objects.names(MANIFESTS) if each.name.endswith(".json")), default=None)
        if names is None:
            return None
        data = self._objects.get(names)
        if data is None:
            raise StoreUnavailable(f"{self._objects.url}: {names} was just listed, and is missing; repeat")
        return decoded(data, f"{self._objects.url}/{names}")

    def _write_files(
        self, view: StateView, folder: str, before: CommitManifest | None, progress: Progress
    ) -> list[CommittedFile]:
        found: list[CommittedFile] = []
        total = len(view)
        for partition in view.cut.offsets:
            is_kept = before is not None and before.refold_parquet == FORMAT
            if before is not None and is_kept and _is_unchanged(before.at(), view.cut, partition):
                for each in before.files:
                    if each.partition == partition:
                        self._objects.copy(f"{before.folder}/{each.path}", f"{folder}/{each.path}")
                        found.append(each)
                        progress(each.rows, total)
            else:
                found += self._partition(view, folder, partition, lambda more: progress(more, total))
        return found

    def _partition(
        self, view: StateView, folder: str, partition: int, wrote: Callable[[int], None]
    ) -> Iterator[CommittedFile]:
        metadata = {
            "refold.cut": str(view.cut), "refold.log": view.cut.log_id.hex(), "refold.partition": str(partition),
        }  # fmt: skip
        with self._objects.scratch() as scratch:
            for each in write_partition(view.stored(partition), view.folds, scratch, metadata, wrote):
                path, size = f"type={each.type}/partition={partition}/part.parquet", each.path.stat().st_size
                self._objects.put_file(f"{folder}/{path}", each.path)
                yield CommittedFile(path, each.type, partition, each.rows, size, each.definition)

    def _finish(self, manifest: CommitManifest) -> None:
        """Do steps 4 and 5 for a commit, made by this or another process."""
        self._point(manifest)
        self._collect(manifest)
        self._finished = manifest.number

    def _point(self, manifest: CommitManifest) -> None:
        """Step 4."""
        while True:
            # An equal CURRENT is not written again, so that opening works on a full disk.
            if self._objects.get(CURRENT) != manifest.folder.encode():
                self._objects.put(CURRENT, manifest.folder.encode())
            if isinstance(self._objects, FolderObjects):
                self._objects.point(LINK, manifest.folder)
            newest = self._newest()
            if newest is None or newest.number <= manifest.number:
                return
            manifest = newest

    def _collect(self, newest: CommitManifest) -> None:
        """Step 5."""
        manifests = sorted(self._objects.names(MANIFESTS), key=lambda each: each.name)
        now_ms = next((each.put_ms for each in manifests if each.name == _manifest(newest.number)), 0)
        pointed = (self._objects.get(CURRENT) or b"").decode()
        kept: set[str] = {pointed, newest.folder}
        for each, after in pairwise(manifests):
            data = self._objects.get(each.name)
            if data is None:
                continue
            old = decoded(data, f"{self._objects.url}/{each.name}")
            if old.folder in kept or after.put_ms + self._grace_s * 1000 > now_ms:
                kept.add(old.folder)
                continue
            self._objects.remove(old.folder)
            self._objects.delete(each.name)
        for name in [*self._objects.folders(COMMITS)]:
            if f"{COMMITS}/{name}" not in kept and int(name.partition("-")[0]) <= newest.number:
                self._objects.remove(f"{COMMITS}/{name}")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Translate an error of the store: SinkBusy if waiting helps, else SinkRefused."""
        try:
            yield
        except StoreUnavailable as error:
            raise SinkBusy(f"{self.name}: {error}", error.retry_after_s) from None
        except StoreRefused as error:
            raise SinkRefused(f"{self.name}: {error}") from None
        except OSError as error:  # a file that is made on a disk that is full
            raise SinkBusy(f"{self.name}: {error.strerror or type(error).__name__}; free disk") from None


def _is_unchanged(before: Cut, cut: Cut, partition: int) -> bool:
    """Whether a partition's state is equal at both cuts: it has the same offset and definitions."""
    return (
        before.offsets.get(partition) == cut.offsets[partition]
        and (before.schemas, before.types_digest, before.observed_until, before.fold_version)
        == (cut.schemas, cut.types_digest, cut.observed_until, cut.fold_version)
    )  # fmt: skip


def _root(view: StateView) -> str:
    try:
        return view.root
    except NotAnswerable:
        return ""


def _text(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _manifest(number: int) -> str:
    return f"{MANIFESTS}/{_text(number)}.json"
