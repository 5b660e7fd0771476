"""What a commit is, as JSON: the manifest that makes it one.

A sink removes the folders that old manifests name, and others may be able to write a manifest. So the names in it are
those that a sink makes, or it is none: nothing outside of the sink's own place is ever read or removed because of it.
"""

from __future__ import annotations

import re

import msgspec

from refold.avro.errors import CorruptionError
from refold.streams.cut import Cut, parse_cut

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
