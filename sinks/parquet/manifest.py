"""What a commit is, as JSON: the manifest that makes it one."""

from __future__ import annotations

import msgspec

from refold.avro.errors import CorruptionError
from refold.streams.cut import Cut, parse_cut

FORMAT = 1


class Kept(msgspec.Struct, frozen=True):
    """A file of a commit: its path below the commit's folder, and what is in it."""

    path: str
    type: str
    partition: int
    rows: int
    bytes: int
    definition: str


class Manifest(msgspec.Struct, frozen=True):
    """One commit. folder: where its files are, below the sink's URL. cut: its text; root: of the state, in hex."""

    refold_parquet: int
    number: int
    folder: str
    cut: str
    entities: int
    root: str
    files: tuple[Kept, ...]

    def at(self) -> Cut:
        """The cut that it is the state of."""
        return parse_cut(self.cut)


def encoded(manifest: Manifest) -> bytes:
    """The manifest's file."""
    return msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"


def decoded(data: bytes, place: str) -> Manifest:
    """The manifest in a file; CorruptionError where there is none that this release reads."""
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptionError(f"{place}: no manifest of a Parquet sink: {error}") from None
    if found.refold_parquet > FORMAT:
        raise CorruptionError(f"{place}: of format {found.refold_parquet}; install the newer refold that wrote it")
    return found
