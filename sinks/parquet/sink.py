"""`refold sink parquet --to URL`: every entity at an exact cut, as Parquet files in a folder or in S3.

    commits/<number>-<token>/type=<type>/partition=<partition>/part.parquet   one commit's files, the whole state
    manifests/<number>.json   makes a commit one: its cut, root, folder and files
    CURRENT                   the folder of the newest commit, as text
    current                   in a folder: a link to it

To commit a view:
1. Read the newest manifest, by number n. The view has to follow it: same log, and the cut that `position` gave.
2. Write all files into commits/<n + 1>-<token>, with a token nobody else has. A partition of which nothing was recorded
   since, and no definition, has the files it had: they are linked, or copied by the store itself. After a commit of an
   earlier format every file is written anew, and such a commit is followed by one of the same cut where nothing came.
3. Create manifests/<n + 1>.json, which only one can: this is the commit. Who comes second is refused; its folder is
   named by no manifest, and goes with step 5.
4. Write CURRENT and move the link; then look whether a newer manifest stands there, and if so let both name that one:
   so they name the newest commit once the last writer is through, and always a whole one.
5. Remove what is of no use any more: the files, then the manifest, of commits that a newer one has replaced for longer
   than the grace, never those of CURRENT's; and folders of numbers that are taken, but named by no manifest.
A process killed before 3 has committed nothing, one killed after it has. `position` is the newest manifest, never
CURRENT; whoever opens the sink next does 4 and 5 again, of the newest commit.

What readers may rely on. A commit's folder is whole before CURRENT names it, and is never changed: whoever reads
CURRENT (or resolves the link) once, and then reads below that folder by a plain glob, sees one commit, whole. Whoever
gives the link's own name to a glob has its names looked up one by one, and where a commit comes between may meet two
of them: resolve it first. `commits/*` is for nobody: it holds several states at a time. The files of a folder stay for
the grace after it was replaced.

What a commit is, as JSON: the manifest that makes it one.

A sink removes the folders that old manifests name, and others may be able to write a manifest. So the names in it are
those that a sink makes, or it is none: nothing outside of the sink's own place is ever read or removed because of it.
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
"""2: a text that may be a Blob or Sealed is the text; in 1 it was its JSON."""
_FOLDER = re.compile(r"commits/\d{1,20}-[0-9a-f]{16}")
_PATH = re.compile(r"type=[A-Za-z0-9_]+/partition=\d{1,9}/part\.parquet")


class CommittedFile(msgspec.Struct, frozen=True):
    """A file of a commit: its path below the commit's folder, and what is in it."""

    path: str
    type: str
    partition: int
    rows: int
    bytes: int
    definition: str


class CommitManifest(msgspec.Struct, frozen=True):
    """One commit. folder: where its files are, below the sink's URL. cut: its text; root: of the state, in hex."""

    refold_parquet: int
    number: int
    folder: str
    cut: str
    entities: int
    root: str
    files: tuple[CommittedFile, ...]

    def at(self) -> Cut:
        """The cut that it is the state of."""
        return parse_cut(self.cut)


def encoded(manifest: CommitManifest) -> bytes:
    """The manifest's file."""
    return msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"


def decoded(data: bytes, place: str) -> CommitManifest:
    """The manifest in a file; CorruptionError where there is none that this release reads."""
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
    """file:///FOLDER or s3://BUCKET/PREFIX, with ?grace_s=3600."""
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
            files = self._written(view, folder, before, progress)  # step 2
            manifest = CommitManifest(
                FORMAT, number, folder, str(view.cut), sum(each.rows for each in files), _root(view), tuple(files)
            )
            if not self._objects.create(_manifest(number), encoded(manifest)):  # step 3
                raise self._overtaken()
            self._followed = number
            self._finish(manifest)

    def close(self) -> None:
        """Nothing is held open."""

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

    def _written(
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
        """What is left to do of a commit that is one, by whomever."""
        self._point(manifest)
        self._collect(manifest)
        self._finished = manifest.number

    def _point(self, manifest: CommitManifest) -> None:
        """Step 4."""
        while True:
            # Nothing is written where it stands already: opening needs no room on a disk.
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
        """Say of a store that fails whether waiting mends it."""
        try:
            yield
        except StoreUnavailable as error:
            raise SinkBusy(f"{self.name}: {error}", error.retry_after_s) from None
        except StoreRefused as error:
            raise SinkRefused(f"{self.name}: {error}") from None
        except OSError as error:  # a file that is made on a disk that is full
            raise SinkBusy(f"{self.name}: {error.strerror or type(error).__name__}; free disk") from None


def _is_unchanged(before: Cut, cut: Cut, partition: int) -> bool:
    """Whether a partition's state is the same at both, by what it is a function of."""
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
